// Release by time: what is due, and what its worker has lost.
#include <vector>

#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

using namespace queue;  // NOLINT(google-build-using-namespace): the room's own

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
