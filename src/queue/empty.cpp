// Deleting in bulk: the jobs that wait, those of one lane, a whole queue. The scripts take bites that leave the server
// free for others in between; these verbs ask until all is done.
#include <algorithm>
#include <string>
#include <vector>

#include "queue/start.hpp"
#include "queue/steps.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Jobs of one script: a millisecond or two of the server's time.
constexpr std::int64_t kBite = 1000;

/// Runs a script that removes up to its last argument, until it removes fewer.
struct DrainNext {
  const script::ScriptSource& script;
  std::vector<std::string> keys;
  std::optional<std::string> group;
  std::int64_t drained = 0;

  std::optional<Result<std::int64_t>> operator()(auto& steps, std::span<Value> answers) {
    if (!answers.empty()) {
      const auto count = answers[0].as_integer();
      if (!count)
        return fail(Errc::protocol_error, fmt::format("drain: unexpected reply {}", answers[0].to_string()));
      drained += *count;
      if (*count < kBite)
        return drained;
    }
    const std::vector<std::string_view> key_views(keys.begin(), keys.end());
    const Decimal limit(kBite);
    if (group) {
      steps.eval(script, key_views, views(*group, limit));
    } else {
      steps.eval(script, key_views, views(limit));
    }
    return std::nullopt;
  }
};

struct ObliterateNext {
  const script::ScriptSource& script;
  std::string meta, base;
  bool force;
  std::int64_t left;

  std::optional<Result<Obliterated>> operator()(auto& steps, std::span<Value> answers) {
    if (!answers.empty()) {
      const auto more = answers[0].as_integer();
      if (more != 0 && more != 1)
        return fail(Errc::protocol_error, fmt::format("obliterate: unexpected reply {}", answers[0].to_string()));
      if (more == 0)
        return Obliterated::done;
      left -= kBite;
      if (left <= 0)
        return Obliterated::more;
    }
    const Decimal budget(std::min(left, kBite));
    steps.eval(script, views(meta, base), views(std::string_view(force ? "force" : ""), budget));
    return std::nullopt;
  }
};

}  // namespace

Reply<std::int64_t> Queue::drain(DrainOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  std::vector<std::string> of_script = {keys.base(), keys.pending()};
  if (options.include_schedule)
    of_script.push_back(keys.schedule());
  return run_steps<std::int64_t>(*state_->core, settings(Repeat::unsafe, options.deadline),
                                 DrainNext{state_->scripts.drain, std::move(of_script), std::nullopt});
}

Reply<std::int64_t> Queue::drain_lane(LaneId lane) const {
  const keyspace::QueueKeys& keys = state_->keys;
  return run_steps<std::int64_t>(
      *state_->core, settings(Repeat::unsafe),
      DrainNext{state_->scripts.gdrain, {keys.base(), keys.lane(lane).str(), keys.ring()}, std::string(lane.text())});
}

Reply<Obliterated> Queue::obliterate(ObliterateOptions options) const {
  ECHOMQ_CHECK(check_limit("budget", options.budget));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  return run_steps<Obliterated>(
      *state_->core, settings(Repeat::unsafe, options.deadline),
      ObliterateNext{state_->scripts.obliterate, keys.meta(), keys.base(), options.force, options.budget});
}

}  // namespace v1
}  // namespace echomq
