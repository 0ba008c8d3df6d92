// `CancelToken`: one slot for a reason under a lock.
#include "echomq/cancel.hpp"

#include <mutex>
#include <utility>

namespace echomq {
inline namespace v1 {

struct CancelToken::State {
  std::mutex mutex;
  std::optional<std::string> reason;  // guarded by mutex
};

Cancelled::Cancelled(std::string reason) : std::runtime_error("job cancelled: " + reason), reason_(std::move(reason)) {}

CancelToken::CancelToken() : state_(std::make_shared<State>()) {}

void CancelToken::cancel(std::string reason) const {
  const std::lock_guard lock(state_->mutex);
  state_->reason = std::move(reason);
}

std::optional<std::string> CancelToken::take() const {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->reason, std::nullopt);
}

void CancelToken::throw_if_cancelled() const {
  if (auto reason = take())
    throw Cancelled(*std::move(reason));
}

}  // namespace v1
}  // namespace echomq
