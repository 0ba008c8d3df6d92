// Hears on a queue's channel `emq:{q}:cancel` which running jobs shall end.
//
// All watches of a client share its connection for subscriptions, however many queues they are of. What is published while
// nobody hears stays in the rows (field `cancel`): whoever is told `on_armed` asks the script `marks` for what it holds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "client/core.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"

namespace echomq {
inline namespace v1 {
namespace events {

/// Both are called on a thread of the library or on the client's executor, one at a time, and must not block.
struct CancelHandlers {
  /// The job may be anybody's, or nobody's any more.
  std::function<void(const JobId&)> on_cancel;
  /// From now on requests are heard; those of before may have been missed. At the start, and after each loss.
  std::function<void()> on_armed;
};

struct CancelWatchStats {
  std::uint64_t heard = 0;
  std::uint64_t malformed = 0;  ///< messages that are no id
  std::uint64_t armed = 0;
};

/// Ends with its destruction: no handler runs after that (it waits for one that is running, unless it is called from it).
class CancelWatch {
 public:
  /// `core` is the client's own. Begins to subscribe and returns at once; what fails is tried again, but for a lack of permission, which is logged.
  [[nodiscard]] static std::unique_ptr<CancelWatch> start(const std::shared_ptr<client::Core>& core,
                                                          const QueueName& queue, CancelHandlers handlers);
  CancelWatch(const CancelWatch&) = delete;
  CancelWatch& operator=(const CancelWatch&) = delete;
  ~CancelWatch();

  /// Whether the channel is subscribed on a connection that is open now.
  [[nodiscard]] bool live() const;
  [[nodiscard]] CancelWatchStats stats() const;

 private:
  struct State;
  explicit CancelWatch(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

}  // namespace events
}  // namespace v1
}  // namespace echomq
