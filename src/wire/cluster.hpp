// A cluster: who serves which slot, one pipelined connection to each node, and calls that follow their slot.
//
// The map comes from CLUSTER SLOTS of any node. MOVED changes one slot of it at once and asks for the whole again; so
// do lost connections and CLUSTERDOWN, all of them together at a bounded rate. A call that a node refused with MOVED
// had no effect there and goes to the node it names.
//
// Order: calls of one slot are carried out as they were started, as long as nothing is lost. When a slot changes hands
// while calls on it await the old node's answer (which will be MOVED), later ones are held back until those have gone
// before them, for a bounded time. What is held counts against the in-flight bound.
//
// While a slot is on its way, the node that has it answers ASK for keys that have gone: such a call goes to the other node
// behind ASKING, and the map stays as it is. A call whose keys are divided between the two (TRYAGAIN) is tried again after a
// pause, before the later ones of its slot, until its deadline; what was in flight behind it then overtakes it.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "keyspace/slot.hpp"
#include "wire/link.hpp"
#include "wire/slot_map.hpp"
#include "wire/topology.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// The `source` of calls that are answered by others, of whatever nodes: these are read by the library's thread.
class Cluster final : public Topology,
                      public Redirector,
                      public detail::Source,
                      public std::enable_shared_from_this<Cluster> {
 public:
  using TimePoint = detail::Clock::time_point;

  /// Makes a connection to a node, with a script executor of its own.
  using Connect = std::function<std::shared_ptr<Link>(const Endpoint&, Redirector*, LinkObserver*)>;

  struct Settings {
    std::vector<Endpoint> seeds;
    std::chrono::milliseconds connect_timeout{3000};
  };

  /// `on_change` runs on the library's thread when the map was read or a node was lost.
  Cluster(boost::asio::io_context& io, Settings settings, Connect connect, Counters& counters, Link::LogFunction log,
          std::function<void()> on_change);
  ~Cluster() override;

  /// Reads the map from the first seed that gives one, and checks the version fence at its owner. Blocks.
  [[nodiscard]] Result<void> open();

  void submit(detail::Call* call, bool may_block) override {
    submit_or(call, may_block ? AtBound::wait : AtBound::refuse);
  }
  void submit_past_bound(detail::Call* call) override { submit_or(call, AtBound::pass); }
  void submit_internal(detail::Call* call) override;
  [[nodiscard]] detail::Source* source() noexcept override { return this; }
  bool drive(bool (*)(void*), void*, TimePoint) override { return false; }
  void leave_to_library() noexcept override {}
  void cancel(detail::Call& call) override;
  void when_ready(detail::CallOf<void>* waiter) override;
  [[nodiscard]] std::size_t pending() const override;
  [[nodiscard]] bool live() const override;
  void close(const Error& why) override;

  [[nodiscard]] detail::Call::Refusal refusal(const Link& from, std::string_view error_text,
                                              std::vector<SlotMove>& moves) override;
  void redirect(Link& from, CallQueue& calls, const std::vector<SlotMove>& moves) override;
  [[nodiscard]] bool withdraw(detail::Call& call) override;

  /// Asks for the map soon. From any thread.
  void want_refresh();
  /// The node that serves the slot, or any when nobody does.
  [[nodiscard]] Endpoint owner_of(std::uint32_t slot) const;
  /// The pipelined connection to that node.
  [[nodiscard]] std::shared_ptr<Link> link_to(const Endpoint& node);
  /// A node to which there is a connection, and which is not `avoided`; null when there is none.
  [[nodiscard]] std::unique_ptr<Endpoint> live_node(const Endpoint* avoided) const;
  [[nodiscard]] bool is_connected(const Endpoint& node) const;
  [[nodiscard]] std::vector<std::shared_ptr<Link>> every_node() override;
  /// Sets the slot of a call from its keys. Errors: cross_slot.
  [[nodiscard]] static Result<void> route(detail::Call& call);

 private:
  enum class AtBound : std::uint8_t { wait, refuse, pass };
  void submit_or(detail::Call* call, AtBound at_bound);

  struct Node final : LinkObserver {
    Node(Cluster& of, Endpoint at) : cluster(of), endpoint(std::move(at)) {}
    void link_live(std::int64_t) override {}
    void link_lost(const Error&) override { cluster.node_lost(); }
    void link_push(const resp::View&) override {}

    Cluster& cluster;
    const Endpoint endpoint;
    std::shared_ptr<Link> link;  // opened on first use
    bool serves = false;         // by the newest map
    TimePoint asked{};           // when a call last went there behind ASKING
  };
  /// Calls on a slot that wait for earlier ones to come back from the node that had it.
  struct Held {
    Node* from = nullptr;  // null: only time lets them go
    TimePoint until;
    CallQueue moved;  // refused by `from`: go first
    CallQueue later;  // guarded by held_mutex_, the rest by mutex_
  };
  struct Way {
    std::shared_lock<std::shared_mutex> lock;  // of mutex_, as long as the rest is used
    Held* held = nullptr;                      // the call goes behind these
    Link* link = nullptr;                      // what it is sent on, or the one whose answers it is held for
  };
  using Ranges = std::vector<SlotRange>;
  using Lock = std::unique_lock<std::shared_mutex>;

  void end(detail::Call* call, const Error& why);
  [[nodiscard]] static bool is_live(const Node* node);
  [[nodiscard]] Node* node_of(std::uint32_t slot) const;
  [[nodiscard]] Node* any_node() const;
  [[nodiscard]] Node& node_at(const Endpoint& endpoint);
  [[nodiscard]] Link& link_of(Node& node);

  [[nodiscard]] Way way_of(detail::Call* call);
  [[nodiscard]] Held* held_at(std::uint32_t slot);
  void hold(CallQueue& among, detail::Call* call);
  void expire_held(CallQueue& late);
  void wait_for_let_go(std::uint64_t seen, TimePoint until);
  void note_let_go(const CallQueue& calls);
  void ask_whether_ready();
  void change_hands(const std::vector<std::pair<std::uint32_t, Node*>>& changes);
  void let_go();
  void keep_watch();
  void node_lost();

  void refresh();
  void ask(const std::shared_ptr<Link>& link, std::function<void(Result<Ranges>)> then);
  void refreshed(Result<Ranges> ranges);
  void apply(const Ranges& ranges);

  boost::asio::io_context& io_;
  const Settings settings_;
  const Connect connect_;
  Counters& counters_;
  const Link::LogFunction log_;
  const std::function<void()> on_change_;

  mutable std::shared_mutex mutex_;
  // Guarded by mutex_. Nodes are never forgotten: calls point to their links.
  std::vector<std::unique_ptr<Node>> nodes_;
  std::array<Node*, keyspace::kSlots> slots_{};
  std::map<std::uint32_t, Held> held_;
  std::vector<std::shared_ptr<Link>> retired_;  // of nodes that serve nothing any more: calls may point to them
  bool closed_ = false;
  Error close_error_;
  std::mutex held_mutex_;
  std::condition_variable released_;
  std::uint64_t releases_ = 0;                              // guarded by held_mutex_
  std::vector<detail::CallOf<void>*> ready_waiters_;        // guarded by held_mutex_
  std::atomic<std::size_t> held_calls_{0}, held_bytes_{0};  // change under held_mutex_ or mutex_ in whole
  TimePoint held_deadline_ = TimePoint::max();              // none of what is held ends sooner; guarded like these

  std::atomic<bool> refresh_wanted_{false};
  // The library's thread only.
  boost::asio::steady_timer refresh_timer_;
  boost::asio::steady_timer watch_timer_;
  bool refreshing_ = false;
  bool watching_ = false;
  TimePoint last_refresh_{};
  std::size_t next_asked_ = 0;
  std::shared_ptr<Link> asked_;  // a connection for one question, when no node is connected
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
