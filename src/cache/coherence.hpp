// The connection on which a table hears of others' writes: a subscription, or the server's tracking.
//
// From the moment the connection is lost until the server has confirmed the subscription again, L1 does not serve; what
// it held before is never served again.
//
// In a cluster broadcasts are heard on any node; the changes of rows are told by the node that serves the table's slot, so
// a tracking connection follows the slot. When a slot moves its rows are deleted on the node that had it, of which that
// node tells, and the next read there is answered MOVED: so the move is noticed before anything could be missed.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "cache/frame.hpp"
#include "cache/push.hpp"
#include "client/live_core.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

/// What a table asks of the connection on which it hears. Apart, so that a test can play it.
class Hearing {
 public:
  virtual ~Hearing() = default;
  /// Sends on that connection, in step with what is heard on it; takes over the reference.
  virtual void submit(detail::Call* call, bool may_block) = 0;
  /// The node says that it does not serve the slot (any more). L1 is off until the right one has confirmed.
  virtual void misplaced() = 0;
  virtual void close() = 0;
};

class CoherenceLink final : public Hearing,
                            public client::MapWatcher,
                            public std::enable_shared_from_this<CoherenceLink> {
 public:
  CoherenceLink(Coherence mode, const TableKeys& keys, std::weak_ptr<CoherenceSink> sink);

  /// Connects and waits until the server has confirmed. Errors: unreachable, requires_resp3, the server's.
  [[nodiscard]] Result<void> start(client::LiveCore& core);
  void submit(detail::Call* call, bool may_block) override { link()->submit(call, may_block); }
  void close() override;
  /// Null before `start`.
  [[nodiscard]] std::shared_ptr<wire::Link> link() const;
  void misplaced() override;

  void map_changed() override;

 private:
  /// Hears one connection; what an earlier one still says counts for nothing.
  struct Ear final : wire::LinkObserver {
    Ear(std::weak_ptr<CoherenceLink> of, std::uint64_t which) : owner(std::move(of)), number(which) {}
    void link_live(std::int64_t connection_id) override;
    void link_lost(const Error& why) override;
    void link_push(const resp::View& frame) override;

    const std::weak_ptr<CoherenceLink> owner;
    const std::uint64_t number;
  };

  [[nodiscard]] bool is_current(std::uint64_t number) const;
  void open(const wire::Endpoint& node);
  void live(std::uint64_t number);
  void subscribe(const std::shared_ptr<wire::Link>& with, std::uint64_t number, std::uint64_t round);
  void answered(std::uint64_t number, std::uint64_t round, Result<std::vector<Value>> answers);
  /// Asks again when the pause is over, unless the connection has been lost meanwhile.
  void ask_again(std::uint64_t round, std::chrono::milliseconds left);

  const Coherence mode_;
  const std::string prefix_;
  const std::string channel_;
  const std::weak_ptr<CoherenceSink> sink_;
  const std::uint32_t slot_;
  client::LiveCore* core_ = nullptr;  // since `start`; it outlives its connections, which are what calls this
  std::chrono::milliseconds deadline_{0};

  mutable std::mutex mutex_;
  std::shared_ptr<wire::Link> link_;    // guarded by mutex_
  std::uint64_t number_ = 0;            // guarded by mutex_: of the connection in use
  bool doubted_ = false;                // guarded by mutex_: its node may not be the right one
  bool closed_ = false;                 // guarded by mutex_
  std::uint64_t round_ = 0;             // guarded by mutex_: of connections that came to life
  std::chrono::milliseconds pause_{0};  // guarded by mutex_: before the server is asked again
  std::condition_variable changed_;
  std::optional<Result<void>> first_;  // guarded by mutex_: how the first subscription ended
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
