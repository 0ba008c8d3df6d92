// enqueue, genqueue, schedule, admit. Document 2 section 3, document 3 section 3.1, protocol/README.md "Extensions".
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

const Value kWrongKind = Value::error("EMQKIND job id must be JOB-namespaced");

/// Seldom an id of another kind.
std::string job_or_wrong(const Stage& stage) {
  return stage.command.token == 9 && stage.command.flags == 7 ? stage.group() : stage.fresh_job();
}

Job& admitted(Queue& queue, const std::string& id, const std::string& payload) {
  Job& job = queue.jobs[id];
  job = Job{};
  job.payload = payload;
  return job;
}

/// Mode and value of an admission to schedule, and the due time they mean.
struct Due {
  std::string mode;
  std::string value;
  std::int64_t at;
};
Due due_of(const Stage& stage) {
  const std::int64_t delay = stage.command.amount;
  if (stage.command.flags % 2 == 0)
    return {"in", text(delay), stage.state.now() + delay};
  const std::int64_t at = stage.state.now() + delay - 8;  // the past is allowed
  return {"at", text(at), at};
}

Turn enqueue(const Stage& stage) {
  const std::string id = job_or_wrong(stage);
  const std::string payload = "p" + text(stage.command.amount);
  Value reply = Value::integer(0);
  if (!id.starts_with("JOB")) {
    reply = kWrongKind;
  } else if (stage.queue.find(id) == nullptr) {
    admitted(stage.queue, id, payload);
    stage.queue.flat_wake(1);
    reply = Value::integer(1);
  }
  return one("enqueue", {stage.row(id), stage.key("pending")}, {id, payload}, reply);
}

Turn genqueue(const Stage& stage) {
  const std::string id = job_or_wrong(stage);
  const std::string group = stage.group();
  const std::string payload = "g" + text(stage.command.amount);
  Value reply = Value::integer(0);
  if (!id.starts_with("JOB")) {
    reply = kWrongKind;
  } else if (stage.queue.find(id) == nullptr) {
    admitted(stage.queue, id, payload).group = group;
    stage.queue.ring_rule(group);
    reply = Value::integer(1);
  }
  return one("genqueue",
             {stage.row(id), stage.lane(group), stage.key("ring"), stage.key("paused"), stage.key("glimit"),
              stage.key("gactive"), stage.key("wake")},
             {id, payload, group}, reply);
}

void put_into_schedule(Queue& queue, const std::string& id, std::int64_t due) {
  Job& job = queue.jobs.at(id);
  job.place = Place::schedule;
  job.score = due;
}

Turn schedule(const Stage& stage) {
  const std::string id = job_or_wrong(stage);
  const std::string payload = "s" + text(stage.command.amount);
  const Due due = due_of(stage);
  Value reply = Value::integer(0);
  if (!id.starts_with("JOB")) {
    reply = kWrongKind;
  } else if (stage.queue.find(id) == nullptr) {
    admitted(stage.queue, id, payload);
    put_into_schedule(stage.queue, id, due.at);
    stage.queue.due_wake(id);
    reply = Value::integer(1);
  }
  return one("schedule", {stage.row(id), stage.key("schedule")}, {id, payload, due.mode, due.value}, reply);
}

Turn admit(const Stage& stage) {
  const bool grouped = (stage.command.flags & 2U) != 0;
  const bool scheduled = (stage.command.flags & 4U) != 0;
  const std::string group = grouped ? stage.group() : "";
  const Due due = scheduled ? due_of(stage) : Due{"", "", 0};
  std::vector<std::string> args{stage.queue.base, group, due.mode, due.value};
  std::vector<std::string> made;
  Value::Items verdicts;
  for (std::size_t i = 0; i <= stage.command.amount % 4; ++i) {
    const bool wrong = stage.command.token == 8 && i == 1;
    const std::string id = wrong ? group_id(i) : job_id(stage.index, (stage.command.job + i * i) % kJobs);
    args.push_back(id);
    args.push_back("a" + text(static_cast<std::int64_t>(i)));
    if (wrong) {
      verdicts.push_back(Value::integer(-2));
    } else if (stage.queue.find(id) != nullptr) {
      verdicts.push_back(Value::integer(0));
    } else {
      Job& job = admitted(stage.queue, id, args.back());
      if (grouped)
        job.group = group;
      if (scheduled)
        put_into_schedule(stage.queue, id, due.at);
      made.push_back(id);
      verdicts.push_back(Value::integer(1));
    }
  }
  if (!made.empty() && scheduled) {
    std::ranges::sort(made);  // one score for all: the oldest is the earliest of them
    stage.queue.due_wake(made.front());
  } else if (!made.empty() && grouped) {
    stage.queue.ring_rule(group);
  } else {
    stage.queue.flat_wake(static_cast<std::int64_t>(made.size()));
  }
  std::vector<std::string> keys;
  for (const char* const key : {"pending", "schedule", "ring", "paused", "glimit", "gactive", "wake", "parked"})
    keys.push_back(stage.key(key));
  return one("admit", std::move(keys), std::move(args), Value::array(std::move(verdicts)));
}

}  // namespace

Turn play_admission(Stage stage) {
  switch (stage.command.verb) {
    case Verb::genqueue: return genqueue(stage);
    case Verb::schedule: return schedule(stage);
    case Verb::admit: return admit(stage);
    default: return enqueue(stage);
  }
}

}  // namespace echomq::model
