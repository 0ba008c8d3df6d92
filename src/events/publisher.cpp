// Announces what became of jobs.
#include "events/publisher.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "resp/encode.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace events {
namespace {

// Past either of these `add` sends by itself.
constexpr std::uint32_t kManyEvents = 512;
constexpr std::size_t kManyBytes = std::size_t{64} << 10;

/// The job's place in the sample: even over all 64 bits, the same everywhere (splitmix64).
[[nodiscard]] constexpr std::uint64_t place_of(const JobId& job) noexcept {
  std::uint64_t mixed = job.value() + 0x9E3779B97F4A7C15ULL;
  mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBULL;
  return mixed ^ (mixed >> 31U);
}

[[nodiscard]] std::uint64_t threshold_of(const PublisherOptions& options) noexcept {
  constexpr double kAll = 18446744073709551616.0;  // 2^64
  if (options.mode == Publishing::off || !(options.rate > 0.0))
    return 0;
  return options.rate >= 1.0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(options.rate * kAll);
}

}  // namespace

struct EventPublisher::Counters {
  std::atomic<std::uint64_t> published{0}, sampled_out{0}, failed{0}, dropped{0};
  std::atomic<std::size_t> in_flight{0};
};

/// One request of many PUBLISH commands, each with an answer of its own. Nobody waits for it.
class EventPublisher::Batch final : public detail::Call {
 public:
  static Batch* make(std::string_view commands, std::uint32_t count, std::shared_ptr<Counters> counters) {
    void* memory = ::operator new(sizeof(Batch) + commands.size());
    auto* batch = ::new (memory) Batch(count, std::move(counters));
    char* const bytes = reinterpret_cast<char*>(batch + 1);
    std::memcpy(bytes, commands.data(), commands.size());
    batch->request = bytes;
    batch->request_size = static_cast<std::uint32_t>(commands.size());
    batch->replies = count;
    return batch;
  }

  void part(const resp::View& reply) noexcept override {
    if (!settled())  // else all that was open is counted as failed
      count(reply);
  }
  void accept(const resp::View& reply) noexcept override {
    count(reply);
    finish();
  }
  void fail(Error) noexcept override { finish(); }

 private:
  Batch(std::uint32_t size, std::shared_ptr<Counters> counters) : size_(size), counters_(std::move(counters)) {}
  ~Batch() override = default;
  void destroy() noexcept override {
    this->~Batch();
    ::operator delete(static_cast<void*>(this));
  }
  void count(const resp::View& reply) noexcept {
    answered_.fetch_add(1, std::memory_order_relaxed);
    (reply.is_error() ? counters_->failed : counters_->published).fetch_add(1, std::memory_order_relaxed);
  }
  void finish() noexcept {
    counters_->failed.fetch_add(size_ - answered_.load(), std::memory_order_relaxed);
    counters_->in_flight.fetch_sub(size_, std::memory_order_acq_rel);
    publish();
  }

  const std::uint32_t size_;
  // A deadline may end it on one thread while another reads what comes still.
  std::atomic<std::uint32_t> answered_{0};
  const std::shared_ptr<Counters> counters_;
};

EventPublisher::EventPublisher(std::shared_ptr<client::Core> core, const QueueName& queue, PublisherOptions options)
    : core_(std::move(core)),
      keys_(queue),
      options_(options),
      threshold_(threshold_of(options)),
      counters_(std::make_shared<Counters>()) {}

EventPublisher::~EventPublisher() { flush(); }

bool EventPublisher::wants(const JobId& job) const noexcept {
  switch (options_.mode) {
    case Publishing::off: return false;
    case Publishing::on: return true;
    case Publishing::sampled: break;
  }
  return threshold_ == ~std::uint64_t{0} || place_of(job) < threshold_;
}

void EventPublisher::add(EventKind kind, const JobId& job, std::span<const Extra> extra) {
  if (options_.mode == Publishing::off)
    return;
  if (!wants(job)) {
    counters_->sampled_out.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  constexpr std::size_t kMostExtra = 8;
  std::array<Extra, kMostExtra> kept;
  const std::size_t count = std::min(extra.size(), kMostExtra);
  for (std::size_t i = 0; i < count; ++i)
    kept[i] = {extra[i].first, cut_text(extra[i].second)};

  const std::lock_guard lock(mutex_);
  if (waiting_count_ + counters_->in_flight.load(std::memory_order_acquire) >= options_.most_pending) {
    counters_->dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  message_.clear();
  append_event(message_, to_string(kind), job, std::span(kept).first(count));
  resp::CommandWriter(waiting_).begin(3).part(std::string_view("PUBLISH")).part(keys_.events()).part(message_);
  if (++waiting_count_ >= kManyEvents || waiting_.size() >= kManyBytes)
    flush_locked();
}

void EventPublisher::add_failed(const JobId& job, std::string_view error, bool will_retry) {
  std::array<Extra, 2> extra;
  std::size_t count = 0;
  if (!error.empty())
    extra[count++] = {"error", error};
  if (will_retry)
    extra[count++] = {"retry", "1"};
  add(EventKind::failed, job, std::span(extra).first(count));
}

void EventPublisher::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

void EventPublisher::flush_locked() {
  if (waiting_count_ == 0)
    return;
  counters_->in_flight.fetch_add(waiting_count_, std::memory_order_acq_rel);
  Batch* batch = Batch::make(waiting_, waiting_count_, counters_);
  // Any node takes it. That of the queue's slot keeps it behind what the scripts there have published.
  batch->slot = keys_.slot();
  waiting_.clear();
  waiting_count_ = 0;
  // Bounded here, so the connection's bound neither stops nor refuses it.
  batch->retain();  // some cores look at a call once more after they have handed it on
  core_->submit(batch, {.repeat = Repeat::unsafe, .past_bound = true});
  batch->release();
}

PublisherStats EventPublisher::stats() const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  return {.published = read(counters_->published),
          .sampled_out = read(counters_->sampled_out),
          .failed = read(counters_->failed),
          .dropped = read(counters_->dropped)};
}

}  // namespace events
}  // namespace v1
}  // namespace echomq
