// Release by time: what is due, and what its worker has lost.
#include <string>
#include <vector>

#include "queue/start.hpp"
#include "queue/steps.hpp"

namespace echomq {
inline namespace v1 {

namespace {

using namespace queue;

/// One script looks at some thousand leases; those of other lanes may fill it.
struct ReapLaneNext {
  const script::ScriptSource& script;
  std::string active, base, group;
  std::int64_t limit;
  std::int64_t reaped = 0;

  std::optional<Result<std::int64_t>> operator()(auto& steps, std::span<Value> answers) {
    std::int64_t from = 0;
    if (!answers.empty()) {
      const auto parts = answers[0].items();
      const auto count = parts.size() == 2 ? parts[0].as_integer() : std::nullopt;
      const auto next = parts.size() == 2 ? parts[1].as_integer() : std::nullopt;
      if (!count || !next)
        return fail(Errc::protocol_error, fmt::format("reap_lane: unexpected reply {}", answers[0].to_string()));
      reaped += *count;
      from = *next;
      if (from < 0 || reaped >= limit)
        return reaped;
    }
    const Decimal left(limit - reaped);
    const Decimal begin(from);
    steps.eval(script, views(active, base), views(group, left, begin));
    return std::nullopt;
  }
};

}  // namespace

Reply<std::int64_t> Queue::promote(std::uint32_t limit) const {
  ECHOMQ_CHECK(check_limit("limit", limit));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal limit_text(limit);
  return state_->core->eval<std::int64_t>(state_->scripts.promote, views(keys.schedule(), keys.pending()),
                                          views(keys.base(), limit_text), settings(Repeat::unsafe),
                                          decode_integer("promote"));
}

Reply<std::int64_t> Queue::reap() const {
  const keyspace::QueueKeys& keys = state_->keys;
  return state_->core->eval<std::int64_t>(state_->scripts.reap, views(keys.active(), keys.pending()),
                                          views(keys.base()), settings(Repeat::unsafe), decode_integer("reap"));
}

Reply<std::int64_t> Queue::reap_lane(LaneId lane, std::uint32_t limit) const {
  ECHOMQ_CHECK(check_limit("limit", limit));
  const keyspace::QueueKeys& keys = state_->keys;
  return run_steps<std::int64_t>(
      *state_->core, settings(Repeat::unsafe),
      ReapLaneNext{state_->scripts.greap_group, keys.active(), keys.base(), std::string(lane.text()), limit});
}

Reply<Swept> Queue::sweep_stalled(SweepOptions options) const {
  ECHOMQ_CHECK(check_limit("max_stalled", options.max_stalled));
  ECHOMQ_CHECK(check_limit("limit", options.limit));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal max_stalled(options.max_stalled);
  const Decimal limit(options.limit);
  return state_->core->eval<Swept>(state_->scripts.sweep_stalled, views(keys.active(), keys.pending(), keys.dead()),
                                   views(keys.base(), max_stalled, limit), settings(Repeat::unsafe, options.deadline),
                                   [](const wire::Answer& answer) -> Result<Swept> {
                                     Swept swept;
                                     ECHOMQ_TRY(swept.recovered, read_ids("sweep_stalled", answer.view.at(0)));
                                     ECHOMQ_TRY(swept.dead, read_ids("sweep_stalled", answer.view.at(1)));
                                     return swept;
                                   });
}

}  // namespace v1
}  // namespace echomq
