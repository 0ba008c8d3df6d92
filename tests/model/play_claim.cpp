// claim, bclaim, gclaim, gwclaim, gbclaim. Document 2 section 4, document 3 sections 3.2 to 3.4 and 6.
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

/// Takes up to `wanted` jobs from the front of a waiting set and leases them; members without a row are dropped on the way.
Value::Items take(Stage& stage, const std::optional<std::string>& group, std::int64_t wanted, std::int64_t lease) {
  Value::Items served;
  for (const std::string& id : stage.queue.waiting(group)) {
    if (static_cast<std::int64_t>(served.size()) >= wanted)
      break;
    Job& job = stage.queue.jobs.at(id);
    if (job.ghost) {
      stage.queue.jobs.erase(id);
      continue;
    }
    const std::int64_t token = stage.queue.lease(job, stage.state.now() + lease);
    stage.hold(id, token);
    Value::Items entry{Value::text(id), Value::text(job.payload), Value::integer(token)};
    if (group)
      entry.push_back(Value::text(*group));
    served.push_back(Value::array(std::move(entry)));
  }
  return served;
}

Turn flat(Stage& stage, bool batch, std::int64_t lease) {
  const std::int64_t size = batch ? 1 + stage.command.flags % 4 : 1;
  Value::Items served;
  if (!stage.queue.paused)
    served = take(stage, std::nullopt, size, lease);
  const std::vector<std::string> keys{stage.key("pending"), stage.key("active")};
  if (batch)
    return one("bclaim", keys, {stage.row(""), text(lease), text(size)}, Value::array(std::move(served)));
  return one("claim", keys, {stage.row(""), text(lease)}, served.empty() ? Value::array({}) : served.front());
}

std::int64_t wanted_of(const Queue& queue, const std::string& group, Verb verb, std::int64_t most) {
  const Lane& lane = queue.lanes.at(group);
  std::int64_t wanted = verb == Verb::gbclaim ? most : verb == Verb::gwclaim ? lane.weight.value_or(1) : 1;
  wanted = std::min(wanted, most);
  return lane.ceiling ? std::min(wanted, *lane.ceiling - queue.in_flight(group)) : wanted;
}

/// One turn of the ring: the head goes to the tail and is served; lanes that hold ghosts only are passed by.
Turn turn_of(Stage& stage, std::int64_t lease) {
  const Verb verb = stage.command.verb;
  const bool limited = verb != Verb::gclaim && stage.command.flags > 4;
  const std::int64_t most = limited ? stage.command.flags - 4 : 1000;
  Queue& queue = stage.queue;
  Value::Items served;
  while (!queue.paused && served.empty() && !queue.ring.empty()) {
    const std::string group = queue.ring.front();
    std::ranges::rotate(queue.ring, queue.ring.begin() + 1);
    served = take(stage, group, wanted_of(queue, group, verb, most), lease);
    queue.ring_rule(group);
  }
  std::vector<std::string> args{queue.base, text(lease)};
  if (limited)
    args.push_back(text(most));
  const std::vector<std::string> keys{stage.key("ring"), stage.key("active")};
  if (verb == Verb::gclaim)
    return one("gclaim", keys, args, served.empty() ? Value::array({}) : served.front());
  return one(name_of(verb), keys, args, Value::array(std::move(served)));
}

}  // namespace

Turn play_claim(Stage stage) {
  const std::int64_t lease = 4 + stage.command.amount;
  switch (stage.command.verb) {
    case Verb::claim: return flat(stage, false, lease);
    case Verb::bclaim: return flat(stage, true, lease);
    default: return turn_of(stage, lease);
  }
}

}  // namespace echomq::model
