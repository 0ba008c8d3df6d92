// The core of an open client: its I/O thread, its connections, its minter.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/callback_thread.hpp"
#include "client/core.hpp"
#include "client/subscriptions.hpp"
#include "client/wake_hubs.hpp"
#include "identity/minter.hpp"
#include "script/executor.hpp"
#include "wire/cluster.hpp"
#include "wire/link.hpp"
#include "wire/topology.hpp"
#include "wire/url.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// Called on the library's thread when the map of a cluster was read, or one of its nodes was lost.
class MapWatcher {
 public:
  virtual void map_changed() = 0;

 protected:
  ~MapWatcher() = default;
};

class FollowingLine;

class LiveCore final : public Core {
 public:
  /// Connects and boots; leases a node id by option.
  [[nodiscard]] static Result<std::shared_ptr<LiveCore>> open(wire::Url url, ClientOptions options);
  ~LiveCore() override;

  void submit(detail::Call* call, wire::CallSettings settings) override;
  [[nodiscard]] Result<BrandedId> mint(std::string_view brand) override;
  [[nodiscard]] Result<identity::Minter::Run> mint_run(std::uint32_t most);
  [[nodiscard]] std::optional<std::uint16_t> node_id() const override;
  [[nodiscard]] std::unique_ptr<WakeWatch> watch(std::string wake_key, std::function<void()> on_wake) override;
  [[nodiscard]] std::unique_ptr<Line> line(std::uint32_t slot) override;
  void mint_past(UnixMillis time) override;
  [[nodiscard]] detail::Source* source() noexcept override { return topology_->source(); }
  [[nodiscard]] detail::Target* continuations() noexcept override { return &callbacks_; }
  void after(std::chrono::milliseconds wait, std::function<void()> function) override;
  [[nodiscard]] std::shared_ptr<detail::LateWakes> late_wakes() override { return late_wakes_; }
  void post(Continuation continuation) override { callbacks_.post(continuation); }
  void log(LogLevel level, std::string_view event, std::span<const LogField> fields) override;
  void count_id_collision() override { counters_.id_collisions.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] const ClientOptions& options() const override { return options_; }
  [[nodiscard]] bool closed() const override { return closed_.load(std::memory_order_acquire); }

  [[nodiscard]] Reply<Subscription> listen(std::string_view channel, ChannelHandlers handlers) override;
  [[nodiscard]] Reply<Subscription> subscribe(std::string_view channel, SubscriptionHandlers handlers);
  [[nodiscard]] Reply<void> ready();
  [[nodiscard]] ClientStats stats() const;
  [[nodiscard]] detail::Target& callbacks() noexcept { return callbacks_; }
  /// A connection of its own for another part of the library, not started; closed with the client. The observer lives
  /// as long as the connection may call it. `subscribes`: it carries subscriptions.
  [[nodiscard]] std::shared_ptr<wire::Link> open_link(std::string_view role, bool subscribes,
                                                      std::shared_ptr<wire::LinkObserver> observer,
                                                      const wire::Endpoint& node);
  /// The server, or the node of a cluster that serves the slot; of `Call::kAnySlot` the one to which publications go.
  [[nodiscard]] wire::Endpoint node_of(std::uint32_t slot) const;
  /// Where a connection that is for this slot should be, when that is another node than the one it has. For
  /// `Call::kAnySlot`: when its node is lost and another is not.
  [[nodiscard]] std::optional<wire::Endpoint> better_node(const wire::Link& link, std::uint32_t slot) const;
  /// Reads a cluster's map again soon; then the watchers are called.
  void read_map();
  void watch_map(std::weak_ptr<MapWatcher> watcher);
  [[nodiscard]] std::string endpoint() const { return url_.to_string(); }
  [[nodiscard]] bool in_cluster() const noexcept { return cluster_ != nullptr; }
  /// Looks up the slot of a call before it is submitted. Errors: cross_slot.
  [[nodiscard]] Result<void> route(detail::Call& call) const { return wire::Cluster::route(call); }
  [[nodiscard]] wire::Topology& topology() noexcept { return *topology_; }
  /// Legal on any thread; on one of the client's own it does not wait for that thread.
  void close();

 private:
  LiveCore(wire::Url url, ClientOptions options);

  [[nodiscard]] wire::LinkSettings link_settings(std::string_view role, const wire::Endpoint& endpoint) const;
  [[nodiscard]] std::shared_ptr<wire::Link> make_link(wire::LinkSettings settings, wire::Repairer* repairer,
                                                      wire::LinkObserver* observer,
                                                      wire::Redirector* redirector = nullptr,
                                                      std::shared_ptr<void> keeps = nullptr);
  /// The log as links use it. `keeps` lives as long as the link does.
  [[nodiscard]] wire::Link::LogFunction log_line(std::shared_ptr<void> keeps = nullptr);
  [[nodiscard]] std::shared_ptr<SubscriptionHub> make_subscriptions(SubscriptionHub::MakeLink make_link);
  void make_standalone();
  void make_cluster();
  void map_changed();
  [[nodiscard]] Result<void> connect();
  [[nodiscard]] bool forked() const noexcept;
  [[nodiscard]] Result<void> may_mint() const;

  [[nodiscard]] Result<void> lease_node();
  struct LeasedNode {
    std::uint16_t node = 0;
    UnixMillis at{};  ///< by the server's clock
  };
  [[nodiscard]] Reply<LeasedNode> ask_for_node(std::optional<std::uint16_t> wanted);
  [[nodiscard]] detail::Clock::time_point valid_until(detail::Clock::time_point sent) const;
  void lease_again();
  void renew_node_later();
  void renew_node();
  void release_node();
  /// A renewal was granted that was asked for at `sent`.
  void extend_lease(detail::Clock::time_point sent);

  const wire::Url url_;
  const ClientOptions options_;
  const std::uint32_t fork_generation_;
  wire::Counters counters_;
  const std::shared_ptr<detail::LateWakes> late_wakes_ = std::make_shared<detail::LateWakes>();
  boost::asio::io_context io_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  CallbackThread callbacks_;
  script::Executor executor_{counters_};      // of a single server
  std::shared_ptr<wire::Link> main_;          // the same; null in a cluster
  std::shared_ptr<wire::Cluster> cluster_;    // null for a single server
  std::shared_ptr<wire::Topology> topology_;  // either of them
  std::unique_ptr<WakeHubs> wake_;
  std::shared_ptr<SubscriptionHub> subscriptions_;
  std::mutex lines_mutex_;
  std::vector<std::weak_ptr<FollowingLine>> lines_;  // guarded by lines_mutex_
  struct ExtraLink {
    std::shared_ptr<wire::LinkObserver> observer;
    std::shared_ptr<wire::Link> link;
  };
  std::mutex extra_mutex_;
  std::vector<ExtraLink> extra_links_;               // guarded by extra_mutex_
  std::vector<std::weak_ptr<MapWatcher>> watchers_;  // guarded by extra_mutex_
  std::mutex after_mutex_;
  std::atomic<bool> closed_{false};  // set under after_mutex_
  std::once_flag shut_once_;
  std::mutex join_mutex_;

  // The lease of the node id.
  std::string owner_;
  std::optional<identity::Minter> minter_;
  std::mutex lease_mutex_;
  bool released_ = false;  // guarded by lease_mutex_
  boost::asio::steady_timer renewal_{io_};

  std::thread io_thread_;
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
