// Hears which running jobs shall end.
#include "events/cancel_watch.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "keyspace/keys.hpp"

namespace echomq {
inline namespace v1 {
namespace events {

struct CancelWatch::State : std::enable_shared_from_this<CancelWatch::State> {
  State(const std::shared_ptr<client::Core>& of, const QueueName& queue, CancelHandlers told)
      : core(of), channel(keyspace::QueueKeys(queue).cancel()), handlers(std::move(told)) {}

  void subscribe() {
    const auto open = core.lock();
    if (!open)
      return;
    const std::weak_ptr<State> weak = weak_from_this();
    open->listen(channel, {.on_message =
                               [weak](std::string_view, std::string_view payload) {
                                 if (const auto self = weak.lock())
                                   self->take(payload);
                               },
                           .on_gap =
                               [weak](UnixMillis, UnixMillis) {
                                 if (const auto self = weak.lock())
                                   self->tell_armed();
                               },
                           .at_once = true})
        .then([weak, of = core](Result<Subscription> confirmed) {
          if (const auto self = weak.lock()) {
            self->subscribed(std::move(confirmed));
          } else if (confirmed) {
            end_later(of, *std::move(confirmed));
          }
        });
  }
  void subscribed(Result<Subscription> confirmed) {
    if (confirmed) {
      std::optional<Subscription> late;
      {
        const std::lock_guard lock(mutex);
        (stopped ? late : subscription).emplace(*std::move(confirmed));
      }
      if (late)
        return end_later(core, *std::move(late));
      return tell_armed();
    }
    const auto open = core.lock();
    const Error& error = confirmed.error();
    if (!open || open->closed() || error.is(Errc::client_closed) || error.is(Errc::forked))
      return;
    const std::string text = error.message();
    const LogField fields[] = {{"channel", channel}, {"text", text}};
    open->log(LogLevel::warning, "cancel_watch_failed", fields);
    if (error.is(Errc::no_permission))
      return;
    open->after(std::chrono::milliseconds(500), [weak = weak_from_this()] {
      if (const auto self = weak.lock())
        self->subscribe();
    });
  }
  void take(std::string_view payload) {
    const Result<JobId> job = JobId::parse(payload);
    if (!job) {
      malformed.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const std::lock_guard in_handler(running);
    if (ended)
      return;
    in_handler_on = std::this_thread::get_id();
    heard.fetch_add(1, std::memory_order_relaxed);
    if (handlers.on_cancel)
      handlers.on_cancel(*job);
    in_handler_on = {};
  }
  void tell_armed() {
    const std::lock_guard in_handler(running);
    if (ended)
      return;
    in_handler_on = std::this_thread::get_id();
    armed.fetch_add(1, std::memory_order_relaxed);
    if (handlers.on_armed)
      handlers.on_armed();
    in_handler_on = {};
  }
  void stop() {
    std::optional<Subscription> ending;
    bool by_handler = false;
    {
      const std::lock_guard lock(mutex);
      stopped = true;
      ending.swap(subscription);
    }
    {
      const std::lock_guard wait_for_handler(running);
      ended = true;
      by_handler = in_handler_on == std::this_thread::get_id();
    }
    if (!by_handler)
      return;
    if (ending)
      end_later(core, *std::move(ending));
  }
  /// The end of a subscription waits for the message in hand, which waits for the handler that may be calling this: so it
  /// ends on the library's thread, on its own. Nothing is told meanwhile.
  static void end_later(const std::weak_ptr<client::Core>& of, Subscription&& ending) {
    if (const auto open = of.lock())
      open->after(std::chrono::milliseconds(0), [held = std::make_shared<Subscription>(std::move(ending))] {});
  }

  const std::weak_ptr<client::Core> core;
  const std::string channel;
  const CancelHandlers handlers;

  mutable std::mutex mutex;
  bool stopped = false;                      // guarded by mutex
  std::optional<Subscription> subscription;  // guarded by mutex

  std::recursive_mutex running;   // held while a handler runs
  bool ended = false;             // guarded by running
  std::thread::id in_handler_on;  // guarded by running
  std::atomic<std::uint64_t> heard{0}, malformed{0}, armed{0};
};

CancelWatch::CancelWatch(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

std::unique_ptr<CancelWatch> CancelWatch::start(const std::shared_ptr<client::Core>& core, const QueueName& queue,
                                                CancelHandlers handlers) {
  auto state = std::make_shared<State>(core, queue, std::move(handlers));
  state->subscribe();
  return std::unique_ptr<CancelWatch>(new CancelWatch(std::move(state)));
}

CancelWatch::~CancelWatch() { state_->stop(); }

bool CancelWatch::live() const {
  const std::lock_guard lock(state_->mutex);
  return state_->subscription && state_->subscription->live();
}

CancelWatchStats CancelWatch::stats() const {
  return {.heard = state_->heard.load(std::memory_order_relaxed),
          .malformed = state_->malformed.load(std::memory_order_relaxed),
          .armed = state_->armed.load(std::memory_order_relaxed)};
}

}  // namespace events
}  // namespace v1
}  // namespace echomq
