// A tree as it will be admitted.
#include "queue/flow_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "queue/checks.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

class Planner {
 public:
  Planner(FlowGrounds& grounds, client::Core& core) : grounds_(grounds), core_(core) {}

  /// No deeper than the levels that a tree may have.
  [[nodiscard]] Result<void> add(const FlowJob& job, std::size_t parent, std::size_t level) {
    if (level > Flow::kMaxLevels) {
      return fail(Errc::flow_too_deep, fmt::format("a flow has at most {} levels, the root's counted; below {} is one "
                                                   "more",
                                                   Flow::kMaxLevels, plan_.nodes[parent].id.text()));
    }
    ECHOMQ_CHECK(check_text("payload", job.payload));
    ECHOMQ_CHECK(check_run(job.run));
    FlowNode node;
    if (job.id) {
      node.id = *job.id;
    } else {
      ECHOMQ_TRY(const BrandedId minted, core_.mint("JOB"));
      node.id = JobId(minted);
      node.minted = true;
    }
    if (!grounds_.ids.insert(node.id).second)
      return fail(Errc::flow_cycle, fmt::format("the id {} occurs twice", node.id.text()));
    node.payload = job.payload;
    node.parent = parent;
    node.level = level;
    node.on_death = job.on_death;
    node.run = OwnRunFields(job.run);
    node.keys = parent == FlowNode::kNone ? &grounds_.queues.front() : plan_.nodes[parent].keys;
    if (job.queue && *job.queue != node.keys->queue()) {
      if (parent == FlowNode::kNone) {
        return fail(Errc::invalid_argument, fmt::format("queue of the root must be the flow's own, {}, got {}",
                                                        node.keys->queue().text(), job.queue->text()));
      }
      node.keys = &keys_of(*job.queue);
    }
    const std::size_t index = plan_.nodes.size();
    plan_.levels = std::max(plan_.levels, level);
    plan_.nodes.push_back(std::move(node));
    for (const FlowJob& child : job.children) {
      plan_.nodes[index].children.push_back(plan_.nodes.size());
      ECHOMQ_CHECK(add(child, index, level + 1));
    }
    return {};
  }

  [[nodiscard]] FlowPlan take() { return std::move(plan_); }

 private:
  [[nodiscard]] const keyspace::QueueKeys& keys_of(const QueueName& name) {
    for (const keyspace::QueueKeys& keys : grounds_.queues) {
      if (keys.queue() == name)
        return keys;
    }
    return grounds_.queues.emplace_back(name);
  }

  FlowGrounds& grounds_;
  client::Core& core_;
  FlowPlan plan_;
};

}  // namespace

bool FlowPlan::fits_one_script() const noexcept {
  return levels == 2 && nodes.size() - 1 <= kMostOfOneScript &&
         std::all_of(nodes.begin(), nodes.end(), [&](const FlowNode& node) { return node.keys == nodes.front().keys; });
}

Result<FlowPlan> make_flow_plan(FlowGrounds& grounds, const FlowJob& root, client::Core& core) {
  Planner planner(grounds, core);
  ECHOMQ_CHECK(planner.add(root, FlowNode::kNone, 1));
  return planner.take();
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
