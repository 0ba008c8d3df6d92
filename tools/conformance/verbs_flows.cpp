// The calls of the vocabulary that concern flows.
#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/flow.hpp"
#include "queue/flow_deliver.hpp"

namespace echomq::conformance {
namespace {

/// A tree in the API's form, and what its views point to.
class Tree {
 public:
  /// `{"parent": {"id", "payload"}, "children": [...]}`.
  explicit Tree(const json::object& flow) {
    const json::object& parent = flow.at("parent").as_object();
    root_ = job(parent);
    root_.children = children(flow);
  }

  [[nodiscard]] const FlowJob& root() const { return root_; }

 private:
  [[nodiscard]] FlowJob job(const json::object& node) {
    FlowJob out;
    out.payload = texts_.emplace_back(text_of(node.at("payload")));
    out.id = good(JobId::parse(text_of(node.at("id"))));
    if (const json::value* queue = node.if_contains("queue"))
      out.queue = good(QueueName::parse(text_of(*queue)));
    const json::value* ignore = node.if_contains("ignore_dependency_on_failure");
    out.on_death = ignore != nullptr && ignore->as_bool() ? ChildDeath::is_ignored : ChildDeath::fails_parent;
    return out;
  }
  [[nodiscard]] FlowJobs children(const json::object& node) {
    const json::value* list = node.if_contains("children");
    if (list == nullptr || list->as_array().empty())
      return {};
    std::vector<FlowJob> jobs;
    for (const json::value& child : list->as_array()) {
      jobs.push_back(job(child.as_object()));
      jobs.back().children = children(child.as_object());
    }
    return lists_.emplace_back(std::move(jobs));
  }

  std::deque<std::string> texts_;
  std::deque<std::vector<FlowJob>> lists_;
  FlowJob root_;
};

/// `[id, [id of each child]]`, or, when a child has children of its own, `[id, [[id, [...]], ...]]` all the way down.
[[nodiscard]] json::value shape(const FlowJob& node, bool nested) {
  json::array children;
  for (const FlowJob& child : node.children) {
    if (nested) {
      children.push_back(shape(child, true));
    } else {
      children.push_back(json::string(child.id->text()));
    }
  }
  return json::array{json::string(node.id->text()), std::move(children)};
}
[[nodiscard]] json::value shape(const Tree& tree) {
  bool nested = false;
  for (const FlowJob& child : tree.root().children)
    nested = nested || !child.children.empty();
  return shape(tree.root(), nested);
}

[[nodiscard]] Outcome refused(const Error& failure) {
  const auto outcome = [&](json::value result) { return Outcome{std::move(result), failure.text}; };
  if (failure.is(Errc::wrong_kind))
    return outcome(error("kind"));
  if (failure.is(Errc::id_taken))
    return outcome(error("taken"));
  if (failure.is(Errc::flow_too_deep))
    return outcome(error(json::array{"flow_too_deep", static_cast<std::int64_t>(Flow::kMaxLevels)}));
  if (failure.is(Errc::flow_cycle)) {
    static constexpr std::string_view kBefore = "the id ";
    const std::size_t at = failure.text.find(kBefore) + kBefore.size();
    return outcome(error(json::array{"flow_cycle", json::string(failure.text.substr(at, BrandedId::kSize))}));
  }
  if (failure.is(Errc::invalid_argument))
    return outcome(json::object{{"raises", failure.message()}});
  return outcome(error(json::object{{"server", failure.text}}));
}

[[nodiscard]] Outcome add(const Flow& flow, const json::object& args) {
  const Tree tree(args);
  const auto added = flow.add(tree.root()).get();
  return added ? Outcome{ok(shape(tree)), {}} : refused(added.error());
}

/// Those that landed, in order.
[[nodiscard]] Outcome add_bulk(const Flow& flow, const json::object& args) {
  std::deque<Tree> trees;
  std::vector<FlowJob> roots;
  for (const json::value& one : args.at("flows").as_array())
    roots.push_back(trees.emplace_back(one.as_object()).root());
  const auto added = flow.add_bulk(roots).get();
  if (!added)
    return refused(added.error());
  json::array landed;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    if (added->at(i))
      landed.push_back(shape(trees[i]));
  }
  return {ok(std::move(landed)), {}};
}

[[nodiscard]] Outcome texts(Reply<ChildTexts> reply) {
  const auto read = reply.get();
  if (!read)
    return refused(read.error());
  json::object by_child;
  for (const auto& [child, text] : *read)
    by_child[child.text()] = text_to_json(text);
  return {ok(std::move(by_child)), {}};
}

[[nodiscard]] std::uint32_t batch_of(const json::object& args) {
  const json::value* batch = args.if_contains("batch");
  return batch != nullptr ? batch->to_number<std::uint32_t>() : 100;
}

/// One pass that says which parents have died of it.
[[nodiscard]] Outcome deliver_deaths(const Queue& queue, std::uint32_t batch) {
  const auto brought = queue::bring(queue, batch).get();
  if (!brought)
    return refused(brought.error());
  json::array fallen;
  for (const queue::FallenParent& one : brought->fallen) {
    fallen.push_back(
        json::array{json::string(one.queue.text()), json::string(one.parent.text()), text_to_json(one.reason)});
  }
  return {ok(json::object{{"delivered", brought->pass.delivered}, {"fallen", std::move(fallen)}}), {}};
}

[[nodiscard]] Outcome make(const Flow& flow, std::string_view call, const json::object& args) {
  if (call == "flow_add")
    return add(flow, args);
  if (call == "flow_add_bulk")
    return add_bulk(flow, args);
  if (call == "deliver") {
    const auto pass = flow.deliver(batch_of(args)).get();
    return pass ? Outcome{ok(pass->delivered), {}} : refused(pass.error());
  }
  const JobId parent = good(JobId::parse(text_of(args.at("id"))));
  if (call == "children_values")
    return texts(flow.children_values(parent));
  if (call == "ignored_failures")
    return texts(flow.ignored_failures(parent));
  const auto left = flow.dependencies(parent).get();
  return left ? Outcome{ok(*left), {}} : refused(left.error());
}

}  // namespace

std::optional<Outcome> make_flow_call(const Client& client, std::string_view call, std::string_view queue,
                                      const json::object& args) {
  static constexpr std::string_view kCalls[] = {"flow_add",     "flow_add_bulk", "children_values", "ignored_failures",
                                                "dependencies", "deliver",       "deliver_deaths"};
  if (std::find(std::begin(kCalls), std::end(kCalls), call) == std::end(kCalls))
    return std::nullopt;
  try {
    const Queue own = client.queue(good(QueueName::parse(queue)));
    if (call == "deliver_deaths")
      return deliver_deaths(own, batch_of(args));
    return make(Flow(own), call, args);
  } catch (const Raised& raised) {
    return Outcome{json::object{{"raises", raised.why}}, raised.why};
  }
}

}  // namespace echomq::conformance
