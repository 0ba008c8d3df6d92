// complete, retry, delay, hand_back, extend_lock, extend_locks. Document 2 sections 5 and 14, document 3 sections 8.3 and 9, with
// what protocol/README.md lists as repaired.
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

/// What a worker presents: a job and the token it believes in.
struct Claimed {
  std::size_t queue;
  std::string id;
  std::string token;
};

Claimed presented(Stage& stage) {
  const Command& command = stage.command;
  std::vector<Held>& hand = stage.state.holders[command.holder];
  Held held{stage.index, stage.any_job(), 0};
  if (command.aim > 0 && !hand.empty()) {
    const auto at = hand.begin() + command.job % static_cast<std::ptrdiff_t>(hand.size());
    held = *at;
    if (command.aim > 1)  // else it will settle this one again
      hand.erase(at);
  } else if (const Job* const job = stage.queue.find(held.id)) {
    held.token = job->attempts;
  }
  const std::int64_t token = command.token == 7   ? held.token - 1
                             : command.token == 8 ? 0
                             : command.token == 9 ? held.token + 1
                                                  : held.token;
  return {held.queue, held.id, text(token)};
}

bool matches(const Job& job, const std::string& token) { return token != "0" && text(job.attempts) == token; }

Turn complete(Stage stage, const std::string& id, const std::string& token) {
  Job* const job = stage.queue.find(id);
  std::vector<std::string> keys{stage.key("active"), stage.row(id)};
  std::vector<std::string> args{id, token, stage.queue.base};
  if (job == nullptr)
    return one("complete", keys, args, Value::integer(0));
  const bool given = stage.command.flags % 2 == 1;
  const std::string result = given ? "r" + text(stage.command.amount) : id;
  const bool other_queue = job->parent_queue && *job->parent_queue != stage.queue.name;
  if (job->parent && (stage.command.flags & 2U) != 0) {  // the long forms of canonical hosts
    const std::string parent = stage.row(*job->parent);
    if (other_queue) {
      keys.push_back(stage.key("flow:outbox"));
      args.insert(args.end(), {*job->parent, result, "xq", *job->parent_queue});
    } else {
      keys.insert(keys.end(), {parent + ":dependencies", parent + ":processed", parent});
      args.insert(args.end(), {*job->parent, result});
    }
  } else if (given) {
    args.insert(args.end(), {"", result});
  }
  if (!matches(*job, token))
    return one("complete", keys, args, Value::error("EMQSTALE complete token mismatch"));

  const Place place = job->place;
  stage.queue.withdraw(id);
  const Job was = *job;
  stage.queue.jobs.erase(id);
  ++stage.queue.completed;
  if (was.parent && other_queue) {
    if (place != Place::dead)  // a death was told before
      stage.queue.outbox.push_back(*was.parent_queue + '\0' + *was.parent + '\0' + id + '\0' + result);
  } else if (was.parent) {
    stage.queue.child_done(*was.parent, id, result, false);
  }
  return one("complete", keys, args, Value::integer(1));
}

Turn retry(Stage stage, const std::string& id, const std::string& token) {
  Job* const job = stage.queue.find(id);
  const std::int64_t delay = stage.command.amount;
  const std::int64_t allowed = std::max(1, stage.command.flags % 4);
  const std::string reason = "e" + text(stage.command.amount);
  std::vector<std::string> keys{stage.key("active"), stage.key("schedule"), stage.key("dead"), stage.row(id)};
  std::vector<std::string> args{id, token, text(delay), text(allowed), reason, stage.queue.base};
  if (job == nullptr)
    return one("retry", keys, args, Value::error("EMQSTALE job gone"));
  if (job->parent && (stage.command.flags & 4U) != 0) {  // the long forms of canonical hosts
    const std::string policy = job->policy == "id" ? "id" : "fp";
    if (job->parent_queue && *job->parent_queue != stage.queue.name) {
      keys.push_back(stage.key("flow:outbox"));
      args.insert(args.end(), {"xq:" + policy, *job->parent_queue, *job->parent});
    } else {
      const std::string parent = stage.row(*job->parent);
      keys.insert(keys.end(), {parent + ":failed", parent + ":unsuccessful", parent + ":dependencies", parent});
      args.insert(args.end(), {"sq:" + policy, *job->parent});
    }
  }
  if (!matches(*job, token))
    return one("retry", keys, args, Value::error("EMQSTALE retry token mismatch"));

  const Place place = job->place;
  if (!stage.queue.withdraw(id))
    return one("retry", keys, args, Value::text(place == Place::dead ? "dead" : "scheduled"));
  job->last_error = reason;
  if (job->attempts - job->handbacks - job->stalled - job->delays < allowed) {
    job->place = Place::schedule;
    job->score = stage.state.now() + delay;
    stage.queue.due_wake(id);
    return one("retry", keys, args, Value::text("scheduled"));
  }
  job->place = Place::dead;
  job->score = 0;
  ++stage.queue.failed;
  stage.queue.child_died(id, *job, reason);
  return one("retry", keys, args, Value::text("dead"));
}

Turn delay(Stage stage, const std::string& id, const std::string& token) {
  Job* const job = stage.queue.find(id);
  const bool relative = stage.command.flags % 2 == 0;
  const std::int64_t value = relative ? stage.command.amount : stage.state.now() + stage.command.amount;
  const std::vector<std::string> keys{stage.row(id), stage.key("active"), stage.key("schedule")};
  const bool counts = stage.command.flags / 2 % 2 == 1;
  std::vector<std::string> args{id, token, relative ? "in" : "at", text(value)};
  if (counts)
    args.emplace_back("count");
  if (job == nullptr)
    return one("delay", keys, args, Value::error("EMQSTALE job gone"));
  if (!matches(*job, token) || job->place == Place::dead)
    return one("delay", keys, args, Value::error("EMQSTALE delay token mismatch"));
  const bool held = job->place == Place::active;
  if (stage.queue.withdraw(id)) {
    job->place = Place::schedule;
    job->score = relative ? stage.state.now() + value : value;
    if (counts && held)
      ++job->delays;
    stage.queue.due_wake(id);
  }
  return one("delay", keys, args, Value::integer(1));
}

Turn hand_back(Stage stage, const std::string& id, const std::string& token) {
  Job* const job = stage.queue.find(id);
  Value reply = Value::integer(0);
  if (job != nullptr && text(job->attempts) != token) {
    reply = Value::error("EMQSTALE hand_back token mismatch");
  } else if (job != nullptr && job->place == Place::active) {
    const std::int64_t before = stage.queue.active();
    stage.queue.wait_again(*job);
    ++job->handbacks;
    if (job->group) {
      stage.queue.ring_rule(*job->group);
      stage.queue.ceiling_wake(before);
    } else {
      stage.queue.flat_wake(1);
    }
    reply = Value::integer(1);
  }
  return one("hand_back", {stage.key("active"), stage.row(id)}, {id, token, stage.queue.base}, reply);
}

Turn extend_lock(Stage stage, const std::string& id, const std::string& token) {
  Job* const job = stage.queue.find(id);
  const std::int64_t lease = 4 + stage.command.amount;
  Value reply = Value::integer(1);
  if (job == nullptr)
    reply = Value::integer(-1);
  else if (text(job->attempts) != token || job->place != Place::active)
    reply = Value::error("EMQSTALE extend token mismatch");
  else
    job->score = stage.state.now() + lease;
  return one("extend_lock", {stage.key("active"), stage.row(id)}, {id, token, text(lease)}, reply);
}

Turn extend_locks(Stage& stage) {
  const std::int64_t lease = 4 + stage.command.amount;
  std::vector<std::string> args{stage.queue.base, text(lease)};
  Value::Items lost;
  for (const Held& held : stage.state.holders[stage.command.holder]) {
    if (held.queue != stage.index)
      continue;
    args.insert(args.end(), {held.id, text(held.token)});
    Job* const job = stage.queue.find(held.id);
    if (job != nullptr && job->attempts == held.token && job->place == Place::active)
      job->score = stage.state.now() + lease;
    else
      lost.push_back(Value::text(held.id));
  }
  return one("extend_locks", {stage.key("active")}, std::move(args), Value::array(std::move(lost)));
}

}  // namespace

Turn play_settle(Stage stage) {
  if (stage.command.verb == Verb::extend_locks)
    return extend_locks(stage);
  const auto [index, id, token] = presented(stage);
  const Stage there{stage.state, stage.command, index, stage.state.queues[index]};
  switch (stage.command.verb) {
    case Verb::retry: return retry(there, id, token);
    case Verb::delay: return delay(there, id, token);
    case Verb::hand_back: return hand_back(there, id, token);
    case Verb::extend_lock: return extend_lock(there, id, token);
    default: return complete(there, id, token);
  }
}

}  // namespace echomq::model
