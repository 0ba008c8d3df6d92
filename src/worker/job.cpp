// What a handler sees of its job.
#include "worker/job.hpp"

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
std::stop_token Job::stop_token() const noexcept { return state_->stop.get_token(); }
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

}  // namespace v1
}  // namespace echomq
