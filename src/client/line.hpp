// A connection of its own for commands that wait on the server, which is where their key's slot is: it follows the slot when that
// changes hands, and a call that the old node has not answered goes along.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "client/live_core.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// A line that tells when it is connected: what `Core::line` of a client gives.
class ToldLine : public Line {
 public:
  /// `on_live` is told of each connection that is made, with its CLIENT ID (0: unknown), on the library's thread; it must not
  /// block. Before the first call.
  virtual void when_live(std::function<void(std::int64_t connection)> on_live) = 0;
};

class FollowingLine final : public MapWatcher,
                            public wire::LinkObserver,
                            public wire::Redirector,
                            public std::enable_shared_from_this<FollowingLine> {
 public:
  /// Its ways to the server that has the slot.
  struct Ways {
    std::function<wire::Endpoint()> where;
    std::function<std::shared_ptr<wire::Link>(const wire::Endpoint&, const std::shared_ptr<FollowingLine>&)> connect;
    // Absent where there is one server only.
    /// Asks where the slot is; `map_changed` is called when that is known.
    std::function<void()> find;
    /// What a node said about who has the slot.
    std::function<void(wire::Link& from, const std::vector<wire::SlotMove>&)> learn;
    /// Runs a function on the library's thread after a short wait.
    std::function<void(std::chrono::milliseconds wait, std::function<void()> function)> later;
  };
  explicit FollowingLine(Ways ways) : ways_(std::move(ways)) {}

  /// Sends a call whose settings are made; takes over its reference.
  void submit(detail::Call* call);
  void close(const Error& why);
  [[nodiscard]] bool closed() const;
  /// As `ToldLine`.
  void when_live(std::function<void(std::int64_t connection)> on_live);

  void map_changed() override;
  void link_live(std::int64_t connection_id) override;
  void link_lost(const Error&) override;
  void link_push(const resp::View&) override {}
  [[nodiscard]] detail::Call::Refusal refusal(const wire::Link& from, std::string_view error_text,
                                              std::vector<wire::SlotMove>& moves) override;
  void redirect(wire::Link& from, wire::CallQueue& calls, const std::vector<wire::SlotMove>& moves) override;
  /// Nobody can: its calls have no source.
  [[nodiscard]] bool withdraw(detail::Call&) override { return false; }

 private:
  using Links = std::vector<std::shared_ptr<wire::Link>>;
  /// Makes the connection be where the slot is; gives what is to be closed without the lock.
  [[nodiscard]] Links move_locked();
  void ask_while_lost();
  static void close_all(const Links& links);

  const Ways ways_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<wire::Link> link_;
  Links left_;  // on other nodes, which still owe an answer
  bool closed_ = false;
  Error close_error_;
  std::function<void(std::int64_t)> on_live_;
  bool asking_ = false;  // `ask_while_lost` goes on
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
