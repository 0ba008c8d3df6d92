// enqueue_flow, hold_parent, enqueue_flow_child, and deliveries from the outbox, once or again. Document 3 sections 8 to 10.
#include <algorithm>
#include <array>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

std::string policy_of(unsigned bits) { return (bits & 1U) != 0 ? "id" : "fp"; }

Job& admitted_child(Queue& queue, const std::string& id, const std::string& payload, const std::string& parent,
                    const std::string& policy) {
  Job& job = queue.jobs[id];
  job = Job{};
  job.payload = payload;
  job.parent = parent;
  job.policy = policy;
  return job;
}

void admit_parent(Queue& queue, const std::string& id, const std::string& payload, std::int64_t children) {
  Job& job = queue.jobs[id];
  job = Job{};
  job.payload = payload;
  job.place = Place::awaiting_children;
  queue.families[id] = Family{};  // what a former parent of that id has left goes
  queue.families[id].children = children;
}

/// Parent and children of one queue. A parent that is there already is only met again while it is held.
Turn enqueue_flow(Stage& stage) {
  const std::string parent = stage.fresh_job();
  const Job* const known = stage.queue.find(parent);
  if (known != nullptr && (known->place != Place::awaiting_children || known->parent))
    return {};
  const std::size_t count = 1 + stage.command.amount % 3;
  std::vector<std::string> keys{stage.row(parent), stage.row(parent) + ":dependencies", stage.key("pending")};
  std::vector<std::string> args{parent, "f" + text(stage.command.amount), text(static_cast<std::int64_t>(count))};
  std::vector<std::string> policies;
  std::vector<std::string> children;
  std::int64_t reply = known != nullptr ? 0 : static_cast<std::int64_t>(count);
  for (std::size_t i = 0; children.size() < count; ++i) {
    const std::string child = job_id(stage.index, (stage.command.job + 1 + i) % kJobs);
    if (child == parent)
      continue;
    children.push_back(child);
    policies.push_back(policy_of(stage.command.flags >> (i % 3)));
    keys.push_back(stage.row(child));
    args.insert(args.end(), {child, "c" + text(static_cast<std::int64_t>(i))});
    const Job* const there = stage.queue.find(child);
    const bool ours =
        there != nullptr && there->parent == parent && !there->parent_queue && there->place != Place::dead;
    if (reply > 0 && there != nullptr && !ours)
      reply = -1 - static_cast<std::int64_t>(children.size());
  }
  args.insert(args.end(), policies.begin(), policies.end());
  if (reply > 0) {
    admit_parent(stage.queue, parent, args[1], static_cast<std::int64_t>(count));
    std::int64_t made = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (stage.queue.find(children[i]) != nullptr)
        continue;
      admitted_child(stage.queue, children[i], args[4 + 2 * i], parent, policies[i]);
      ++made;
    }
    stage.queue.flat_wake(made);
  }
  return one("enqueue_flow", std::move(keys), std::move(args), Value::integer(reply));
}

Turn hold_parent(Stage& stage) {
  const std::string parent = stage.fresh_job();
  const Job* const known = stage.queue.find(parent);
  if (known != nullptr && (known->place != Place::awaiting_children || known->parent))
    return {};
  const std::int64_t children = 1 + stage.command.amount % 3;
  const std::string payload = "h" + text(stage.command.amount);
  std::vector<std::string> args{parent, payload, text(children)};
  if (known == nullptr)
    admit_parent(stage.queue, parent, payload, children);
  // A node of a tree: its own parent may be in either queue.
  if (known == nullptr && stage.command.flags % 2 == 1) {
    const std::size_t above = (stage.index + (stage.command.flags >> 1)) % kQueues;
    Job& job = stage.queue.jobs.at(parent);
    for (const auto& [id, family] : stage.state.queues[above].families) {
      if (id == parent || stage.state.queues[above].find(id) == nullptr)
        continue;
      job.parent = id;
      job.policy = policy_of(stage.command.flags >> 2);
      if (above != stage.index)
        job.parent_queue = stage.state.queues[above].name;
      args.insert(args.end(), {id, job.parent_queue.value_or(""), *job.policy});
      break;
    }
  }
  return one("hold_parent", {stage.row(parent), stage.row(parent) + ":dependencies"}, std::move(args),
             Value::integer(known == nullptr ? 1 : 0));
}

/// A child, in this queue, of a parent that was held in either.
Turn enqueue_flow_child(Stage& stage) {
  const std::size_t above = (stage.index + stage.command.flags % 2) % kQueues;
  const Queue& parents = stage.state.queues[above];
  std::vector<std::string> held;
  for (const auto& [id, family] : parents.families)
    held.push_back(id);
  if (held.empty())
    return {};
  const std::string parent = held[stage.command.amount % held.size()];
  const std::string child = stage.fresh_job();
  if (child == parent)
    return {};
  const std::string policy = policy_of(stage.command.flags >> 1);
  const std::string parent_queue = above == stage.index ? "" : parents.name;
  const std::string payload = "k" + text(stage.command.amount);
  std::int64_t reply = 1;
  if (const Job* const there = stage.queue.find(child)) {
    reply = there->parent == parent && there->parent_queue.value_or("") == parent_queue ? 0 : -1;
  } else {
    Job& job = admitted_child(stage.queue, child, payload, parent, policy);
    if (above != stage.index)
      job.parent_queue = parent_queue;
    stage.queue.flat_wake(1);
  }
  return one("enqueue_flow_child", {stage.row(child), stage.key("pending")},
             {child, payload, parent, parent_queue, policy}, Value::integer(reply));
}

std::vector<std::string> split(const std::string& entry, std::size_t most) {
  std::vector<std::string> fields;
  std::size_t from = 0;
  while (fields.size() + 1 < most) {
    const std::size_t nul = entry.find('\0', from);
    fields.push_back(entry.substr(from, nul - from));
    from = nul + 1;
  }
  fields.push_back(entry.substr(from));
  return fields;
}

/// The oldest record is told to its parent; a deliverer that fails before it has removed the record does that again.
Turn deliver(Stage& stage) {
  if (stage.queue.outbox.empty())
    return {};
  const std::string entry = stage.queue.outbox.front();
  Turn turn;
  if (entry.front() != '\0') {
    const auto fields = split(entry, 4);
    Queue& above = *stage.state.queue_of(fields[0]);
    const std::string row = above.base + "job:" + fields[1];
    above.child_done(fields[1], fields[2], fields[3], true);
    turn = one("flow_deliver", {row + ":dependencies", row + ":processed", row},
               {fields[2], fields[3], fields[1], above.base}, Value::integer(1));
  } else {
    const auto fields = split(entry, 7);
    Queue& above = *stage.state.queue_of(fields[2]);
    const std::string row = above.base + "job:" + fields[3];
    above.record_death(fields[3], fields[4], fields[5] == "id", fields[6], true);
    turn = one("flow_fail_deliver", {row + ":dependencies", row + ":failed", row + ":unsuccessful", row},
               {fields[4], fields[6], fields[5], above.base, fields[3]}, Value::integer(1));
  }
  if (stage.command.verb == Verb::deliver) {
    stage.queue.outbox.erase(stage.queue.outbox.begin());
    turn.push_back({"", {}, {"LREM", stage.key("flow:outbox"), "1", entry}, Value::integer(1)});
  }
  return turn;
}

}  // namespace

Turn play_flows(Stage stage) {
  switch (stage.command.verb) {
    case Verb::enqueue_flow: return enqueue_flow(stage);
    case Verb::hold_parent: return hold_parent(stage);
    case Verb::enqueue_flow_child: return enqueue_flow_child(stage);
    default: return deliver(stage);
  }
}

}  // namespace echomq::model
