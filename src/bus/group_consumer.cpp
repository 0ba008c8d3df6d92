// One consumer of a stream's group: its loop.
#include "echomq/group_consumer.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "bus/records.hpp"
#include "bus/state.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;
using Clock = detail::Clock;

constexpr Milliseconds kFirstBackoff{50};
constexpr Milliseconds kLongestBackoff{1000};
/// Between looks for new entries where there is no connection to wait on.
constexpr Milliseconds kPoll{100};
/// How long an acknowledgement may wait for others to travel with.
constexpr Milliseconds kAckDelay{100};
/// Reads that are sent before the entries in hand are handled, and how fast a full page must have been for that: what is read
/// ahead is kept from other consumers.
constexpr std::size_t kMostAhead = 2;
constexpr Milliseconds kFast{50};
/// Acknowledgements on their way.
constexpr std::size_t kMostAcks = 4;

}  // namespace

class GroupConsumer::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(StreamGroup group, string_view consumer, StreamHandler handler, GroupConsumerOptions options)
      : group_(std::move(group)),
        consumer_(consumer),
        handler_(std::move(handler)),
        options_(std::move(options)),
        line_(group_.stream().internal().core->line()) {}

  /// The door: makes the group, and notes where it began, so that it can be made again without a loss.
  [[nodiscard]] Result<void> open() {
    ECHOMQ_TRY(const StreamInfo info, group_.stream().info().get());
    ECHOMQ_TRY(const bool made, group_.create(options_.start).get());
    began_behind_ = made && options_.start == GroupStart::latest ? info.top : "0";
    if (made) {
      groups_made_.fetch_add(1, std::memory_order_relaxed);
      return {};
    }
    ECHOMQ_TRY(const std::vector<GroupInfo> groups, group_.stream().groups().get());
    for (const GroupInfo& one : groups) {
      if (one.name == group_.name() && options_.start == GroupStart::latest)
        began_behind_ = one.last_delivered;
    }
    return {};
  }

  void start() {
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (line_)
      line_->close();
    if (thread_.get_id() == std::this_thread::get_id())
      return;
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable())
      thread_.join();
  }
  /// For the last owner, which may be the handler: the thread then ends by itself.
  void abandon() {
    stop();
    if (thread_.joinable() && thread_.get_id() == std::this_thread::get_id())
      thread_.detach();
  }

  [[nodiscard]] GroupConsumerStats stats() const {
    const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    return {.handled = read(handled_),
            .failed = read(failed_),
            .taken_over = read(taken_over_),
            .deleted = read(deleted_),
            .groups_made = read(groups_made_),
            .errors = read(errors_)};
  }

 private:
  [[nodiscard]] bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }
  void sleep(Milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] { return stopping_; });
  }

  void run() {
    std::string after = "0";
    bool backlog = true;
    while (!stopping()) {
      if (backlog) {
        backlog = own_backlog(after);
        continue;
      }
      if (Clock::now() >= next_claim_)
        take_over();
      if (!stopping())
        read_new();
    }
    flush_acks();
    await_acks(0);
  }

  /// A page of what this consumer held when it began; false when there is no more. The cursor moves on, whatever became
  /// of the entries: those that fail come back as idle ones.
  [[nodiscard]] bool own_backlog(std::string& after) {
    auto page = group_.read_own(consumer_, after, {.count = options_.count}).get();
    if (!succeeded(page))
      return true;
    if (page->empty())
      return false;
    after = page->back().entry;
    handle(*page, Attempts::ask);
    return true;
  }

  void take_over() {
    auto claim = group_.claim_idle(consumer_, options_.min_idle, cursor_, {.count = options_.count}).get();
    if (!succeeded(claim))
      return;
    cursor_ = claim->next;
    // A pass that is not at its end goes on at once.
    next_claim_ = cursor_ == "0-0" ? Clock::now() + options_.beat : Clock::now();
    deleted_.fetch_add(claim->deleted.size(), std::memory_order_relaxed);
    taken_over_.fetch_add(claim->entries.size(), std::memory_order_relaxed);
    handle(claim->entries, Attempts::ask);
  }

  void read_new() {
    auto entries = ahead_.empty() ? wait_for_new() : take_ahead();
    if (!succeeded(entries))
      return;
    const auto asked = asked_;
    const bool full = entries->size() == options_.count;
    if (full && fast_)
      read_ahead();
    const auto begin = Clock::now();
    handle(*entries, Attempts::first, asked);
    fast_ = full && Clock::now() - begin < std::min(kFast, options_.min_idle / 10);
  }

  void read_ahead() {
    while (ahead_.size() < kMostAhead)
      ahead_.push_back({Clock::now(), group_.read_new(consumer_, {.count = options_.count})});
  }
  [[nodiscard]] Result<std::vector<Delivery>> take_ahead() {
    Ahead ahead = std::move(ahead_.front());
    ahead_.pop_front();
    asked_ = ahead.asked;
    return ahead.entries.get();
  }

  /// Waits on the server up to a beat, or until the next look for idle entries.
  [[nodiscard]] Result<std::vector<Delivery>> wait_for_new() {
    await_acks(0);
    asked_ = Clock::time_point::max();
    if (!line_) {
      auto entries = group_.read_new(consumer_, {.count = options_.count}).get();
      if (entries && entries->empty())
        sleep(std::min(options_.beat, kPoll));
      return entries;
    }
    const auto left = std::chrono::ceil<Milliseconds>(next_claim_ - Clock::now());
    const Milliseconds block = std::clamp(left, Milliseconds(1), options_.beat);
    const Stream::State& state = group_.stream().internal();
    auto decode = [](const wire::Answer& answer) { return read_stream_reply("read_new", answer.view); };
    auto* call = wire::BoundCall<std::vector<Delivery>, decltype(decode)>::make(
        parts(string_view("XREADGROUP"), string_view("GROUP"), group_.name(), consumer_, string_view("BLOCK"),
              Decimal(block.count()), string_view("COUNT"), Decimal(options_.count), string_view("STREAMS"), state.key,
              string_view(">")),
        decode);
    call->slot = state.slot;
    call->retain();
    detail::CallPointer<detail::CallOf<std::vector<Delivery>>> mine(call);
    line_->submit(call, settings(Repeat::unsafe, block + Milliseconds(5000)));
    return Reply<std::vector<Delivery>>(std::move(mine)).get();
  }

  enum class Attempts : std::uint8_t { first, ask };

  /// `asked`: the earliest moment at which the server may have handed them out, when that is not just now.
  void handle(const std::vector<Delivery>& entries, Attempts attempts,
              Clock::time_point asked = Clock::time_point::max()) {
    if (entries.empty())
      return;
    const std::map<std::string, std::uint64_t> counts =
        attempts == Attempts::ask ? deliveries(entries) : std::map<std::string, std::uint64_t>();
    touched_ = std::min(Clock::now(), asked);
    lost_.clear();
    for (std::size_t i = 0; i < entries.size() && !stopping(); ++i) {
      const Delivery& delivery = entries[i];
      if (!delivery.record) {
        deleted_.fetch_add(1, std::memory_order_relaxed);
        acknowledge(delivery.entry);
        continue;
      }
      if (!still_mine(entries, i))
        continue;
      const auto count = counts.find(delivery.entry);
      if (run_handler({*delivery.record, count == counts.end() ? 1 : count->second, group_.name()})) {
        handled_.fetch_add(1, std::memory_order_relaxed);
        acknowledge(delivery.entry);
      } else {
        failed_.fetch_add(1, std::memory_order_relaxed);
      }
      if (Clock::now() - oldest_ack_ >= kAckDelay)
        flush_acks();
    }
    flush_acks();
  }

  /// How often each was handed out. A consumer that cannot be told goes on with 1.
  [[nodiscard]] std::map<std::string, std::uint64_t> deliveries(const std::vector<Delivery>& entries) {
    // Entries of one read stand in the order of their ids.
    auto rows = group_
                    .pending({.from = entries.front().entry,
                              .to = entries.back().entry,
                              .count = static_cast<std::uint32_t>(10 * entries.size()),
                              .consumer = consumer_})
                    .get();
    std::map<std::string, std::uint64_t> counts;
    if (succeeded(rows)) {
      for (const PendingEntry& row : *rows)
        counts[row.entry] = row.deliveries;
    }
    return counts;
  }

  /// Whether entry `index` is still this consumer's, and what stands behind it is kept fresh.
  [[nodiscard]] bool still_mine(const std::vector<Delivery>& entries, std::size_t index) {
    const auto now = Clock::now();
    if (now - touched_ < options_.min_idle / 3)
      return !lost_.contains(entries[index].entry);
    if (now - touched_ >= options_.min_idle) {
      // Too late to refresh blindly: others may have taken some over, and a refresh would take them back.
      lost_.clear();
      const auto mine = deliveries({entries.begin() + static_cast<std::ptrdiff_t>(index), entries.end()});
      for (std::size_t i = index; i < entries.size(); ++i) {
        if (!mine.contains(entries[i].entry))
          lost_.insert(entries[i].entry);
      }
    }
    std::vector<string_view> held;
    for (std::size_t i = index; i < entries.size(); ++i) {
      if (!lost_.contains(entries[i].entry))
        held.push_back(entries[i].entry);
    }
    touched_ = now;
    if (auto refreshed = group_.refresh(consumer_, held).get(); !succeeded(refreshed))
      return false;
    return !lost_.contains(entries[index].entry);
  }

  [[nodiscard]] bool run_handler(const StreamMessage& message) {
    try {
      return handler_(message) == Handled::done;
    } catch (const std::exception& error) {
      tell(LogLevel::warning, "stream.handler_threw", error.what());
    } catch (...) {
      tell(LogLevel::warning, "stream.handler_threw", "not a std::exception");
    }
    return false;
  }

  void acknowledge(const std::string& entry) {
    if (acks_.empty())
      oldest_ack_ = Clock::now();
    acks_.push_back(entry);
  }
  void flush_acks() {
    if (acks_.empty())
      return;
    const std::vector<string_view> entries(acks_.begin(), acks_.end());
    acks_sent_.push_back(group_.acknowledge(entries));
    acks_.clear();
    await_acks(kMostAcks);
  }
  /// Until no more than `most` are on their way. One that is lost costs a second run of its records, no more.
  void await_acks(std::size_t most) {
    while (acks_sent_.size() > most) {
      Reply<std::uint64_t> sent = std::move(acks_sent_.front());
      acks_sent_.pop_front();
      (void)succeeded(sent.get());
    }
  }

  /// Whether a command went well. A group that is gone is made again, anything else waits a while.
  template <typename T>
  [[nodiscard]] bool succeeded(const Result<T>& result) {
    if (result) {
      backoff_ = kFirstBackoff;
      last_error_.clear();
      return true;
    }
    if (stopping())
      return false;
    errors_.fetch_add(1, std::memory_order_relaxed);
    const std::string text = result.error().message();
    if (text != last_error_)
      tell(LogLevel::warning, "stream.consumer_error", text);
    last_error_ = text;
    if (result.error().is(Errc::no_group)) {
      // From where this consumer began: what was handled since comes again, nothing is passed over.
      auto made = group_.create_behind(began_behind_).get();
      if (made) {
        groups_made_.fetch_add(*made ? 1 : 0, std::memory_order_relaxed);
        cursor_ = "0-0";
        return false;
      }
    }
    sleep(backoff_);
    backoff_ = std::min(2 * backoff_, kLongestBackoff);
    return false;
  }

  void tell(LogLevel level, string_view event, string_view text) {
    const LogField fields[] = {
        {"stream", group_.stream().name()}, {"group", group_.name()}, {"consumer", consumer_}, {"text", text}};
    if (options_.log)
      options_.log(level, event, fields);
  }

  const StreamGroup group_;
  const std::string consumer_;
  const StreamHandler handler_;
  const GroupConsumerOptions options_;
  const std::unique_ptr<client::Line> line_;
  std::string began_behind_ = "0";

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::mutex join_mutex_;
  std::thread thread_;

  // The loop's own.
  std::string cursor_ = "0-0";
  Clock::time_point next_claim_{};
  Clock::time_point touched_{};
  Clock::time_point oldest_ack_ = Clock::time_point::max();
  std::vector<std::string> acks_;
  std::deque<Reply<std::uint64_t>> acks_sent_;
  struct Ahead {
    Clock::time_point asked;
    Reply<std::vector<Delivery>> entries;
  };
  std::deque<Ahead> ahead_;
  Clock::time_point asked_ = Clock::time_point::max();  ///< when the entries in hand were, if ahead
  bool fast_ = false;  ///< the last page was full, and handled so fast that reading ahead does not pay others badly
  std::set<std::string> lost_;  ///< of the entries in hand: others have taken them over
  Milliseconds backoff_ = kFirstBackoff;
  std::string last_error_;

  std::atomic<std::uint64_t> handled_{0}, failed_{0}, taken_over_{0}, deleted_{0}, groups_made_{0}, errors_{0};
};

GroupConsumer::GroupConsumer(std::shared_ptr<Loop> loop) noexcept : loop_(std::move(loop)) {}
GroupConsumer::GroupConsumer(GroupConsumer&&) noexcept = default;
GroupConsumer& GroupConsumer::operator=(GroupConsumer&& other) noexcept {
  std::swap(loop_, other.loop_);
  return *this;
}
GroupConsumer::~GroupConsumer() {
  if (loop_)
    loop_->abandon();
}

Result<GroupConsumer> GroupConsumer::start(const StreamGroup& group, string_view consumer, StreamHandler handler,
                                           GroupConsumerOptions options) {
  ECHOMQ_CHECK(check_name("consumer", consumer));
  ECHOMQ_CHECK(check_count("count", options.count));
  if (options.min_idle.count() < 1) {
    return fail(Errc::invalid_argument,
                fmt::format("min_idle must be 1ms or more, got {}ms", options.min_idle.count()));
  }
  if (options.beat.count() < 1)
    return fail(Errc::invalid_argument, fmt::format("beat must be 1ms or more, got {}ms", options.beat.count()));
  if (!handler)
    return fail(Errc::invalid_argument, "handler must not be empty");
  auto loop = std::make_shared<Loop>(group, consumer, std::move(handler), std::move(options));
  ECHOMQ_CHECK(loop->open());
  loop->start();
  return GroupConsumer(std::move(loop));
}

void GroupConsumer::stop() { loop_->stop(); }
GroupConsumerStats GroupConsumer::stats() const { return loop_->stats(); }

}  // namespace v1
}  // namespace echomq
