// What a sweep has left to do and to say.
#include "queue/swept.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "queue/conversation.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

using keyspace::Subkey;
using std::string_view;

class AfterSweep {
 public:
  AfterSweep(const keyspace::QueueKeys& keys, std::span<const JobId> dead)
      : keys_(keys), dead_(dead.begin(), dead.end()) {}

  [[nodiscard]] bool go_on(Asker& to) {
    switch (step_++) {
      case 0:
        for (std::size_t i = 0; i < dead_.size(); ++i) {
          to.ask(2 * i,
                 views(string_view("HMGET"), keys_.job(dead_[i]), string_view("parent"), string_view("parent_queue"),
                       string_view("parent_policy")),
                 nullptr, Repeat::safe);
          // Not sent twice: by then it may run again, and be asked to end.
          to.ask(2 * i + 1, views(string_view("HDEL"), keys_.job(dead_[i]), string_view("cancel")), nullptr,
                 Repeat::unsafe);
        }
        return !dead_.empty();
      case 1:
        for (const auto& [parent, children] : children_) {
          const std::size_t tag = 2 * parents_.size();
          parents_.push_back({.id = parent, .children = children});
          to.ask(tag, views(string_view("HGET"), keys_.job(parent), string_view("state")), nullptr, Repeat::safe);
          to.ask(tag + 1, views(string_view("HLEN"), keys_.job_sub(parent, Subkey::failed)), nullptr, Repeat::safe);
        }
        return !parents_.empty();
      default: return false;
    }
  }

  void heard(std::size_t tag, const Result<Value>& answer) {
    const bool first = tag % 2 == 0;
    if (!answer) {
      if (!error_)
        error_ = answer.error();
      return;  // an event less, or a mark that stays
    }
    if (step_ == 1) {
      if (first)
        found(answer->items());
      return;
    }
    Parent& parent = parents_[tag / 2];
    if (first) {
      parent.dead = answer->as_text() == "dead";
    } else {
      parent.killers = answer->as_integer().value_or(0);
    }
  }

  [[nodiscard]] Result<std::vector<JobId>> outcome() const {
    std::vector<JobId> fallen;
    for (const Parent& parent : parents_) {
      if (parent.dead && parent.killers == parent.children)
        fallen.push_back(parent.id);
    }
    if (error_ && fallen.empty())
      return std::unexpected<Error>(*error_);
    return fallen;
  }

 private:
  struct Parent {
    JobId id;
    std::int64_t children = 0;  ///< of those that the sweep has ended
    bool dead = false;
    std::int64_t killers = -1;
  };

  void found(std::span<const Value> link) {
    if (link.size() != 3)
      return;
    const auto parent = JobId::parse(link[0].as_text().value_or(string_view()));
    const string_view queue = link[1].as_text().value_or(string_view());
    if (parent && (queue.empty() || queue == keys_.queue().text()) && link[2].as_text() != "id")
      ++children_[*parent];
  }

  const keyspace::QueueKeys keys_;
  const std::vector<JobId> dead_;
  int step_ = 0;
  std::map<JobId, std::int64_t> children_;
  std::vector<Parent> parents_;
  std::optional<Error> error_;  ///< the first
};

}  // namespace

Reply<std::vector<JobId>> after_sweep(const Queue& queue, std::span<const JobId> dead) {
  const Queue::State& state = queue.internal();
  return converse<std::vector<JobId>>(*state.core, std::nullopt, AfterSweep(state.keys, dead));
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
