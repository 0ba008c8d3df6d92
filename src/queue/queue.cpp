// The handle itself.
#include <memory>

#include "queue/state.hpp"

namespace echomq {
inline namespace v1 {

const QueueName& Queue::name() const noexcept { return state_->keys.queue(); }

// Here rather than with the client, which lies below this room and knows a queue by name only.
Queue Client::queue(const QueueName& name) const { return Queue(std::make_shared<const Queue::State>(name, core_)); }

}  // namespace v1
}  // namespace echomq
