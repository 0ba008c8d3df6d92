// Release by time: what is due, and what its worker has lost.
#include <string>
#include <vector>

#include "queue/conversation.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

namespace {

using namespace queue;

/// One script looks at some thousand leases; those of other lanes may fill it.
struct LaneReap {
  const script::ScriptSource& script;
  std::string active, base, group;
  std::int64_t limit;
  std::int64_t reaped = 0;
  std::int64_t from = 0;  ///< below 0: all is looked at
  std::optional<Error> error = std::nullopt;

  bool go_on(Asker& to) {
    if (error || from < 0 || reaped >= limit)
      return false;
    const Decimal left(limit - reaped);
    const Decimal begin(from);
    to.ask(0, script, views(active, base), views(group, left, begin), Repeat::unsafe);
    return true;
  }
  void heard(std::size_t, Result<Value> answer) {
    if (!answer) {
      error = std::move(answer).error();
      return;
    }
    const auto parts = answer->items();
    const auto count = parts.size() == 2 ? parts[0].as_integer() : std::nullopt;
    const auto next = parts.size() == 2 ? parts[1].as_integer() : std::nullopt;
    if (!count || !next) {
      error = Error(Errc::protocol_error, fmt::format("reap_lane: unexpected reply {}", answer->to_string()));
      return;
    }
    reaped += *count;
    from = *next;
  }
  [[nodiscard]] Result<std::int64_t> outcome() {
    if (error)
      return std::unexpected<Error>(*std::move(error));
    return reaped;
  }
};

/// The members that a sweep has moved; those that are no ids are counted and hold up no others.
[[nodiscard]] Result<void> read_swept(const resp::View& list, std::vector<JobId>& ids, std::uint64_t& unreadable) {
  if (!list.is_aggregate())
    return unexpected_reply("sweep_stalled", list);
  ids.reserve(list.size());
  for (const resp::View& item : list.elements()) {
    if (const auto id = JobId::parse(item.as_text().value_or(""))) {
      ids.push_back(*id);
    } else {
      ++unreadable;
    }
  }
  return {};
}

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
  return converse<std::int64_t>(
      *state_->core, std::nullopt,
      LaneReap{state_->scripts.greap_group, keys.active(), keys.base(), std::string(lane.text()), limit});
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
                                     ECHOMQ_CHECK(read_swept(answer.view.at(0), swept.recovered, swept.unreadable));
                                     ECHOMQ_CHECK(read_swept(answer.view.at(1), swept.dead, swept.unreadable));
                                     return swept;
                                   });
}

}  // namespace v1
}  // namespace echomq
