// A tree as it will be admitted: checked, its ids minted, its texts owned, since its admission takes steps.
#pragma once

#include <cstddef>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "client/core.hpp"
#include "echomq/flow.hpp"
#include "keyspace/keys.hpp"
#include "queue/run_fields.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// One node; indexes are those of the plan.
struct FlowNode {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  JobId id;
  bool minted = false;
  std::string payload;
  const keyspace::QueueKeys* keys = nullptr;  ///< of its queue
  std::size_t parent = kNone;
  std::size_t level = 1;
  ChildDeath on_death = ChildDeath::fails_parent;
  std::vector<std::size_t> children;
  OwnRunFields run;

  [[nodiscard]] std::string_view policy() const noexcept { return on_death == ChildDeath::is_ignored ? "id" : "fp"; }
};

struct FlowPlan {
  /// Leaves of one script. More are admitted one by one, after their parent.
  static constexpr std::size_t kMostOfOneScript = 1000;

  std::vector<FlowNode> nodes;  ///< as a walk that goes down first meets them
  std::size_t levels = 1;

  /// Whether it is a parent with leaves, all in one queue.
  [[nodiscard]] bool fits_one_script() const noexcept;
};

/// What the trees of one call share. Nodes point into it, also after it has moved.
struct FlowGrounds {
  explicit FlowGrounds(const keyspace::QueueKeys& own) : queues{own} {}

  std::list<keyspace::QueueKeys> queues;  ///< the roots' first
  std::set<BrandedId> ids;                ///< of all nodes so far
};

/// Checks all of a tree. Errors: flow_too_deep, flow_cycle, invalid_argument, and those of minting.
[[nodiscard]] Result<FlowPlan> make_flow_plan(FlowGrounds& grounds, const FlowJob& root, client::Core& core);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
