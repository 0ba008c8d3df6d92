// The calls of the vocabulary that end jobs from outside.
#include <optional>
#include <vector>

#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/queue.hpp"
#include "queue/cancel.hpp"

namespace echomq::conformance {
namespace {

json::value cancel_job(Caller& c) {
  return c.value(c.queue().cancel(c.args.id()),
                 [](CancelVerdict verdict) { return ok(json::string(to_string(verdict))); });
}

json::value cancel_marks(Caller& c) {
  std::vector<JobId> held;
  for (const json::value& id : c.args.fields.at("ids").as_array())
    held.push_back(good(JobId::parse(text_of(id))));
  return c.value(queue::marked_of(c.queue(), held), [](const std::vector<JobId>& marked) { return ok(ids(marked)); });
}

}  // namespace

std::optional<Outcome> make_cancel_call(const Client& client, std::string_view call, std::string_view queue,
                                        const json::object& args) {
  const auto verb = call == "cancel_job" ? cancel_job : call == "cancel_marks" ? cancel_marks : nullptr;
  if (verb == nullptr)
    return std::nullopt;
  Outcome outcome;
  try {
    Caller caller(client.queue(good(QueueName::parse(queue))), args);
    outcome.result = verb(caller);
    outcome.error_text = caller.error_text;
  } catch (const Raised& raised) {
    outcome.result = json::object{{"raises", raised.why}};
    outcome.error_text = raised.why;
  }
  return outcome;
}

}  // namespace echomq::conformance
