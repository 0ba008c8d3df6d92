// Announces what became of jobs.
#include "events/publisher.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "client/live_core.hpp"
#include "keyspace/keys.hpp"
#include "resp/encode.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace events {
namespace {

// Past either of these `add` sends by itself, unless a question is on its way.
constexpr std::uint32_t kManyEvents = 512;
constexpr std::size_t kManyBytes = std::size_t{64} << 10;
/// Fewer are sent at once: the question would cost as much.
constexpr std::uint32_t kWorthAsking = 8;

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

/// Whether the server is known to be one by itself: no replica, none that was there and may come back for what it has missed (the
/// backlog is kept for it), no cluster. What INFO does not say is not known.
[[nodiscard]] bool is_alone(std::string_view info) {
  return info.find("\r\nrole:master\r\n") != std::string_view::npos &&
         info.find("\r\nconnected_slaves:0\r\n") != std::string_view::npos &&
         info.find("\r\nrepl_backlog_active:0\r\n") != std::string_view::npos &&
         info.find("\r\ncluster_enabled:0\r\n") != std::string_view::npos;
}

}  // namespace

struct EventPublisher::Counters {
  std::atomic<std::uint64_t> published{0}, unheard{0}, sampled_out{0}, failed{0}, dropped{0};
  std::atomic<std::size_t> in_flight{0};
  /// The last events reached nobody.
  std::atomic<bool> quiet{true};
};

/// What waits, and the question about it. Lives as long as either is needed.
struct EventPublisher::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<client::Core> its_core, const QueueName& queue, std::shared_ptr<Counters> its_counters)
      : core(std::move(its_core)), keys(queue), counters(std::move(its_counters)) {
    const auto* live = dynamic_cast<const client::LiveCore*>(core.get());
    may_ask = live != nullptr && !live->in_cluster();
  }

  void flush(bool last) {
    const std::lock_guard lock(mutex);
    closing = closing || last;
    flush_locked();
  }
  void flush_locked();
  void send_locked();
  void ask_locked();
  void answered(bool heard, bool certain);
  void submit(detail::Call* call) const {
    // Any node takes it. That of the queue's slot keeps it behind what the scripts there have published.
    call->slot = keys.slot();
    call->retain();  // some cores look at a call once more after they have handed it on
    // Bounded here, so the connection's bound neither stops nor refuses it.
    core->submit(call, {.repeat = Repeat::unsafe, .past_bound = true});
    call->release();
  }

  const std::shared_ptr<client::Core> core;
  const keyspace::QueueKeys keys;
  const std::shared_ptr<Counters> counters;
  /// Set by whoever reads answers, maybe with locks of the connection's held.
  enum class Asking : std::uint8_t { no, yes, lost };
  std::atomic<Asking> asking{Asking::no};

  std::mutex mutex;
  // Guarded by mutex.
  std::string waiting;  ///< encoded commands
  std::uint32_t waiting_count = 0;
  std::size_t asked_bytes = 0;  ///< of those, what the question in flight is about
  std::uint32_t asked_count = 0;
  std::string message;  ///< scratch
  bool may_ask = false;
  bool closing = false;
};

/// A request of several commands, each with an answer of its own. Nobody waits for it.
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
    if (reply.as_integer().value_or(1) > 0)
      heard_.store(true, std::memory_order_relaxed);
  }
  void finish() noexcept {
    const std::uint32_t lost = size_ - answered_.load();
    counters_->failed.fetch_add(lost, std::memory_order_relaxed);
    counters_->quiet.store(lost == 0 && !heard_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    counters_->in_flight.fetch_sub(size_, std::memory_order_acq_rel);
    publish();
  }

  const std::uint32_t size_;
  // A deadline may end it on one thread while another reads what comes still.
  std::atomic<std::uint32_t> answered_{0};
  std::atomic<bool> heard_{false};
  const std::shared_ptr<Counters> counters_;
};

/// PUBSUB NUMSUB, PUBSUB NUMPAT and INFO in one request.
class EventPublisher::Question final : public detail::Call {
 public:
  explicit Question(std::shared_ptr<State> state) : state_(std::move(state)) {
    resp::CommandWriter(text_)
        .begin(3)
        .part(std::string_view("PUBSUB"))
        .part(std::string_view("NUMSUB"))
        .part(state_->keys.events());
    resp::CommandWriter(text_).begin(2).part(std::string_view("PUBSUB")).part(std::string_view("NUMPAT"));
    resp::CommandWriter(text_)
        .begin(3)
        .part(std::string_view("INFO"))
        .part(std::string_view("replication"))
        .part(std::string_view("cluster"));
    request = text_.data();
    request_size = static_cast<std::uint32_t>(text_.size());
    replies = 3;
  }

  void part(const resp::View& reply) noexcept override {
    const auto number = reply.is_aggregate() && reply.size() == 2 ? reply.at(1).as_integer() : reply.as_integer();
    refused_ = refused_ || is_refusal(reply);
    heard_ = heard_ || number.value_or(1) > 0;
  }
  void accept(const resp::View& reply) noexcept override {
    // An error that passes, such as BUSY, speaks for this time only.
    const bool failed = reply.is_error() && !is_refusal(reply);
    const bool alone = !reply.is_error() && is_alone(reply.as_text().value_or(std::string_view()));
    state_->answered(heard_ || failed, !refused_ && (alone || failed));
    publish();
  }
  void fail(Error) noexcept override {
    state_->asking.store(State::Asking::lost, std::memory_order_release);
    publish();
  }

 private:
  [[nodiscard]] static bool is_refusal(const resp::View& reply) {
    return reply.is_error() && reply.error_text().starts_with("NOPERM");
  }
  ~Question() override = default;
  void destroy() noexcept override { delete this; }

  const std::shared_ptr<State> state_;
  std::string text_;
  // Only the thread that reads has these.
  bool refused_ = false;
  bool heard_ = false;
};

void EventPublisher::State::flush_locked() {
  const bool open = asking == Asking::yes;
  if (waiting_count == 0 || (open && !closing))
    return;
  if (open) {
    // Nobody may be there when it is answered.
    asked_bytes = 0;
    asked_count = 0;
    return send_locked();
  }
  const bool lost = asking.exchange(Asking::no) == Asking::lost;
  if (may_ask && !lost && !closing && waiting_count >= kWorthAsking && counters->quiet.load(std::memory_order_relaxed))
    return ask_locked();
  send_locked();
}

void EventPublisher::State::send_locked() {
  counters->in_flight.fetch_add(waiting_count, std::memory_order_acq_rel);
  Batch* batch = Batch::make(waiting, waiting_count, counters);
  waiting.clear();
  waiting_count = 0;
  submit(batch);
}

void EventPublisher::State::ask_locked() {
  asking = Asking::yes;
  asked_bytes = waiting.size();
  asked_count = waiting_count;
  submit(new Question(shared_from_this()));
}

void EventPublisher::State::answered(bool heard, bool certain) {
  const std::lock_guard lock(mutex);
  asking = Asking::no;
  may_ask = may_ask && certain;
  if (heard || !certain) {
    counters->quiet.store(false, std::memory_order_relaxed);
    if (waiting_count > 0)
      send_locked();
    return;
  }
  // What came behind the question may have ended after somebody subscribed.
  counters->unheard.fetch_add(asked_count, std::memory_order_relaxed);
  waiting.erase(0, asked_bytes);
  waiting_count -= asked_count;
  flush_locked();
}

EventPublisher::EventPublisher(std::shared_ptr<client::Core> core, const QueueName& queue, PublisherOptions options)
    : options_(options),
      threshold_(threshold_of(options)),
      counters_(std::make_shared<Counters>()),
      state_(std::make_shared<State>(std::move(core), queue, counters_)) {}

EventPublisher::~EventPublisher() { close(); }

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

  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.waiting_count + counters_->in_flight.load(std::memory_order_acquire) >= options_.most_pending) {
    counters_->dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  state.message.clear();
  append_event(state.message, to_string(kind), job, std::span(kept).first(count));
  resp::CommandWriter(state.waiting)
      .begin(3)
      .part(std::string_view("PUBLISH"))
      .part(state.keys.events())
      .part(state.message);
  if (++state.waiting_count >= kManyEvents || state.waiting.size() >= kManyBytes)
    state.flush_locked();
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

void EventPublisher::flush() { state_->flush(false); }
void EventPublisher::close() { state_->flush(true); }

PublisherStats EventPublisher::stats() const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  return {.published = read(counters_->published),
          .unheard = read(counters_->unheard),
          .sampled_out = read(counters_->sampled_out),
          .failed = read(counters_->failed),
          .dropped = read(counters_->dropped)};
}

}  // namespace events
}  // namespace v1
}  // namespace echomq
