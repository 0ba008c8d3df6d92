// One consumer of a stream's group: its loop.
#include "echomq/group_consumer.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "bus/group_acks.hpp"
#include "bus/group_ahead.hpp"
#include "bus/group_claims.hpp"
#include "bus/group_delays.hpp"
#include "bus/group_keeper.hpp"
#include "bus/group_pool.hpp"
#include "bus/state.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;
using Clock = detail::Clock;

constexpr Milliseconds kFirstBackoff{50};
constexpr Milliseconds kLongestBackoff{1000};
/// Between looks for new entries where there is no connection to wait on: twice as long after each that finds none.
constexpr Milliseconds kPoll{100};
constexpr Milliseconds kLongestPoll{1000};
/// Reads that are sent before the entries in hand are handled, and how fast a full page must have been for that: what is read
/// ahead is not to be had for other consumers.
constexpr std::size_t kMostAhead = 4;
constexpr Milliseconds kFast{50};
/// How many entries a look for idle ones asks for (the server looks through ten times as many) where the pending list is long, and
/// how often it goes on there while it finds none.
constexpr std::uint32_t kWideLook = 1000;
constexpr Milliseconds kNextLook{1000};

/// The entry id right before that one.
[[nodiscard]] EntryNumber before(EntryNumber entry) noexcept {
  if (entry.tail > 0)
    return {entry.milliseconds, entry.tail - 1};
  return entry.milliseconds > 0 ? EntryNumber{entry.milliseconds - 1, UINT64_MAX} : EntryNumber{};
}

}  // namespace

class GroupConsumer::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(StreamGroup group, string_view consumer, StreamHandler handler, GroupConsumerOptions options)
      : group_(std::move(group)),
        consumer_(consumer),
        handler_(std::move(handler)),
        options_(std::move(options)),
        line_(group_.stream().internal().core->line(group_.stream().internal().slot)),
        delayed_(options_.min_idle),
        look_(options_.count),
        acks_(group_, [this](const Result<std::uint64_t>& answer) { acknowledged(answer); }),
        ahead_(group_, consumer_, options_.min_idle),
        keeper_(group_, consumer_, options_.min_idle) {
    if (options_.concurrency > 1 || options_.order_key)
      pool_ = std::make_unique<GroupPool>(options_.concurrency, [this](PoolItem& item) { return handle_one(item); });
  }

  /// The door: makes the group, and notes where it is to begin when it is lost: behind what was acknowledged, and what is pending now
  /// comes again.
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
    // Asked later than the position: what is handed out in between is behind that.
    const auto pending = group_.pending({.count = 1}).get();
    if (!pending && !pending.error().is(Errc::no_group))
      return std::unexpected<Error>(pending.error());
    if (!pending || pending->empty())
      return {};
    const auto oldest = parse_entry(pending->front().entry);
    const auto position = parse_entry(began_behind_);
    if (oldest && position && *oldest <= *position)
      began_behind_ = entry_text(before(*oldest));
    return {};
  }

  /// Where dead entries go. Errors: invalid_argument when the stream's name is too long to have one by default.
  [[nodiscard]] Result<void> find_dead() {
    if (options_.max_attempts == 0)
      return {};
    const Stream::State& state = group_.stream().internal();
    std::optional<StreamName> name = options_.dead_stream;
    if (!name) {
      ECHOMQ_TRY(name, StreamName::parse(std::string(state.name.text()) + ":dead"));
    }
    if (name->text() == state.name.text())
      return fail(Errc::invalid_argument, "dead_stream must be another stream");
    dead_.emplace(std::make_shared<const Stream::State>(state.queue, *name, state.core));
    return {};
  }

  void start() {
    if (!pool_) {
      keeper_.start([this] {
        acks_.flush_old();
        touch_delayed();
        lost_.fetch_add(ahead_.refresh(), std::memory_order_relaxed);
      });
    }
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
    if (inside())
      return;
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable())
      thread_.join();
  }
  /// For the last owner, which may be the handler: the thread then ends by itself.
  void abandon() {
    stop();
    if (thread_.joinable() && inside())
      thread_.detach();
  }

  [[nodiscard]] GroupConsumerStats stats() const {
    const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    return {.handled = read(handled_),
            .failed = read(failed_),
            .taken_over = read(taken_over_),
            .deleted = read(deleted_),
            .groups_made = read(groups_made_),
            .errors = read(errors_),
            .buried = read(buried_),
            .lost = read(lost_) + keeper_.lost(),
            .held = pool_ ? pool_->held() : 0,
            .delayed = read(delayed_now_) + (pool_ ? pool_->delayed() : 0)};
  }

 private:
  /// On a thread of this consumer.
  [[nodiscard]] bool inside() const { return loop_.load() == std::this_thread::get_id() || (pool_ && pool_->inside()); }
  [[nodiscard]] bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }
  void sleep(Milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] { return stopping_; });
  }

  void run() {
    loop_ = std::this_thread::get_id();
    std::string after = "-";
    bool backlog = true;
    while (!stopping()) {
      if (pool_ && !make_room())
        continue;
      if (backlog) {
        backlog = own_backlog(after);
        continue;
      }
      keep_delayed();
      if (Clock::now() >= next_claim_)
        take_over();
      if (!stopping())
        read_new();
    }
    if (pool_)
      pool_->stop();
    keeper_.stop();
    acks_.flush();
    acks_.await(0);
  }

  // Several at once: this thread reads, and keeps what is in hand; the pool's threads handle.

  /// Keeps what is in hand fresh; whether more may be read.
  [[nodiscard]] bool make_room() {
    keep_held();
    if (pool_->held() < options_.max_held)
      return true;
    acks_.flush();
    return pool_->wait_below(options_.max_held, std::min(kAckDelay, options_.min_idle / 3));
  }
  void keep_held() {
    const auto now = Clock::now();
    if (now - touched_ < options_.min_idle / 3)
      return;
    const std::vector<std::string> held = pool_->entries();
    const std::vector<string_view> entries(held.begin(), held.end());
    const auto kept = keep_entries(group_, consumer_, entries);
    if (!succeeded(kept))
      return;
    lost_.fetch_add(pool_->drop({kept->lost.begin(), kept->lost.end()}), std::memory_order_relaxed);
    touched_ = now;  // only now: what could not be refreshed may be somebody else's by the time it can
  }
  void to_pool(Delivery&& delivery, std::uint64_t attempt, bool again) {
    if (!delivery.record) {
      deleted_.fetch_add(1, std::memory_order_relaxed);
      acknowledge(delivery.entry);
      return;
    }
    std::string lane = delivery.entry;
    if (options_.order_key) {
      lane.clear();
      try {
        lane = options_.order_key(*delivery.record);
      } catch (...) {
        tell(LogLevel::warning, "stream.order_key_threw", delivery.entry);
      }
    }
    pool_->add(lane, {.delivery = std::move(delivery), .attempt = attempt, .again = again});
  }
  /// On a thread of the pool.
  [[nodiscard]] std::optional<Milliseconds> handle_one(PoolItem& item) {
    Delivery& delivery = item.delivery;
    if (item.again) {
      // Counted in the moment in which its turn comes. What was done before must not be undone by an entry that kills.
      acks_.flush();
      auto handed = hand_out(group_, consumer_, delivery.entry).get();
      if (!handed)
        return stopping() ? std::optional<Milliseconds>() : kLongestBackoff;
      if (handed->lost) {
        lost_.fetch_add(pool_->lose(item) ? 1 : 0, std::memory_order_relaxed);
        return std::nullopt;
      }
      if (!handed->delivery || !handed->delivery->record) {  // trimmed meanwhile, or acknowledged by others
        deleted_.fetch_add(1, std::memory_order_relaxed);
        pool_->settled(item);
        acknowledge(delivery.entry);
        return std::nullopt;
      }
    }
    item.again = true;
    const std::uint64_t attempt = item.attempt++;
    if (options_.max_attempts == 0 || attempt <= options_.max_attempts) {
      if (run_handler({*delivery.record, attempt, group_.name()})) {
        handled_.fetch_add(1, std::memory_order_relaxed);
        pool_->settled(item);
        acknowledge(delivery.entry);
        return std::nullopt;
      }
      failed_.fetch_add(1, std::memory_order_relaxed);
      if (options_.max_attempts == 0 || attempt < options_.max_attempts)
        return retry_delay(attempt);
    }
    if (!bury(delivery, attempt))
      return retry_delay(attempt);
    pool_->settled(item);
    acknowledge(delivery.entry);
    acks_.flush();
    return std::nullopt;
  }
  /// After that many attempts.
  [[nodiscard]] Milliseconds retry_delay(std::uint64_t attempts) const {
    const Milliseconds first = options_.retry_delay.count() > 0 ? options_.retry_delay : options_.min_idle;
    const Milliseconds most = std::max(options_.retry_delay_max, first);
    Milliseconds delay = first;
    for (std::uint64_t i = 1; i < attempts && delay < most; ++i)
      delay = std::min(2 * delay, most);
    return delay;
  }

  // What failed and shall not come back yet.

  void delay(const std::string& entry, std::uint64_t attempts) {
    // Not touched later than the entries that were read with it: what others may have by now is not claimed back.
    const auto now = Clock::now();
    const std::lock_guard lock(delayed_mutex_);
    delayed_.add(entry, std::min(now, keeper_.touched()), now, retry_delay(attempts));
    delayed_now_.store(delayed_.size(), std::memory_order_relaxed);
  }
  /// On the keeper's thread, while a handler runs: what waits for its delay is kept as the page is.
  void touch_delayed() {
    if (delayed_now_.load(std::memory_order_relaxed) == 0)
      return;
    std::vector<std::string> stale;
    {
      const std::lock_guard lock(delayed_mutex_);
      stale = delayed_.to_touch(Clock::now());
    }
    if (!stale.empty())
      (void)touch(stale).has_value();  // again at the next look
  }
  [[nodiscard]] Result<void> touch(const std::vector<std::string>& stale) {
    const std::vector<string_view> entries(stale.begin(), stale.end());
    const auto now = Clock::now();
    ECHOMQ_TRY(const KeptEntries kept, keep_entries(group_, consumer_, entries));
    const std::lock_guard lock(delayed_mutex_);
    for (const string_view entry : entries)
      delayed_.touched(std::string(entry), now);
    for (const std::string& entry : kept.lost)
      lost_.fetch_add(delayed_.forget(entry) ? 1 : 0, std::memory_order_relaxed);
    delayed_now_.store(delayed_.size(), std::memory_order_relaxed);
    return {};
  }
  void keep_delayed() {
    const auto now = Clock::now();
    DelayedEntries::Due due;
    {
      const std::lock_guard lock(delayed_mutex_);
      if (delayed_.empty())
        return;
      due = delayed_.take_due(now);
      delayed_now_.store(delayed_.size(), std::memory_order_relaxed);
    }
    if (!due.touch.empty() && !succeeded(touch(due.touch)))
      return;
    if (due.free.empty())
      return;
    const std::vector<string_view> free(due.free.begin(), due.free.end());
    (void)succeeded(keep_entries(group_, consumer_, free, options_.min_idle));
    next_claim_ = now;
    cursor_ = "0-0";
  }
  [[nodiscard]] Milliseconds until_delayed(Milliseconds most) {
    const std::lock_guard lock(delayed_mutex_);
    return delayed_.until(most);
  }
  /// A page of what this consumer held when it began; false when there is no more. The cursor moves on, whatever became
  /// of the entries: those that fail come back as idle ones.
  [[nodiscard]] bool own_backlog(std::string& after) {
    auto rows = group_.pending({.from = after, .count = options_.count, .consumer = consumer_}).get();
    if (!succeeded(rows))
      return true;
    if (rows->empty())
      return false;
    after = "(" + rows->back().entry;
    std::vector<string_view> held;
    for (const PendingEntry& row : *rows)
      held.push_back(row.entry);
    const auto kept = keep_entries(group_, consumer_, held);
    if (!succeeded(kept))
      return true;
    // The server forgets those that are not in the stream any more.
    deleted_.fetch_add(kept->gone.size(), std::memory_order_relaxed);
    std::set<std::string, std::less<>> without(kept->gone.begin(), kept->gone.end());
    without.insert(kept->lost.begin(), kept->lost.end());
    std::erase_if(held, [&](string_view entry) { return without.contains(entry); });
    handle_again(held);
    return true;
  }

  void take_over() {
    auto claim = claim_idle(group_, consumer_, options_.min_idle, cursor_, look_).get();
    if (!succeeded(claim))
      return;
    cursor_ = claim->next;
    deleted_.fetch_add(claim->deleted.size(), std::memory_order_relaxed);
    std::vector<string_view> entries(claim->entries.begin(), claim->entries.end());
    if (entries.size() > options_.count)
      give_back(entries);
    next_claim_ = Clock::now() + until_next_look(!entries.empty() || !claim->deleted.empty());
    taken_over_.fetch_add(entries.size(), std::memory_order_relaxed);
    handle_again(entries);
  }
  /// What a wide look has taken beyond a page goes back to whoever comes first.
  void give_back(std::vector<string_view>& entries) {
    const std::string next(entries[options_.count]);
    while (entries.size() > options_.count) {
      const std::size_t some = std::min(kKept, entries.size() - options_.count);
      const std::span<const string_view> last = std::span(entries).last(some);
      // What cannot be given back is handled here.
      if (const auto done = keep_entries(group_, consumer_, last, options_.min_idle); !succeeded(done))
        return;
      entries.resize(entries.size() - some);
    }
    cursor_ = next;
  }
  /// A pass that finds something goes on at once. Where the list is long and none of it idle it goes on by wide looks, one a second, so
  /// that an idle consumer asks as seldom as beside a short one.
  [[nodiscard]] Milliseconds until_next_look(bool found) {
    if (found)
      look_ = options_.count;
    if (cursor_ == "0-0")
      return options_.beat;
    if (found)
      return Milliseconds(0);
    if (look_ < kWideLook) {
      look_ = kWideLook;
      return Milliseconds(0);
    }
    return std::min(options_.beat, kNextLook);
  }

  void read_new() {
    auto entries = ahead_.empty() ? wait_for_new() : take_ahead();
    if (!succeeded(entries))
      return;
    acks_.flush();
    const auto asked = asked_;
    const bool full = entries->size() == options_.count && !pool_;
    if (full && fast_)
      read_ahead();
    const auto begin = Clock::now();
    handle(*entries, asked);
    fast_ = full && Clock::now() - begin < std::min(kFast, options_.min_idle / 10);
  }

  void read_ahead() {
    while (ahead_.size() < kMostAhead)
      ahead_.ask(options_.count);
  }
  [[nodiscard]] Result<std::vector<Delivery>> take_ahead() {
    GroupAhead::Page ahead = ahead_.take();
    asked_ = ahead.touched;
    return std::move(ahead.entries);
  }

  /// Waits on the server up to a beat, or until the next look for idle entries.
  [[nodiscard]] Result<std::vector<Delivery>> wait_for_new() {
    acks_.await(0);
    asked_ = Clock::time_point::max();
    if (!line_)
      return ask_for_new();
    const auto left = std::chrono::ceil<Milliseconds>(next_claim_ - Clock::now());
    Milliseconds block = until_delayed(std::clamp(left, Milliseconds(1), options_.beat));
    if (pool_ && (pool_->held() > 0 || !acks_.empty()))
      block = std::min(block, std::max(std::min(kAckDelay, options_.min_idle / 3), Milliseconds(1)));
    auto entries = wait_new(*line_, group_, consumer_, block, options_.count).get();
    // The slot is on its way, and the stream has gone: the client's own connections follow it.
    if (!entries && entries.error().is(Errc::moved))
      return ask_for_new();
    return entries;
  }
  [[nodiscard]] Result<std::vector<Delivery>> ask_for_new() {
    auto entries = group_.read_new(consumer_, {.count = options_.count}).get();
    if (entries && entries->empty()) {
      sleep(until_delayed(std::min(options_.beat, poll_)));
      poll_ = std::min(2 * poll_, kLongestPoll);
    } else if (entries) {
      poll_ = kPoll;
    }
    return entries;
  }

  /// New ones. `asked`: the earliest moment at which the server may have handed them out, when that is not just now.
  void handle(std::vector<Delivery>& entries, Clock::time_point asked) {
    if (entries.empty())
      return;
    std::vector<string_view> held;
    held.reserve(entries.size());
    for (const Delivery& delivery : entries)
      held.push_back(delivery.entry);
    if (pool_) {
      for (Delivery& delivery : entries)
        to_pool(std::move(delivery), 1, false);
      return;
    }
    keeper_.begin(held, std::min(Clock::now(), asked));
    for (std::size_t i = 0; i < entries.size() && !stopping(); ++i) {
      if (still_mine(i))
        settle(entries[i], 1);
    }
    keeper_.end();
    // They travel with the next request when that is about to be made.
    if (ahead_.empty())
      acks_.flush();
  }

  /// Entries that were handed out before. Each is handed out again in the moment in which its turn comes: one that kills its
  /// consumer is then counted alone, not with all that wait behind it.
  void handle_again(const std::vector<string_view>& held) {
    if (held.empty())
      return;
    if (delayed_now_.load(std::memory_order_relaxed) > 0) {
      const std::lock_guard lock(delayed_mutex_);
      for (const string_view entry : held)
        (void)delayed_.forget(std::string(entry));
      delayed_now_.store(delayed_.size(), std::memory_order_relaxed);
    }
    const auto before = Clock::now();
    bool all_told = false;
    const std::map<std::string, std::uint64_t> counts = deliveries(held, all_told);
    if (pool_)
      return pool_again(held, counts);
    keeper_.begin(held, before);
    for (std::size_t i = 0; i < held.size() && !stopping(); ++i) {
      if (!still_mine(i) || (all_told && !counts.contains(std::string(held[i]))))
        continue;  // others have it by now
      // What was done must not be undone by an entry that kills.
      acks_.flush();
      auto handed = hand_out(group_, consumer_, held[i]).get();
      if (!succeeded(handed))
        continue;
      if (handed->lost) {
        lost_.fetch_add(keeper_.lose(i) ? 1 : 0, std::memory_order_relaxed);
        continue;
      }
      const auto count = counts.find(std::string(held[i]));
      Delivery again =
          std::move(handed->delivery).value_or(Delivery{.entry = std::string(held[i]), .record = std::nullopt});
      settle(again, count == counts.end() ? 2 : count->second + 1);
    }
    keeper_.end();
    acks_.flush();
  }

  /// Their keys are needed before their turn: their records are read without handing them out.
  void pool_again(const std::vector<string_view>& held, const std::map<std::string, std::uint64_t>& counts) {
    const std::vector<std::string> known_list = pool_->entries();
    const std::set<std::string, std::less<>> known(known_list.begin(), known_list.end());
    std::vector<std::pair<string_view, Reply<Page>>> asked;
    for (const string_view entry : held) {
      // One that is in hand has become idle all the same, behind a stall.
      if (!known.contains(entry))
        asked.emplace_back(entry, group_.stream().read(entry, entry, {.count = 1}));
    }
    for (auto& [entry, reply] : asked) {
      auto page = reply.get();
      if (!succeeded(page))
        continue;  // it comes back
      Delivery delivery{.entry = std::string(entry), .record = std::nullopt};
      if (!page->records.empty())
        delivery.record = std::move(page->records.front());
      const auto count = counts.find(delivery.entry);
      to_pool(std::move(delivery), count == counts.end() ? 2 : count->second + 1, true);
    }
  }

  void settle(Delivery& delivery, std::uint64_t attempt) {
    if (!delivery.record) {
      deleted_.fetch_add(1, std::memory_order_relaxed);
      acknowledge(delivery.entry);
    } else if (options_.max_attempts > 0 && attempt > options_.max_attempts) {
      end_with(delivery, attempt);
    } else if (run_handler({*delivery.record, attempt, group_.name()})) {
      handled_.fetch_add(1, std::memory_order_relaxed);
      acknowledge(delivery.entry);
    } else {
      failed_.fetch_add(1, std::memory_order_relaxed);
      if (attempt == options_.max_attempts) {
        end_with(delivery, attempt);
      } else {
        delay(delivery.entry, attempt);
      }
      acks_.flush_old();
    }
  }

  void end_with(Delivery& delivery, std::uint64_t attempt) {
    if (!bury(delivery, attempt))
      return;
    acknowledge(delivery.entry);
    acks_.flush();
  }

  /// How often each was handed out, of those that this consumer has. Entries of one read stand in the order of their ids.
  /// `all_told`: what is missing is not this consumer's.
  [[nodiscard]] std::map<std::string, std::uint64_t> deliveries(std::span<const string_view> held, bool& all_told) {
    const auto most = static_cast<std::uint32_t>(10 * held.size());
    auto rows = group_.pending({.from = held.front(), .to = held.back(), .count = most, .consumer = consumer_}).get();
    std::map<std::string, std::uint64_t> counts;
    if (succeeded(rows)) {
      all_told = rows->size() < most;
      for (const PendingEntry& row : *rows)
        counts[row.entry] = row.deliveries;
    }
    return counts;
  }

  /// Whether the turn of entry `index` of the page has come, and it is still this consumer's.
  [[nodiscard]] bool still_mine(std::size_t index) {
    const Result<bool> mine = keeper_.turn(index);
    if (!mine)
      (void)succeeded(mine);
    return mine.value_or(false);
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

  /// To the dead stream first: an acknowledgement that is lost leaves it there twice, not never. False: it comes back.
  [[nodiscard]] bool bury(Delivery& delivery, std::uint64_t attempts) {
    const Decimal count(attempts);
    std::vector<Field> fields = {{"origin", delivery.entry}};
    if (delivery.record->id)
      fields.emplace_back("origin_id", delivery.record->id->text());
    fields.emplace_back("group", group_.name());
    fields.emplace_back("attempts", count);
    for (const auto& [name, value] : delivery.record->fields)
      fields.emplace_back(name, value);
    const auto buried = dead_->append(fields).get();
    if (pool_ ? !buried : !succeeded(buried))
      return false;
    buried_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  /// A copy: the keeper has a view of the entry.
  void acknowledge(const std::string& entry) {
    if (!pool_)
      keeper_.done();
    acks_.add(entry, pool_ ? options_.count : SIZE_MAX);
  }
  /// One that is lost costs a second run of its records, no more.
  void acknowledged(const Result<std::uint64_t>& answer) {
    if (loop_.load() == std::this_thread::get_id() && !pool_) {
      (void)succeeded(answer);
    } else if (!answer) {
      errors_.fetch_add(1, std::memory_order_relaxed);
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
  std::optional<Stream> dead_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::mutex join_mutex_;
  std::thread thread_;

  // The loop's own.
  std::string cursor_ = "0-0";
  Clock::time_point next_claim_{};
  Clock::time_point touched_{};  ///< what the pool has in hand was
  std::mutex delayed_mutex_;
  DelayedEntries delayed_;  // guarded by delayed_mutex_
  std::uint32_t look_;      ///< entries that a look for idle ones asks for
  std::atomic<std::uint64_t> delayed_now_{0};
  Clock::time_point asked_ = Clock::time_point::max();  ///< when the entries in hand were, if ahead
  bool fast_ = false;  ///< the last page was full, and handled so fast that reading ahead does not pay others badly
  Milliseconds backoff_ = kFirstBackoff;
  Milliseconds poll_ = kPoll;
  std::string last_error_;

  GroupAcks acks_;                   ///< the pool's threads acknowledge too
  std::unique_ptr<GroupPool> pool_;  ///< absent: this loop's thread handles
  GroupAhead ahead_;                 ///< of new entries, then; the keeper's thread keeps them
  GroupKeeper keeper_;               ///< of what it has in hand then
  std::atomic<std::thread::id> loop_{};

  std::atomic<std::uint64_t> handled_{0}, failed_{0}, taken_over_{0}, deleted_{0}, groups_made_{0}, errors_{0},
      buried_{0}, lost_{0};
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
  if (options.min_idle.count() < 1 || options.min_idle > kLongestIdle) {
    return fail(Errc::invalid_argument,
                fmt::format("min_idle must be 1ms to {}ms, got {}ms", kLongestIdle.count(), options.min_idle.count()));
  }
  if (options.beat.count() < 1)
    return fail(Errc::invalid_argument, fmt::format("beat must be 1ms or more, got {}ms", options.beat.count()));
  ECHOMQ_CHECK(check_span("retry_delay", options.retry_delay));
  ECHOMQ_CHECK(check_span("retry_delay_max", options.retry_delay_max));
  ECHOMQ_CHECK(check_count("max_held", options.max_held));
  if (options.concurrency < 1 || options.concurrency > 1000)
    return fail(Errc::invalid_argument, fmt::format("concurrency must be 1 to 1000, got {}", options.concurrency));
  if (!handler)
    return fail(Errc::invalid_argument, "handler must not be empty");
  auto loop = std::make_shared<Loop>(group, consumer, std::move(handler), std::move(options));
  ECHOMQ_CHECK(loop->find_dead());
  ECHOMQ_CHECK(loop->open());
  loop->start();
  return GroupConsumer(std::move(loop));
}

void GroupConsumer::stop() { loop_->stop(); }
GroupConsumerStats GroupConsumer::stats() const { return loop_->stats(); }

}  // namespace v1
}  // namespace echomq
