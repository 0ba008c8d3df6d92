// What is known of a flow's parent.
#include "echomq/flow.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;
using keyspace::Subkey;
using std::string_view;

[[nodiscard]] Reply<ChildTexts> read_texts(const Queue::State& state, string_view verb, JobId parent, Subkey records) {
  const keyspace::KeyText key = state.keys.job_sub(parent, records);
  return state.core->command<ChildTexts>(views(string_view("HGETALL"), key), settings(Repeat::safe),
                                         [verb](const wire::Answer& answer) -> Result<ChildTexts> {
                                           if (!answer.view.is_aggregate())
                                             return unexpected_reply(verb, answer.view);
                                           ChildTexts texts;
                                           for (const auto& [field, value] : answer.view.pairs()) {
                                             ECHOMQ_TRY(const JobId child, JobId::parse(field.as_text().value_or("")));
                                             auto text = value.copy_text();
                                             if (!text)
                                               return unexpected_reply(verb, answer.view);
                                             texts.emplace_back(child, *std::move(text));
                                           }
                                           return texts;
                                         });
}

}  // namespace

Reply<ChildTexts> Flow::children_values(JobId parent) const {
  return read_texts(queue_.internal(), "children_values", parent, Subkey::processed);
}

Reply<ChildTexts> Flow::ignored_failures(JobId parent) const {
  return read_texts(queue_.internal(), "ignored_failures", parent, Subkey::unsuccessful);
}

Reply<ChildTexts> Flow::failures(JobId parent) const {
  return read_texts(queue_.internal(), "failures", parent, Subkey::failed);
}

Reply<std::int64_t> Flow::dependencies(JobId parent) const {
  const Queue::State& state = queue_.internal();
  const keyspace::KeyText key = state.keys.job_sub(parent, Subkey::dependencies);
  return state.core->command<std::int64_t>(views(string_view("GET"), key), settings(Repeat::safe),
                                           [](const wire::Answer& answer) -> Result<std::int64_t> {
                                             if (answer.view.is_null())
                                               return 0;
                                             if (const auto number = answer.view.as_integer())
                                               return *number;
                                             return unexpected_reply("dependencies", answer.view);
                                           });
}

}  // namespace v1
}  // namespace echomq
