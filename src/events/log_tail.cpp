// Following the log of a queue: a thread that reads on behind its cursor, and waits on the server in between.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "events/event_log_state.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using std::string_view;
using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{50};
constexpr milliseconds kLongestBackoff{1000};
/// How long the answer of a command that waits on the server may be late.
constexpr milliseconds kGrace{5000};
/// Between looks where there is no connection to wait on.
constexpr milliseconds kPoll{500};

}  // namespace

class LogTail::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(const EventLog& log, LogTailOptions options)
      : log_(log), options_(std::move(options)), line_(log.internal().core->line(log.internal().keys.slot())) {}

  [[nodiscard]] Result<void> open() {
    if (options_.from) {
      cursor_ = *options_.from;
      return {};
    }
    ECHOMQ_TRY(const LogInfo info, log_.info().get());
    cursor_ = info.end;
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
  /// For the last owner, which may be a handler: the thread then ends by itself.
  void abandon() {
    stop();
    if (thread_.joinable() && thread_.get_id() == std::this_thread::get_id())
      thread_.detach();
  }

  [[nodiscard]] LogCursor cursor() {
    const std::lock_guard lock(mutex_);
    return cursor_;
  }
  [[nodiscard]] LogTailStats stats() const {
    const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    return {.entries = read(entries_),
            .gaps = read(gaps_),
            .errors = read(errors_),
            .handler_errors = read(handler_errors_)};
  }

 private:
  [[nodiscard]] bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }
  void sleep(milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] { return stopping_; });
  }
  void move_to(const LogCursor& cursor) {
    const std::lock_guard lock(mutex_);
    cursor_ = cursor;
  }

  void run() {
    while (!stopping()) {
      const LogCursor from = cursor();
      auto page = log_.read(from).get();
      if (!page) {
        if (!failed(page.error()))
          return;
        continue;
      }
      backoff_ = kFirstBackoff;
      tell(from, *page);
      if (!page->more && !stopping() && !wait_for_more())
        return;
    }
  }

  void tell(const LogCursor& from, const LogPage& page) {
    if (page.gap) {
      gaps_.fetch_add(1, std::memory_order_relaxed);
      call([&] {
        if (options_.on_gap)
          options_.on_gap(*page.gap);
      });
    }
    // Behind the first of them that many have been passed, when the number behind the last one is known.
    std::optional<std::uint64_t> passed;
    if (page.next.passed)
      passed = *page.next.passed - page.entries.size();
    for (const LogEntry& entry : page.entries) {
      if (stopping())
        return;
      LogCursor behind = LogCursor::parse(entry.id).value_or(from);
      if (passed)
        behind.passed = ++*passed;
      // A handler that asks sees itself included; who dies in it is told again from the cursor that was kept.
      entries_.fetch_add(1, std::memory_order_relaxed);
      call([&] { options_.on_entry(entry, behind); });
      move_to(behind);
    }
    move_to(page.next);
  }

  template <typename Function>
  void call(const Function& function) {
    try {
      function();
    } catch (...) {
      handler_errors_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  /// Until something is written behind the cursor, or a beat has passed. False: the client is gone.
  [[nodiscard]] bool wait_for_more() {
    if (!line_) {
      sleep(std::min(options_.beat, kPoll));
      return true;
    }
    const LogCursor at = cursor();
    const std::string entry = LogCursor{at.milliseconds, at.number, {}}.text();
    const std::string block = std::to_string(options_.beat.count());
    const std::array<string_view, 8> parts = {
        "XREAD", "BLOCK", block, "COUNT", "1", "STREAMS", log_.internal().keys.log(), entry};
    auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
    auto* call = wire::BoundCall<void, decltype(decode)>::make(parts, decode);
    call->slot = log_.internal().keys.slot();
    call->retain();
    detail::CallPointer<detail::CallOf<void>> mine(call);
    wire::CallSettings settings;
    settings.repeat = Repeat::safe;
    settings.deadline = options_.beat + kGrace;
    line_->submit(call, settings);
    auto woken = Reply<void>(std::move(mine)).get();
    return woken || failed(woken.error());
  }

  /// False: there is no going on.
  [[nodiscard]] bool failed(const Error& error) {
    if (stopping() || error.is(Errc::client_closed) || error.is(Errc::forked))
      return false;
    errors_.fetch_add(1, std::memory_order_relaxed);
    sleep(backoff_);
    backoff_ = std::min(2 * backoff_, kLongestBackoff);
    return true;
  }

  const EventLog log_;
  const LogTailOptions options_;
  const std::unique_ptr<client::Line> line_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_, as is cursor_
  LogCursor cursor_;
  std::mutex join_mutex_;
  std::thread thread_;
  milliseconds backoff_ = kFirstBackoff;  // the loop's own

  std::atomic<std::uint64_t> entries_{0}, gaps_{0}, errors_{0}, handler_errors_{0};
};

LogTail::LogTail(std::shared_ptr<Loop> loop) noexcept : loop_(std::move(loop)) {}
LogTail::LogTail(LogTail&&) noexcept = default;
LogTail& LogTail::operator=(LogTail&& other) noexcept {
  std::swap(loop_, other.loop_);
  return *this;
}
LogTail::~LogTail() {
  if (loop_)
    loop_->abandon();
}

Result<LogTail> LogTail::start(const EventLog& log, LogTailOptions options) {
  if (!options.on_entry)
    return fail(Errc::invalid_argument, "on_entry must not be empty");
  if (options.beat.count() < 1)
    return fail(Errc::invalid_argument, "beat must be 1ms or more, got " + std::to_string(options.beat.count()) + "ms");
  auto loop = std::make_shared<Loop>(log, std::move(options));
  ECHOMQ_CHECK(loop->open());
  loop->start();
  return LogTail(std::move(loop));
}

void LogTail::stop() { loop_->stop(); }
LogCursor LogTail::cursor() const { return loop_->cursor(); }
LogTailStats LogTail::stats() const { return loop_->stats(); }

}  // namespace v1
}  // namespace echomq
