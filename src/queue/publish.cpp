// The events channel, the host's side of it.
#include <string>

#include "events/event_text.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

Reply<std::int64_t> Queue::publish(std::string_view event, JobId id,
                                   std::span<const std::pair<std::string_view, std::string_view>> extra) const {
  using namespace queue;
  if (event.empty())
    return fail(Errc::invalid_argument, "event must not be empty");
  ECHOMQ_CHECK(check_text("event", event));
  for (const auto& [name, value] : extra) {
    if (name == "event" || name == "job") {
      return fail(Errc::invalid_argument, fmt::format("extra must not repeat {}", name));
    }
    ECHOMQ_CHECK(check_text(name, value));
  }
  std::string message;
  events::append_event(message, event, id, extra);
  ECHOMQ_CHECK(check_text("the message", message));
  return state_->core->command<std::int64_t>(views(std::string_view("PUBLISH"), state_->keys.events(), message),
                                             settings(Repeat::unsafe), decode_integer("publish"));
}

}  // namespace v1
}  // namespace echomq
