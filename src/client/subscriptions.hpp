// Subscriptions on a connection of their own: confirmed, restored after a loss, gaps reported.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "echomq/client.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {

namespace client {
class SubscriptionHub;
}  // namespace client

/// What a subscription and the hub share.
struct Subscription::State : std::enable_shared_from_this<Subscription::State> {
  struct Event {
    bool is_gap = false;
    std::string payload = {};
    UnixMillis from = {};  // of a gap, as is the next
    UnixMillis until = {};
  };

  std::string channel;
  client::ChannelHandlers handlers;
  std::weak_ptr<client::SubscriptionHub> hub;
  detail::Target* target = nullptr;

  std::atomic<std::uint64_t> gaps{0};
  std::atomic<bool> live{false};
  std::atomic<std::int64_t> confirmed_on{0};  // CLIENT ID of the connection that confirmed it last

  std::mutex mutex;
  std::deque<Event> events;      // guarded by mutex
  bool scheduled = false;        // guarded by mutex: one run of the handlers is posted or running
  bool cancelled = false;        // guarded by mutex
  std::recursive_mutex running;  // held while a handler runs

  /// Handlers run one at a time and in order: on the executor, where the event waits for its turn, or at once.
  void deliver(Event event);
  void end();

 private:
  static void run(void* raw) noexcept;
  void tell(const Event& event) const;
};

namespace client {

/// The `source` of its calls: the connection that has them may change, and is read by the library's thread.
class SubscriptionHub final : public wire::LinkObserver,
                              public detail::Source,
                              public std::enable_shared_from_this<SubscriptionHub> {
 public:
  /// A connection for subscriptions. `avoided` is null, or a server that was lost: then somewhere else, or null when
  /// there is nowhere else.
  using MakeLink = std::function<std::shared_ptr<wire::Link>(wire::LinkObserver*, const wire::Endpoint* avoided)>;

  struct Ways {
    MakeLink make_link;
    /// As `Core::after`.
    std::function<void(std::chrono::milliseconds, std::function<void()>)> later;
    /// The server has refused to restore a channel. Without a lock.
    std::function<void(std::string_view channel, const Error& why)> refused;
  };

  /// `heartbeat` is that of the connection: a loss is noticed within two of them.
  SubscriptionHub(Ways ways, detail::Target* target, std::chrono::milliseconds deadline,
                  std::chrono::milliseconds heartbeat)
      : ways_(std::move(ways)), target_(target), deadline_(deadline), heartbeat_(heartbeat) {}

  [[nodiscard]] Reply<Subscription> subscribe(std::string_view channel, ChannelHandlers handlers);
  void remove(const std::shared_ptr<Subscription::State>& state);
  void close(const Error& why);
  [[nodiscard]] std::shared_ptr<wire::Link> link() const;
  /// Moves to another node when the connection is down. On the library's thread.
  void leave_lost_node();

  void link_live(std::int64_t connection_id) override;
  void link_lost(const Error& why) override;
  void link_push(const resp::View& frame) override;

  bool drive(bool (*)(void*), void*, detail::Clock::time_point) override { return false; }
  void leave_to_library() noexcept override {}
  void cancel(detail::Call& call) override;

 private:
  struct Channel {
    // Owned by the Subscription, or by the call that will give it.
    std::vector<std::weak_ptr<Subscription::State>> subscribers;
    bool confirmed = false;          // at some time; restored after a loss
    bool refused = false;            // on this connection: it is asked for again
    std::optional<UnixMillis> lost;  // since when messages may be missing
  };
  /// Ends the gap of a channel that is subscribed again; gives where it began.
  [[nodiscard]] UnixMillis end_gap(const std::string& channel, UnixMillis now);
  void restore_locked(const std::string& name, const Channel& channel);
  void refused(const std::string& name, std::uint64_t round, const Error& why);
  /// Asks again for what was refused when the pause is over, unless the connection has been lost meanwhile.
  void ask_again(std::uint64_t round, std::chrono::milliseconds left);

  const Ways ways_;
  detail::Target* const target_;
  const std::chrono::milliseconds deadline_;
  const std::chrono::milliseconds heartbeat_;
  mutable std::mutex mutex_;
  std::shared_ptr<wire::Link> link_;         // guarded by mutex_
  std::map<std::string, Channel> channels_;  // guarded by mutex_
  UnixMillis heard_{};                       // guarded by mutex_: when something was last heard
  bool closed_ = false;                      // guarded by mutex_
  std::int64_t connection_ = 0;              // guarded by mutex_: CLIENT ID of the connection that came to life last
  std::uint64_t round_ = 0;                  // guarded by mutex_: of connections that came to life
  bool asks_again_ = false;                  // guarded by mutex_: a pause of this round is running
  std::chrono::milliseconds pause_{0};       // guarded by mutex_: the next one
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
