// What operators and idle workers do: pause, remove, reprocess, notes in rows, drain, obliterate, park, reads; and two things
// that peers leave behind: a lock marker and a member without a row. Document 2 sections 7 to 9.
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

Turn remove_job(Stage& stage) {
  std::vector<std::string> all;
  for (const auto& [id, job] : stage.queue.jobs)
    all.push_back(id);
  const std::string id = stage.aimed(all);
  Job* const job = stage.queue.find(id);
  Value reply = Value::integer(1);
  if (job == nullptr) {
    reply = Value::integer(-1);
  } else if (job->lock) {
    reply = Value::error("EMQLOCK job is locked");
  } else {
    const Job was = *job;
    stage.queue.withdraw(id);
    stage.queue.jobs.erase(id);
    if (was.place != Place::dead)  // a death was told before
      stage.queue.child_died(id, was, "removed");
  }
  return one("remove_job",
             {stage.row(id), stage.key("pending"), stage.key("active"), stage.key("schedule"), stage.key("dead"),
              stage.key("de:")},
             {id, ""}, reply);
}

Turn reprocess(Stage& stage) {
  std::vector<std::string> dead = stage.jobs_in(Place::dead);
  // Rather a child that was counted at its death: what follows must not count it again.
  if (stage.command.aim > 1 &&
      std::ranges::any_of(dead, [&](auto& id) { return stage.queue.find(id)->policy == "id"; }))
    std::erase_if(dead, [&](const std::string& id) { return stage.queue.find(id)->policy != "id"; });
  const std::string id = stage.aimed(dead);
  Job* const job = stage.queue.find(id);
  Value reply = Value::integer(1);
  if (job == nullptr) {
    reply = Value::integer(-1);
  } else if (job->place != Place::dead) {
    reply = Value::error("EMQSTATE not dead");
  } else {
    job->last_error.reset();
    stage.queue.wait_again(*job);
    if (job->group)
      stage.queue.ring_rule(*job->group);
    else
      stage.queue.flat_wake(1);
  }
  return one("reprocess", {stage.row(id), stage.key("dead"), stage.key("pending")}, {id}, reply);
}

Turn note(Stage& stage) {
  const std::string id = stage.any_job();
  Job* const job = stage.queue.find(id);
  const std::string words = "n" + text(stage.command.amount);
  const Value gone = Value::integer(-1);
  switch (stage.command.verb) {
    case Verb::update_data:
      if (job != nullptr)
        job->payload = words;
      return one("update_data", {stage.row(id)}, {words}, job != nullptr ? Value::integer(1) : gone);
    case Verb::update_progress:
      if (job != nullptr)
        job->progress = words;
      return one("update_progress", {stage.row(id)}, {words, id, stage.queue.base},
                 job != nullptr ? Value::integer(1) : gone);
    default: break;
  }
  const std::int64_t keep = stage.command.flags % 3;
  const std::vector<std::string> keys{stage.row(id), stage.row(id) + ":logs"};
  const std::vector<std::string> args{words, keep > 0 ? text(keep) : ""};
  if (job == nullptr)
    return one("add_log", keys, args, gone);
  job->logs.push_back(words);
  if (keep > 0 && static_cast<std::int64_t>(job->logs.size()) > keep)
    job->logs.erase(job->logs.begin(), job->logs.end() - keep);
  return one("add_log", keys, args, Value::integer(static_cast<std::int64_t>(job->logs.size())));
}

Turn drain(Stage& stage) {
  const bool schedule_too = stage.command.flags % 2 == 1;
  std::vector<std::string> keys{stage.queue.base, stage.key("pending")};
  const auto discard = [&](const std::vector<std::string>& ids, Place place) {
    for (const std::string& id : ids) {
      const auto at = stage.queue.jobs.find(id);
      if (at == stage.queue.jobs.end() || at->second.place != place)
        continue;  // an earlier one was its child and has killed it
      const Job was = at->second;
      stage.queue.jobs.erase(at);
      stage.queue.child_died(id, was, "drained");
    }
    return static_cast<std::int64_t>(ids.size());
  };
  std::int64_t drained = discard(stage.queue.waiting(std::nullopt), Place::waiting);
  if (schedule_too) {
    keys.push_back(stage.key("schedule"));
    drained += discard(stage.queue.reached(Place::schedule, INT64_MAX, 1000), Place::schedule);
  }
  return one("drain", std::move(keys), {}, Value::integer(drained));
}

/// Deletes one job, and the parents of this queue that are held back for it.
void forget(Queue& queue, const std::string& id) {
  Job was = queue.jobs.at(id);
  queue.jobs.erase(id);
  std::string child = id;
  bool told = was.place == Place::dead;
  while (was.parent) {
    if (was.parent_queue && *was.parent_queue != queue.name) {
      if (!told)
        queue.child_died(child, was, "obliterated");
      return;
    }
    child = *was.parent;
    const Job* const parent = queue.find(child);
    if (parent == nullptr || parent->place != Place::awaiting_children)
      return;
    was = *parent;
    told = false;
    queue.jobs.erase(child);
  }
}

Turn obliterate(Stage& stage) {
  Queue& queue = stage.queue;
  const bool force = stage.command.flags % 4 != 0;
  const std::int64_t budget = stage.command.amount % 2 == 0 ? 1000 : 1 + stage.command.amount % 5;
  Call call{
      "obliterate", {stage.key("meta"), queue.base}, {force ? "force" : "", text(budget)}, Value::integer(0), true};
  const bool busy = !queue.reached(Place::active, INT64_MAX, 1000).empty();
  if (!queue.paused) {
    call.expected = Value::error("EMQSTATE not paused");
    return {call};
  }
  if (busy && !force) {
    call.expected = Value::error("EMQSTATE active jobs present");
    return {call};
  }
  std::vector<std::string> ids = queue.reached(Place::active, INT64_MAX, 1000);
  const auto add = [&ids](const std::vector<std::string>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(queue.waiting(std::nullopt));
  add(queue.reached(Place::schedule, INT64_MAX, 1000));
  add(stage.jobs_in(Place::dead));
  for (std::size_t group = 0; group < kGroups; ++group)
    add(queue.waiting(group_id(group)));
  for (const std::string& id : ids)
    forget(queue, id);
  queue.lanes.clear();
  queue.ring.clear();
  queue.wake = queue.completed = queue.failed = 0;
  queue.paused = false;
  queue.concurrency.reset();
  // Records are found by the registry only.
  std::erase_if(queue.repeats, [](const auto& entry) { return entry.second.run.has_value(); });
  return {call};
}

Turn park(Stage& stage) {
  const std::string name = "w" + text(stage.command.holder);
  if (stage.command.verb == Verb::unpark) {
    const bool was = stage.queue.parked.erase(name) == 1;
    return one("", {}, {"ZREM", stage.key("parked"), name}, Value::integer(was ? 1 : 0));
  }
  const std::int64_t beat = 60'000 + stage.command.amount;  // the key's own expiry runs on the real clock
  const auto until_first = [&](Place place) {
    const auto ids = stage.queue.reached(place, INT64_MAX, 1);
    return ids.empty() ? -1 : std::max<std::int64_t>(0, stage.queue.jobs.at(ids[0]).score - stage.state.now());
  };
  const bool claimable = !stage.queue.paused && !stage.queue.is_maxed() &&
                         (!stage.queue.waiting(std::nullopt).empty() || !stage.queue.ring.empty());
  if (claimable) {
    stage.queue.parked.erase(name);
  } else {
    std::erase_if(stage.queue.parked, [&](const auto& entry) { return entry.second <= stage.state.now(); });
    stage.queue.parked[name] = stage.state.now() + 2 * beat;
    stage.queue.wake = 0;
  }
  std::vector<std::string> keys;
  for (const char* const key : {"pending", "ring", "schedule", "active", "parked", "wake", "meta"})
    keys.push_back(stage.key(key));
  return one("park", std::move(keys), {name, text(beat)},
             Value::array({Value::integer(claimable ? 1 : 0), Value::integer(until_first(Place::schedule)),
                           Value::integer(until_first(Place::active))}));
}

/// The ceiling of jobs in flight, which operators write by hand: a number, or what is none. Claims do not look at it.
Turn set_concurrency(Stage& stage) {
  const bool had = stage.queue.concurrency.has_value();
  if (stage.command.flags == 0) {
    stage.queue.concurrency.reset();
    return one("", {}, {"HDEL", stage.key("meta"), "concurrency"}, Value::integer(had ? 1 : 0));
  }
  stage.queue.concurrency = stage.command.flags == 1   ? "many"
                            : stage.command.flags == 2 ? "-1"
                                                       : text(stage.command.amount % 4);
  return one("", {}, {"HSET", stage.key("meta"), "concurrency", *stage.queue.concurrency}, Value::integer(had ? 0 : 1));
}

/// A peer with a lock plane has marked a job that it holds.
Turn mark_lock(Stage& stage) {
  const std::string id = stage.aimed(stage.jobs_in(Place::active));
  Job* const job = stage.queue.find(id);
  if (job == nullptr || job->place != Place::active)
    return {};
  job->lock = text(job->attempts);
  return one("", {}, {"SET", stage.row(id) + ":lock", *job->lock}, Value::text("OK"));
}

/// A peer has left a member without a row. (In a lane it is on the ring by law 5, as a peer's claim or admission has left it.)
Turn ghost(Stage& stage) {
  const std::string id = ghost_id(stage.index, stage.command.job);
  if (stage.queue.jobs.contains(id))
    return {};
  Job job;
  job.ghost = true;
  std::string set = "pending";
  if (stage.command.aim == 1) {
    job.group = stage.group();
    set = "g:" + *job.group + ":pending";
  } else if (stage.command.aim > 1) {
    job.place = stage.command.aim == 2 ? Place::active : Place::schedule;
    job.score = stage.state.now() + stage.command.amount;
    set = stage.command.aim == 2 ? "active" : "schedule";
  }
  Turn turn = one("", {}, {"ZADD", stage.key(set), text(job.score), id}, Value::integer(1));
  stage.queue.jobs.emplace(id, job);
  if (job.group) {
    Turn ring =
        play_lanes({stage.state, {.verb = Verb::gresume, .group = stage.command.group}, stage.index, stage.queue});
    turn.insert(turn.end(), ring.begin(), ring.end());
  }
  return turn;
}

Turn look(Stage& stage) {
  if (stage.command.flags < 4) {
    const std::string id = stage.any_job();
    const Job* const job = stage.queue.find(id);
    static constexpr const char* kNames[] = {"pending", "active", "scheduled", "dead", "awaiting_children"};
    const char* const where = job == nullptr ? "absent" : kNames[static_cast<std::size_t>(job->place)];
    return one("state_lookup",
               {stage.key("pending"), stage.key("active"), stage.key("schedule"), stage.key("dead"), stage.row(id)},
               {id}, Value::text(where));
  }
  if (stage.command.flags == 4) {
    const auto depth = static_cast<std::int64_t>(stage.queue.waiting(stage.group()).size());
    return one("lane_counts", {stage.queue.base}, {stage.queue.base, stage.group()},
               Value::array({Value::integer(depth)}));
  }
  const auto size = [&](std::size_t members) { return Value::integer(static_cast<std::int64_t>(members)); };
  return one("counts",
             {stage.queue.base, stage.key("pending"), stage.key("active"), stage.key("schedule"), stage.key("dead")},
             {"completed", "failed"},
             Value::array({size(stage.queue.waiting(std::nullopt).size()),
                           size(stage.queue.reached(Place::active, INT64_MAX, 1000).size()),
                           size(stage.queue.reached(Place::schedule, INT64_MAX, 1000).size()),
                           size(stage.jobs_in(Place::dead).size()), Value::integer(stage.queue.completed),
                           Value::integer(stage.queue.failed)}));
}

}  // namespace

Turn play_operate(Stage stage) {
  switch (stage.command.verb) {
    case Verb::queue_pause:
      stage.queue.paused = true;
      return one("queue_pause", {stage.key("meta")}, {}, Value::integer(1));
    case Verb::queue_resume:
      stage.queue.paused = false;
      stage.queue.flat_wake(64);
      return one("queue_resume", {stage.key("meta")}, {}, Value::integer(1));
    case Verb::remove_job: return remove_job(stage);
    case Verb::reprocess: return reprocess(stage);
    case Verb::drain: return drain(stage);
    case Verb::obliterate: return obliterate(stage);
    case Verb::park:
    case Verb::unpark: return park(stage);
    case Verb::set_concurrency: return set_concurrency(stage);
    case Verb::is_maxed:
      return one("is_maxed", {stage.key("meta"), stage.key("active")}, {},
                 stage.queue.is_maxed() ? Value::error("EMQRATE at concurrency ceiling") : Value::integer(0));
    case Verb::mark_lock: return mark_lock(stage);
    case Verb::ghost: return ghost(stage);
    case Verb::look: return look(stage);
    default: return note(stage);
  }
}

}  // namespace echomq::model
