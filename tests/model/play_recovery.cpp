// Time, holders that forget, and what brings their jobs back: promote, reap, sweep_stalled, greap_group. Document 2 sections 6
// and 13, document 3 section 3.11.
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

/// The limit of some calls; the others name none.
struct Limit {
  std::size_t jobs;
  bool given;
};
Limit limit_of(const Stage& stage) {
  return stage.command.flags > 4 ? Limit{static_cast<std::size_t>(stage.command.flags - 4), true} : Limit{100, false};
}

/// Lanes in the order in which jobs name them, each once.
void note_group(std::vector<std::string>& groups, const Job& job) {
  if (job.group && std::ranges::count(groups, *job.group) == 0)
    groups.push_back(*job.group);
}

/// Lanes first, then the hints for flat jobs.
void announce(Queue& queue, const std::vector<std::string>& groups, std::int64_t flat) {
  for (const std::string& group : groups)
    queue.ring_rule(group);
  queue.flat_wake(flat);
}

/// promote and reap differ only in the set they look at.
std::int64_t give_back(Stage& stage, Place from, std::size_t limit) {
  std::vector<std::string> groups;
  std::int64_t flat = 0;
  std::int64_t moved = 0;
  for (const std::string& id : stage.queue.reached(from, stage.state.now(), limit)) {
    Job& job = stage.queue.jobs.at(id);
    if (job.ghost) {
      stage.queue.jobs.erase(id);
      continue;
    }
    stage.queue.wait_again(job);
    note_group(groups, job);
    flat += job.group ? 0 : 1;
    ++moved;
  }
  announce(stage.queue, groups, flat);
  return moved;
}

Turn promote(Stage& stage) {
  const Limit limit = limit_of(stage);
  std::vector<std::string> args{stage.queue.base};
  if (limit.given)
    args.push_back(text(static_cast<std::int64_t>(limit.jobs)));
  const std::int64_t moved = give_back(stage, Place::schedule, limit.jobs);
  return one("promote", {stage.key("schedule"), stage.key("pending")}, std::move(args), Value::integer(moved));
}

Turn reap(Stage& stage) {
  const Limit limit = limit_of(stage);
  std::vector<std::string> args{stage.queue.base};
  if (limit.given)
    args.push_back(text(static_cast<std::int64_t>(limit.jobs)));
  const std::int64_t moved = give_back(stage, Place::active, limit.jobs);
  return one("reap", {stage.key("active"), stage.key("pending")}, std::move(args), Value::integer(moved));
}

Turn sweep_stalled(Stage& stage) {
  const Limit limit = limit_of(stage);
  const std::int64_t allowed = 1 + stage.command.token % 3;
  std::vector<std::string> args{stage.queue.base, text(allowed)};
  if (limit.given)
    args.push_back(text(static_cast<std::int64_t>(limit.jobs)));
  std::vector<std::string> groups;
  std::vector<std::string> died;
  Value::Items recovered;
  Value::Items dead;
  std::int64_t flat = 0;
  const std::int64_t before = stage.queue.active();
  for (const std::string& id : stage.queue.reached(Place::active, stage.state.now(), limit.jobs)) {
    Job& job = stage.queue.jobs.at(id);
    if (job.ghost) {
      stage.queue.jobs.erase(id);
      continue;
    }
    note_group(groups, job);
    if (++job.stalled >= allowed) {
      job.place = Place::dead;
      job.score = 0;
      job.last_error = "stalled";
      ++stage.queue.failed;
      died.push_back(id);
      dead.push_back(Value::text(id));
    } else {
      stage.queue.wait_again(job);
      flat += job.group ? 0 : 1;
      recovered.push_back(Value::text(id));
    }
  }
  announce(stage.queue, groups, flat);
  // Parents hear of it when every lapsed job has its new place: one of them may be a parent.
  for (const std::string& id : died)
    stage.queue.child_died(id, stage.queue.jobs.at(id), "stalled");
  stage.queue.ceiling_wake(before);
  return one("sweep_stalled", {stage.key("active"), stage.key("pending"), stage.key("dead")}, std::move(args),
             Value::array({Value::array(std::move(recovered)), Value::array(std::move(dead))}));
}

Turn greap_group(Stage& stage) {
  const Limit limit = limit_of(stage);
  const std::string group = stage.group();
  std::vector<std::string> args{group};
  if (limit.given)
    args.push_back(text(static_cast<std::int64_t>(limit.jobs)));
  std::int64_t moved = 0;
  for (const std::string& id : stage.queue.reached(Place::active, stage.state.now(), 100)) {
    Job& job = stage.queue.jobs.at(id);
    if (job.group != group || static_cast<std::size_t>(moved) == limit.jobs)
      continue;
    stage.queue.wait_again(job);
    ++moved;
  }
  if (moved > 0)
    stage.queue.ring_rule(group);
  return one("greap_group", {stage.key("active"), stage.queue.base}, std::move(args), Value::integer(moved));
}

/// Seldom far enough for every lease and delay; mostly some ms, and microseconds that round down.
Turn advance(Stage& stage) {
  const std::int64_t ms = stage.command.flags == 7 ? 1000 : stage.command.amount;
  stage.state.micros += ms * 1000 + stage.command.job * 37;
  return one("", {},
             {"HSET", "{emq}:test-clock", "s", text(stage.state.micros / 1'000'000), "us",
              text(stage.state.micros % 1'000'000)},
             Value::integer(0));
}

}  // namespace

Turn play_recovery(Stage stage) {
  switch (stage.command.verb) {
    case Verb::crash: stage.state.holders[stage.command.holder].clear(); return {};
    case Verb::promote: return promote(stage);
    case Verb::reap: return reap(stage);
    case Verb::sweep_stalled: return sweep_stalled(stage);
    case Verb::greap_group: return greap_group(stage);
    default: return advance(stage);
  }
}

}  // namespace echomq::model
