// The connection on which a table hears of others' writes: a subscription, or the server's tracking.
//
// From the moment the connection is lost until the server has confirmed the subscription again, L1 does not serve; what
// it held before is never served again.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "cache/frame.hpp"
#include "cache/push.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace client {
class LiveCore;
}  // namespace client
namespace cache {

class CoherenceLink final : public wire::LinkObserver, public std::enable_shared_from_this<CoherenceLink> {
 public:
  CoherenceLink(Coherence mode, const TableKeys& keys, std::weak_ptr<CoherenceSink> sink);

  /// Connects and waits until the server has confirmed. Errors: unreachable, requires_resp3, the server's.
  [[nodiscard]] Result<void> start(client::LiveCore& core);
  void close();
  /// Null before `start`.
  [[nodiscard]] const std::shared_ptr<wire::Link>& link() const noexcept { return link_; }

  void link_live(std::int64_t connection_id) override;
  void link_lost(const Error& why) override;
  void link_push(const resp::View& frame) override;

 private:
  void answered(Result<std::vector<Value>> answers);

  const Coherence mode_;
  const std::string prefix_;
  const std::string channel_;
  const std::weak_ptr<CoherenceSink> sink_;
  std::shared_ptr<wire::Link> link_;
  std::chrono::milliseconds deadline_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<void>> first_;  // guarded by mutex_: how the first subscription ended
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
