// Admission of flows: one script when all is in one queue, else level by level from the root down.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "echomq/flow.hpp"
#include "queue/admit_call.hpp"
#include "queue/admit_many.hpp"
#include "queue/conversation.hpp"
#include "queue/flow_plan.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;
using keyspace::Subkey;
using std::string_view;

[[nodiscard]] Error id_taken(const JobId& id) {
  return {Errc::id_taken,
          fmt::format("{} is the id of a job that is no part of this flow, or of one that is dead: with "
                      "it as a child its parent would wait for ever",
                      id.text())};
}

/// The admission of one tree.
struct Run {
  explicit Run(FlowPlan tree) : plan(std::move(tree)), left_out(plan.nodes.size()) {}

  FlowPlan plan;
  std::size_t level = 1;  ///< the one that is on the way
  std::size_t on_the_way = 0;
  std::vector<bool> left_out;  ///< the node has ended before: neither it nor what is below it is admitted
  Admitted verdict = Admitted::enqueued;
  std::optional<Error> error;
  std::size_t failed_node = 0;

  /// Of several errors that of the first node counts.
  void refuse(std::size_t node, Error why) {
    if (error && failed_node <= node)
      return;
    error = std::move(why);
    failed_node = node;
  }
  [[nodiscard]] Result<FlowAdded> result() && {
    if (error)
      return std::unexpected<Error>(*std::move(error));
    FlowAdded added{.parent = plan.nodes.front().id, .verdict = verdict, .ids = {}};
    added.ids.reserve(plan.nodes.size());
    for (const FlowNode& node : plan.nodes)
      added.ids.push_back(node.id);
    return added;
  }
};

/// The admission of one flow (`T` is `FlowAdded`) or of many.
template <typename T>
class Adding final : public Conversation<T> {
 public:
  Adding(client::Core& core, std::optional<Milliseconds> limit, FlowGrounds grounds, std::vector<FlowPlan> plans)
      : Conversation<T>(core, limit), core_(core), scripts_(Scripts::get()), grounds_(std::move(grounds)) {
    for (FlowPlan& plan : plans)
      runs_.emplace_back(std::move(plan));
  }

 private:
  static constexpr unsigned kNodeBits = 32;

  std::optional<Result<T>> go_on() override {
    if (!std::exchange(begun_, true)) {
      for (std::size_t run = 0; run < runs_.size(); ++run)
        ask_first(run);
      return std::nullopt;
    }
    if constexpr (std::is_same_v<T, FlowAdded>) {
      return std::move(runs_.front()).result();
    } else {
      T results;
      results.reserve(runs_.size());
      for (Run& run : runs_)
        results.push_back(std::move(run).result());
      return Result<T>(std::move(results));
    }
  }

  void heard(std::size_t tag, Result<Value> answer, bool sent_twice) override {
    const std::size_t index = tag >> kNodeBits;
    const std::size_t node = tag & ((std::size_t{1} << kNodeBits) - 1);
    Run& run = runs_[index];
    if (answer) {
      take(run, node, *answer, sent_twice);
    } else {
      run.refuse(node, std::move(answer).error());
    }
    if (--run.on_the_way > 0 || run.error)
      return;
    // A level without anything to send (all of it left out) is passed over.
    while (run.on_the_way == 0 && run.level < run.plan.levels && !in_one_script(run)) {
      ++run.level;
      ask_level(index);
    }
  }

  [[nodiscard]] static bool in_one_script(const Run& run) {
    return run.plan.nodes.size() == 1 || run.plan.fits_one_script();
  }

  void take(Run& run, std::size_t index, const Value& answer, bool sent_twice) {
    const FlowNode& node = run.plan.nodes[index];
    const auto number = answer.is_aggregate() && answer.size() > 0 ? answer[0].as_integer() : answer.as_integer();
    if (!number) {
      return run.refuse(index,
                        Error(Errc::protocol_error, fmt::format("flow: unexpected reply {}", answer.to_string())));
    }
    if (*number < 0 && run.plan.nodes.size() == 1) {  // `admit`
      return run.refuse(
          index, *number == -2
                     ? Error(Errc::wrong_kind, fmt::format("job id must be JOB-namespaced, got {}", node.id.text()))
                     : broken_row(node.id));
    }
    if (*number < 0) {
      // Of `enqueue_flow` it says which child; its children follow the root in the plan.
      const auto child = static_cast<std::size_t>(-(*number + 1));
      const std::size_t taken = index == 0 && child < run.plan.nodes.size() ? child : index;
      return run.refuse(taken, id_taken(run.plan.nodes[taken].id));
    }
    if (index == 0 && *number == 0) {
      if (!node.minted) {
        run.verdict = sent_twice ? Admitted::present : Admitted::duplicate;
      } else if (!sent_twice) {
        core_.count_id_collision();
        return run.refuse(index, id_taken(node.id));
      }
    }
    if (!answer.is_aggregate())
      return;
    for (const Value& ended : answer.items().subspan(1)) {
      for (const std::size_t child : node.children) {
        if (ended.as_text() == run.plan.nodes[child].id.text())
          run.left_out[child] = true;
      }
    }
  }

  void ask_first(std::size_t index) {
    Run& run = runs_[index];
    const FlowNode& root = run.plan.nodes.front();
    if (run.plan.nodes.size() == 1 && !root.run.empty()) {
      const Decimal count(root.run.texts().size() / 2);
      std::vector<string_view> arguments = {root.keys->base(), "", "each", "0", root.id.text(),
                                            root.payload,      "", "",     "0", count};
      root.run.append_to(arguments);
      send(index, 0, scripts_.admit, admit_keys(*root.keys), arguments);
    } else if (run.plan.nodes.size() == 1) {
      const keyspace::KeyText row = root.keys->job(root.id);
      send(index, 0, scripts_.enqueue, views(row, root.keys->pending()), views(root.id.text(), root.payload));
    } else if (run.plan.fits_one_script()) {
      ask_whole(index);
    } else {
      ask_level(index);
    }
  }

  void ask_whole(std::size_t index) {
    const std::vector<FlowNode>& nodes = runs_[index].plan.nodes;
    const FlowNode& root = nodes.front();
    std::vector<std::string> rows;
    rows.reserve(nodes.size());
    for (const FlowNode& node : nodes)
      rows.push_back(node.keys->job(node.id).str());
    const keyspace::KeyText counter = root.keys->job_sub(root.id, Subkey::dependencies);
    const Decimal count(nodes.size() - 1);
    std::vector<string_view> keys = {rows.front(), counter, root.keys->pending()};
    std::vector<string_view> arguments = {root.id.text(), root.payload, count};
    for (std::size_t child = 1; child < nodes.size(); ++child) {
      keys.push_back(rows[child]);
      arguments.push_back(nodes[child].id.text());
      arguments.push_back(nodes[child].payload);
    }
    for (std::size_t child = 1; child < nodes.size(); ++child)
      arguments.push_back(nodes[child].policy());
    std::vector<Decimal> counts;
    counts.reserve(nodes.size());
    if (std::any_of(nodes.begin(), nodes.end(), [](const FlowNode& node) { return !node.run.empty(); })) {
      for (const FlowNode& node : nodes) {
        arguments.push_back(counts.emplace_back(node.run.texts().size() / 2));
        node.run.append_to(arguments);
      }
    }
    send(index, 0, scripts_.enqueue_flow, keys, arguments);
  }

  /// All of the level that is to be admitted. What follows a node that its script will refuse by its kind stays unsent.
  void ask_level(std::size_t index) {
    Run& run = runs_[index];
    const std::vector<FlowNode>& nodes = run.plan.nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const FlowNode& node = nodes[i];
      if (node.level != run.level)
        continue;
      if (node.parent != FlowNode::kNone && run.left_out[node.parent])
        run.left_out[i] = true;
      if (run.left_out[i])
        continue;
      if (node.children.empty()) {
        ask_leaf(index, i);
      } else {
        ask_held(index, i);
      }
      if (!node.id.is_job())
        return;
    }
  }

  void ask_leaf(std::size_t index, std::size_t at) {
    const std::vector<FlowNode>& nodes = runs_[index].plan.nodes;
    const FlowNode& node = nodes[at];
    const FlowNode& parent = nodes[node.parent];
    const keyspace::KeyText row = node.keys->job(node.id);
    std::vector<string_view> arguments = {node.id.text(), node.payload, parent.id.text(), queue_seen_from(node, parent),
                                          node.policy()};
    node.run.append_to(arguments);
    send(index, at, scripts_.enqueue_flow_child, views(row, node.keys->pending()), arguments);
  }

  void ask_held(std::size_t index, std::size_t at) {
    const std::vector<FlowNode>& nodes = runs_[index].plan.nodes;
    const FlowNode& node = nodes[at];
    const keyspace::KeyText row = node.keys->job(node.id);
    const keyspace::KeyText counter = node.keys->job_sub(node.id, Subkey::dependencies);
    const Decimal count(node.children.size());
    std::vector<string_view> arguments = {node.id.text(), node.payload, count, "", "", ""};
    if (node.parent != FlowNode::kNone) {
      const FlowNode& parent = nodes[node.parent];
      arguments[3] = parent.id.text();
      arguments[4] = queue_seen_from(node, parent);
      arguments[5] = node.policy();
    }
    for (const std::size_t child : node.children)
      arguments.push_back(nodes[child].id.text());
    node.run.append_to(arguments);
    send(index, at, scripts_.hold_parent, views(row, counter), arguments);
  }

  /// The parent's queue, when it is another one.
  [[nodiscard]] static string_view queue_seen_from(const FlowNode& node, const FlowNode& parent) {
    return node.keys == parent.keys ? string_view() : parent.keys->queue().text();
  }

  void send(std::size_t index, std::size_t node, const script::ScriptSource& of_script,
            std::span<const string_view> keys, std::span<const string_view> arguments) {
    ++runs_[index].on_the_way;
    this->ask((index << kNodeBits) | node, of_script, keys, arguments, Repeat::safe);
  }

  client::Core& core_;  // the conversation keeps it
  const Scripts& scripts_;
  FlowGrounds grounds_;
  std::vector<Run> runs_;
  bool begun_ = false;
};

}  // namespace

Reply<FlowAdded> Flow::add(const FlowJob& root, FlowOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  client::Core& core = *queue_.internal().core;
  FlowGrounds grounds(queue_.internal().keys);
  ECHOMQ_TRY(FlowPlan plan, make_flow_plan(grounds, root, core));
  std::vector<FlowPlan> plans;
  plans.push_back(std::move(plan));
  return (new Adding<FlowAdded>(core, options.deadline, std::move(grounds), std::move(plans)))->begin();
}

Reply<std::vector<Result<FlowAdded>>> Flow::add_bulk(std::span<const FlowJob> roots, FlowOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  if (roots.empty())
    return fail(Errc::empty_pipeline, "add_bulk: there are no flows");
  client::Core& core = *queue_.internal().core;
  FlowGrounds grounds(queue_.internal().keys);
  std::vector<FlowPlan> plans;
  plans.reserve(roots.size());
  for (const FlowJob& root : roots) {
    ECHOMQ_TRY(FlowPlan plan, make_flow_plan(grounds, root, core));
    plans.push_back(std::move(plan));
  }
  using Verdicts = std::vector<Result<FlowAdded>>;
  return (new Adding<Verdicts>(core, options.deadline, std::move(grounds), std::move(plans)))->begin();
}

}  // namespace v1
}  // namespace echomq
