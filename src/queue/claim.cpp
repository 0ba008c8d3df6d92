// Claims: the oldest flat jobs, or the next lane's oldest.
#include <utility>

#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// `[id, payload or null, token]`, of a lane `[id, payload or null, token, group]`; an empty array is no job.
[[nodiscard]] Result<std::optional<ClaimedJob>> read_claim(std::string_view verb, const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply(verb, reply);
  auto elements = reply.elements();
  if (elements.done())
    return std::optional<ClaimedJob>();
  const resp::View id_text = elements.next();
  const resp::View payload = elements.next();
  const resp::View token = elements.next();
  const resp::View group = elements.next();

  const auto id = JobId::parse(id_text.as_text().value_or(""));
  const auto attempts = token.as_integer();
  if (!id || !attempts || *attempts < 1)
    return unexpected_reply(verb, reply);
  std::optional<ClaimedJob> job(std::in_place);
  job->id = *id;
  job->token = Token(static_cast<std::uint64_t>(*attempts));
  job->has_payload = !payload.is_null();
  if (auto text = payload.copy_text())
    job->payload = *std::move(text);
  if (!group.is_null()) {
    const auto lane = LaneId::parse(group.as_text().value_or(""));
    if (!lane)
      return unexpected_reply(verb, reply);
    job->lane = *lane;
  }
  return job;
}

/// A list of those.
[[nodiscard]] Result<std::vector<ClaimedJob>> read_claims(std::string_view verb, const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply(verb, reply);
  std::vector<ClaimedJob> jobs;
  jobs.reserve(reply.size());
  for (const resp::View& one : reply.elements()) {
    ECHOMQ_TRY(std::optional<ClaimedJob> job, read_claim(verb, one));
    if (!job)
      return unexpected_reply(verb, reply);
    jobs.push_back(*std::move(job));
  }
  return jobs;
}

template <std::size_t A>
[[nodiscard]] Reply<std::vector<ClaimedJob>> claim_many_with(const Queue::State& state, std::string_view verb,
                                                             const script::ScriptSource& script, const Views<2>& keys,
                                                             const Views<A>& arguments,
                                                             std::optional<Milliseconds> deadline) {
  return state.core->eval<std::vector<ClaimedJob>>(
      script, keys, arguments, settings(Repeat::unsafe, deadline),
      [verb](const wire::Answer& answer) { return read_claims(verb, answer.view); });
}

template <std::size_t A>
[[nodiscard]] Reply<std::optional<ClaimedJob>> claim_with(const Queue::State& state, std::string_view verb,
                                                          const script::ScriptSource& script, const Views<2>& keys,
                                                          const Views<A>& arguments, const ClaimOptions& options) {
  // Not safe to repeat: the lost answer may have leased a job that a repetition would not give again.
  return state.core->eval<std::optional<ClaimedJob>>(
      script, keys, arguments, settings(Repeat::unsafe, options.deadline),
      [verb](const wire::Answer& answer) { return read_claim(verb, answer.view); });
}

}  // namespace

Reply<std::optional<ClaimedJob>> Queue::claim(ClaimOptions options) const {
  ECHOMQ_CHECK(check_lease(options.lease));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal lease(options.lease);
  return claim_with(*state_, "claim", state_->scripts.claim, views(keys.pending(), keys.active()),
                    views(keys.job_prefix(), lease), options);
}

Reply<std::optional<ClaimedJob>> Queue::claim_lane(ClaimOptions options) const {
  ECHOMQ_CHECK(check_lease(options.lease));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal lease(options.lease);
  return claim_with(*state_, "claim_lane", state_->scripts.gclaim, views(keys.ring(), keys.active()),
                    views(keys.base(), lease), options);
}

Reply<std::vector<ClaimedJob>> Queue::claim_batch(ClaimBatchOptions options) const {
  ECHOMQ_CHECK(check_limit("size", options.size));
  ECHOMQ_CHECK(check_lease(options.lease));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal lease(options.lease);
  const Decimal size(options.size);
  return claim_many_with(*state_, "claim_batch", state_->scripts.bclaim, views(keys.pending(), keys.active()),
                         views(keys.job_prefix(), lease, size), options.deadline);
}

Reply<std::vector<ClaimedJob>> Queue::claim_lane_weighted(ClaimOptions options) const {
  ECHOMQ_CHECK(check_lease(options.lease));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal lease(options.lease);
  return claim_many_with(*state_, "claim_lane_weighted", state_->scripts.gwclaim, views(keys.ring(), keys.active()),
                         views(keys.base(), lease), options.deadline);
}

Reply<std::vector<ClaimedJob>> Queue::claim_lane_batch(ClaimBatchOptions options) const {
  ECHOMQ_CHECK(check_limit("size", options.size));
  ECHOMQ_CHECK(check_lease(options.lease));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal lease(options.lease);
  const Decimal size(options.size);
  return claim_many_with(*state_, "claim_lane_batch", state_->scripts.gbclaim, views(keys.ring(), keys.active()),
                         views(keys.base(), lease, size), options.deadline);
}

}  // namespace v1
}  // namespace echomq
