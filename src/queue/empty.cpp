// Deleting in bulk: the jobs that wait, those of one lane, a whole queue. The scripts take bites that leave the server
// free for others in between; these verbs ask until all is done.
#include <algorithm>
#include <string>
#include <vector>

#include "queue/conversation.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Jobs of one script: a millisecond or two of the server's time.
constexpr std::int64_t kBite = 1000;

/// Runs a script that removes up to its last argument, until it removes fewer.
struct Draining {
  const script::ScriptSource& script;
  std::vector<std::string> keys;
  std::optional<std::string> group;
  std::int64_t drained = 0;
  bool done = false;
  std::optional<Error> error = std::nullopt;

  bool go_on(Asker& to) {
    if (error || done)
      return false;
    const std::vector<std::string_view> key_views(keys.begin(), keys.end());
    const Decimal limit(kBite);
    if (group) {
      to.ask(0, script, key_views, views(*group, limit), Repeat::unsafe);
    } else {
      to.ask(0, script, key_views, views(limit), Repeat::unsafe);
    }
    return true;
  }
  void heard(std::size_t, Result<Value> answer) {
    const auto count = answer ? answer->as_integer() : std::nullopt;
    if (count) {
      drained += *count;
      done = *count < kBite;
    } else {
      error = answer ? Error(Errc::protocol_error, fmt::format("drain: unexpected reply {}", answer->to_string()))
                     : std::move(answer).error();
    }
  }
  [[nodiscard]] Result<std::int64_t> outcome() {
    if (error)
      return std::unexpected<Error>(*std::move(error));
    return drained;
  }
};

struct Obliteration {
  const script::ScriptSource& script;
  std::string meta, base;
  bool force;
  std::int64_t left;
  bool done = false;
  std::optional<Error> error = std::nullopt;

  bool go_on(Asker& to) {
    if (error || done || left <= 0)
      return false;
    const Decimal budget(std::min(left, kBite));
    to.ask(0, script, views(meta, base), views(std::string_view(force ? "force" : ""), budget), Repeat::unsafe);
    return true;
  }
  void heard(std::size_t, Result<Value> answer) {
    const auto more = answer ? answer->as_integer() : std::nullopt;
    if (more == 0) {
      done = true;
    } else if (more == 1) {
      left -= kBite;
    } else {
      error = answer ? Error(Errc::protocol_error, fmt::format("obliterate: unexpected reply {}", answer->to_string()))
                     : std::move(answer).error();
    }
  }
  [[nodiscard]] Result<Obliterated> outcome() {
    if (error)
      return std::unexpected<Error>(*std::move(error));
    return done ? Obliterated::done : Obliterated::more;
  }
};

}  // namespace

Reply<std::int64_t> Queue::drain(DrainOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  std::vector<std::string> of_script = {keys.base(), keys.pending()};
  if (options.include_schedule)
    of_script.push_back(keys.schedule());
  return converse<std::int64_t>(*state_->core, options.deadline,
                                Draining{state_->scripts.drain, std::move(of_script), std::nullopt});
}

Reply<std::int64_t> Queue::drain_lane(LaneId lane) const {
  const keyspace::QueueKeys& keys = state_->keys;
  return converse<std::int64_t>(
      *state_->core, std::nullopt,
      Draining{state_->scripts.gdrain, {keys.base(), keys.lane(lane).str(), keys.ring()}, std::string(lane.text())});
}

Reply<Obliterated> Queue::obliterate(ObliterateOptions options) const {
  ECHOMQ_CHECK(check_limit("budget", options.budget));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  return converse<Obliterated>(
      *state_->core, options.deadline,
      Obliteration{state_->scripts.obliterate, keys.meta(), keys.base(), options.force, options.budget});
}

}  // namespace v1
}  // namespace echomq
