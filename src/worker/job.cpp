// What a handler sees of its job.
#include "worker/job.hpp"

#include <algorithm>

#include "echomq/flow.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

// The two verbs are not fenced by the protocol, so a run that has lost its job is stopped here.
[[nodiscard]] Result<void> check_held(const worker::JobState& state) {
  if (state.lease_lost.load(std::memory_order_acquire)) {
    return fail(Errc::stale_token, "the lease of this run is lost");
  }
  if (state.withdrawn.load(std::memory_order_acquire)) {
    return fail(Errc::stale_token, "the worker has stopped and handed the job back");
  }
  return {};
}

}  // namespace

const JobId& Job::id() const noexcept { return state_->id; }
std::string_view Job::payload() const noexcept { return state_->payload; }
std::uint64_t Job::attempt() const noexcept { return state_->token.value(); }
std::optional<LaneId> Job::lane() const noexcept { return state_->lane; }
const QueueName& Job::queue() const noexcept { return state_->queue.name(); }
std::stop_token Job::stop_token() const { return state_->stop.token(); }
StopCause Job::stop_cause() const noexcept { return state_->stop.cause(); }
std::optional<std::uint32_t> Job::max_attempts() const noexcept { return state_->max_attempts; }
std::uint64_t Job::failures() const noexcept { return state_->failures; }
std::string_view Job::traceparent() const noexcept {
  return state_->traceparent ? std::string_view(*state_->traceparent) : std::string_view();
}
std::optional<std::chrono::steady_clock::time_point> Job::deadline() const noexcept {
  const auto begun = state_->begun.load(std::memory_order_acquire);
  if (!state_->timeout || begun == worker::TimePoint::max())
    return std::nullopt;
  return begun + *state_->timeout;
}
bool Job::lease_lost() const noexcept { return state_->lease_lost.load(std::memory_order_acquire); }

Result<void> Job::progress(std::string_view value) {
  ECHOMQ_CHECK(check_held(*state_));
  return state_->queue.update_progress(state_->id, value).get();
}

Result<void> Job::log(std::string_view line, std::uint32_t keep) {
  ECHOMQ_CHECK(check_held(*state_));
  ECHOMQ_CHECK(state_->queue.add_log(state_->id, line, keep).get());
  return {};
}

Result<void> Job::extend(Milliseconds lease) {
  ECHOMQ_CHECK(check_held(*state_));
  if (lease > Milliseconds{0})
    lease = std::max(lease, state_->lease);  // never less than the renewals give
  // From before the call, so that ours never ends later than the server's; and known before it, so that no renewal that
  // begins meanwhile cuts it short. One that began before is on the connection before this call.
  const worker::TimePoint until = worker::Clock::now() + lease;
  const worker::TimePoint before = state_->extended_until.exchange(until, std::memory_order_acq_rel);
  const auto done = state_->queue.extend(state_->id, state_->token, lease).get();
  if (done)
    return {};
  worker::TimePoint ours = until;
  state_->extended_until.compare_exchange_strong(ours, before, std::memory_order_acq_rel);
  return std::unexpected(done.error());
}

Result<ChildTexts> Job::children_values() { return Flow(state_->queue).children_values(state_->id).get(); }

std::string_view to_string(StopCause cause) noexcept {
  switch (cause) {
    case StopCause::none: return "none";
    case StopCause::lease_lost: return "lease lost";
    case StopCause::timeout: return "timed out";
    case StopCause::cancelled: return "cancelled";
    case StopCause::worker_stopped: return "worker stopped";
  }
  return {};
}

}  // namespace v1
}  // namespace echomq
