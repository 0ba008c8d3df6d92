// gpause, gresume, glimit, gweight, greassign, gdrain. Document 3 section 3.
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

/// Mostly a lane for which the verb does its work: a paused one to resume, a full one that waits to get another ceiling.
std::string aimed_group(const Stage& stage) {
  std::vector<std::string> groups;
  for (const auto& [group, lane] : stage.queue.lanes) {
    const bool waits = !stage.queue.waiting(group).empty();
    const bool full = lane.ceiling && stage.queue.in_flight(group) >= *lane.ceiling;
    if ((stage.command.verb == Verb::gresume && lane.paused && waits) ||
        (stage.command.verb == Verb::glimit && full && waits && !lane.paused))
      groups.push_back(group);
  }
  return stage.command.aim == 0 || groups.empty() ? stage.group() : groups[stage.command.group % groups.size()];
}

Turn gpause(Stage& stage, const std::string& group) {
  stage.queue.lanes[group].paused = true;
  stage.queue.ring_rule(group);
  return one("gpause", {stage.key("paused"), stage.key("ring")}, {group}, Value::integer(1));
}

Turn gresume(Stage& stage, const std::string& group) {
  stage.queue.lanes[group].paused = false;
  stage.queue.ring_rule(group);
  return one("gresume",
             {stage.key("paused"), stage.key("ring"), stage.key("glimit"), stage.key("gactive"), stage.key("wake")},
             {stage.queue.base, group}, Value::integer(1));
}

Turn glimit(Stage& stage, const std::string& group) {
  const std::int64_t ceiling = 1 + stage.command.flags % 3;
  stage.queue.lanes[group].ceiling = ceiling;
  stage.queue.ring_rule(group);
  return one("glimit",
             {stage.key("glimit"), stage.key("gactive"), stage.key("ring"), stage.key("paused"), stage.key("wake")},
             {stage.queue.base, group, text(ceiling)}, Value::integer(1));
}

Turn gweight(Stage& stage, const std::string& group) {
  const std::int64_t weight = 1 + stage.command.flags % 3;
  stage.queue.lanes[group].weight = weight;
  return one("gweight", {stage.key("gweight")}, {group, text(weight)}, Value::integer(1));
}

Turn greassign(Stage& stage, const std::string& group) {
  std::vector<std::string> candidates;
  for (const auto& [id, job] : stage.queue.jobs) {
    if (job.place == Place::waiting && job.group && !job.ghost)
      candidates.push_back(id);
  }
  const std::string id = stage.aimed(candidates);
  Job* const job = stage.queue.find(id);
  std::int64_t reply = 1;
  if (job == nullptr || !job->group) {
    reply = -1;
  } else if (job->place != Place::waiting) {
    reply = -2;
  } else if (*job->group == group) {
    reply = 0;
  } else {
    const std::string source = *std::exchange(job->group, group);
    stage.queue.ring_rule(group);
    stage.queue.ring_rule(source);
  }
  return one("greassign",
             {stage.row(id), stage.lane(group), stage.key("ring"), stage.key("paused"), stage.key("glimit"),
              stage.key("gactive"), stage.key("wake")},
             {id, group, stage.queue.base}, Value::integer(reply));
}

Turn gdrain(Stage& stage, const std::string& group) {
  const auto ids = stage.queue.waiting(group);
  for (const std::string& id : ids) {
    const Job was = stage.queue.jobs.at(id);
    stage.queue.jobs.erase(id);
    stage.queue.child_died(id, was, "drained");
  }
  stage.queue.ring_rule(group);
  return one("gdrain", {stage.queue.base, stage.lane(group), stage.key("ring")}, {group},
             Value::integer(static_cast<std::int64_t>(ids.size())));
}

}  // namespace

Turn play_lanes(Stage stage) {
  const std::string group = aimed_group(stage);
  switch (stage.command.verb) {
    case Verb::gpause: return gpause(stage, group);
    case Verb::gresume: return gresume(stage, group);
    case Verb::glimit: return glimit(stage, group);
    case Verb::gweight: return gweight(stage, group);
    case Verb::greassign: return greassign(stage, group);
    default: return gdrain(stage, group);
  }
}

}  // namespace echomq::model
