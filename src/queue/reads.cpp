// Reads of one job.
#include <utility>

#include "queue/join.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;
using std::string_view;

/// What `state_lookup` answers. It calls a job in its lane pending too.
[[nodiscard]] Result<JobState> read_state(const Value& value) {
  const auto text = value.as_text();
  for (const JobState state : {JobState::pending, JobState::active, JobState::scheduled, JobState::dead,
                               JobState::awaiting_children, JobState::unknown, JobState::absent}) {
    if (text == to_string(state))
      return state;
  }
  return fail(Errc::unknown_state, fmt::format("state: the server answered {}", value.to_string()));
}

}  // namespace

string_view to_string(JobState state) noexcept {
  switch (state) {
    case JobState::pending: return "pending";
    case JobState::active: return "active";
    case JobState::scheduled: return "scheduled";
    case JobState::dead: return "dead";
    case JobState::awaiting_children: return "awaiting_children";
    case JobState::waiting_in_lane: return "waiting_in_lane";
    case JobState::unknown: return "unknown";
    case JobState::absent: return "absent";
  }
  return "unknown";
}

const std::string* JobRow::find(string_view name) const noexcept {
  for (const auto& [field, value] : fields) {
    if (field == name)
      return &value;
  }
  return nullptr;
}

Reply<std::optional<JobRow>> Queue::job(JobId id) const {
  const keyspace::KeyText row = state_->keys.job(id);
  return state_->core->command<std::optional<JobRow>>(views(string_view("HGETALL"), row), settings(Repeat::safe),
                                                      [](const wire::Answer& answer) -> Result<std::optional<JobRow>> {
                                                        if (!answer.view.is_aggregate())
                                                          return unexpected_reply("job", answer.view);
                                                        std::optional<JobRow> job;
                                                        for (const auto& [name, value] : answer.view.pairs()) {
                                                          if (!job)
                                                            job.emplace();
                                                          auto field = name.copy_text();
                                                          auto text = value.copy_text();
                                                          if (!field || !text)
                                                            return unexpected_reply("job", answer.view);
                                                          job->fields.emplace_back(*std::move(field), *std::move(text));
                                                        }
                                                        return job;
                                                      });
}

Reply<JobState> Queue::state(JobId id) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  client::Core& core = *state_->core;
  // `state_lookup` says pending for a job in its lane too; a lane job is one with a group and no place in `pending`.
  auto* join = make_join<JobState>(3, [](std::span<Value> answers) -> Result<JobState> {
    ECHOMQ_TRY(const JobState state, read_state(answers[2]));
    const bool in_lane = state == JobState::pending && answers[0].is_null() && !answers[1].is_null();
    return in_lane ? JobState::waiting_in_lane : state;
  });
  const wire::CallSettings how = settings(Repeat::safe);
  join->ask(core, 0, views(string_view("ZSCORE"), keys.pending(), id.text()), nullptr, how);
  join->ask(core, 1, views(string_view("HGET"), row, string_view("group")), nullptr, how);
  const script::ScriptSource& script = state_->scripts.state_lookup;
  const ScriptParts lookup(script, views(keys.pending(), keys.active(), keys.schedule(), keys.dead(), row),
                           views(id.text()));
  join->ask(core, 2, lookup.parts(), &script, how);
  return join->started();
}

Reply<std::vector<std::string>> Queue::logs(JobId id) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const keyspace::KeyText list = keys.job_sub(id, keyspace::Subkey::logs);
  auto* join = make_join<std::vector<std::string>>(2, [](std::span<Value> answers) -> Result<std::vector<std::string>> {
    if (answers[0].as_integer() != 1)
      return job_gone("logs");
    std::vector<std::string> lines;
    lines.reserve(answers[1].size());
    for (Value& line : answers[1].take_items())
      lines.push_back(line.take_text());
    return lines;
  });
  const wire::CallSettings how = settings(Repeat::safe);
  join->ask(*state_->core, 0, views(string_view("EXISTS"), row), nullptr, how);
  join->ask(*state_->core, 1, views(string_view("LRANGE"), list, string_view("0"), string_view("-1")), nullptr, how);
  return join->started();
}

Reply<bool> Queue::stalled(JobId id) const {
  const keyspace::KeyText row = state_->keys.job(id);
  return state_->core->command<bool>(views(string_view("HGET"), row, string_view("stalled")), settings(Repeat::safe),
                                     [](const wire::Answer& answer) -> Result<bool> {
                                       if (answer.view.is_null())
                                         return false;
                                       const auto count = answer.view.as_integer();
                                       if (!count)
                                         return unexpected_reply("stalled", answer.view);
                                       return *count > 0;
                                     });
}

Reply<std::optional<std::string>> Queue::dedup_holder(DedupId id) const {
  const keyspace::KeyText key = state_->keys.dedup(id);
  return state_->core->command<std::optional<std::string>>(
      views(string_view("GET"), key), settings(Repeat::safe),
      [](const wire::Answer& answer) -> Result<std::optional<std::string>> { return answer.view.copy_text(); });
}

}  // namespace v1
}  // namespace echomq
