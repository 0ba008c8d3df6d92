// Release by time: what is due, and what its worker has lost.
#include <string>
#include <utility>
#include <vector>

#include "queue/conversation.hpp"
#include "queue/start.hpp"
#include "queue/swept.hpp"

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
[[nodiscard]] Result<void> read_swept(std::string_view script, const resp::View& list, std::vector<JobId>& ids,
                                      std::uint64_t& unreadable) {
  if (!list.is_aggregate())
    return unexpected_reply(script, list);
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

/// `sweep_stalled` or `sweep_lapsed`: they are called alike.
template <typename T, typename Decode>
[[nodiscard]] Reply<T> sweep(const Queue::State& state, const script::ScriptSource& script, const SweepOptions& options,
                             Decode decode) {
  ECHOMQ_CHECK(check_limit("max_stalled", options.max_stalled));
  ECHOMQ_CHECK(check_limit("limit", options.limit));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state.keys;
  const Decimal max_stalled(options.max_stalled);
  const Decimal limit(options.limit);
  return state.core->eval<T>(script, views(keys.active(), keys.pending(), keys.dead()),
                             views(keys.base(), max_stalled, limit), settings(Repeat::unsafe, options.deadline),
                             std::move(decode));
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
  return sweep<Swept>(*state_, state_->scripts.sweep_stalled, options, [](const wire::Answer& answer) -> Result<Swept> {
    Swept swept;
    ECHOMQ_CHECK(read_swept("sweep_stalled", answer.view.at(0), swept.recovered, swept.unreadable));
    ECHOMQ_CHECK(read_swept("sweep_stalled", answer.view.at(1), swept.dead, swept.unreadable));
    return swept;
  });
}

namespace queue {

Reply<SweptLapsed> sweep_lapsed(const Queue& queue, const SweepOptions& options) {
  const Queue::State& state = queue.internal();
  return sweep<SweptLapsed>(
      state, state.scripts.sweep_lapsed, options, [](const wire::Answer& answer) -> Result<SweptLapsed> {
        SweptLapsed out;
        Swept& swept = out.swept;
        std::uint64_t no_ids = 0;  // a link may name anything
        ECHOMQ_CHECK(read_swept("sweep_lapsed", answer.view.at(0), swept.recovered, swept.unreadable));
        ECHOMQ_CHECK(read_swept("sweep_lapsed", answer.view.at(1), swept.dead, swept.unreadable));
        ECHOMQ_CHECK(read_swept("sweep_lapsed", answer.view.at(2), out.fallen, no_ids));
        return out;
      });
}

}  // namespace queue

}  // namespace v1
}  // namespace echomq
