// Commands to one node.
#include "client/nodes.hpp"

#include "client/live_core.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

Nodes::Nodes(const Client& client)
    : core_(client.core()), links_(static_cast<LiveCore&>(*core_).topology().every_node()) {}

Reply<Value> Nodes::command(std::size_t node, CommandParts parts) const {
  auto& core = static_cast<LiveCore&>(*core_);
  auto decode = [](const wire::Answer& answer) -> Result<Value> { return resp::to_value(answer.view); };
  auto* call = wire::BoundCall<Value, decltype(decode)>::make(parts, decode);
  call->slot = detail::Call::kAnySlot;
  call->default_target = &core.callbacks();
  call->deadline = detail::Clock::now() + core.options().deadline;
  call->retain();
  detail::CallPointer<detail::CallOf<Value>> mine(call);
  links_[node]->submit(call, !detail::on_library_thread());
  return Reply<Value>(std::move(mine));
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
