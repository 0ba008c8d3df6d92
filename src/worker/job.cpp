// What a handler sees of its job.
#include "worker/job.hpp"

#include <algorithm>

#include "echomq/flow.hpp"
#include "queue/conversation.hpp"
#include "queue/progress.hpp"
#include "queue/start.hpp"
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

/// `extend_lock` for a run, which knows of its longer lease from before the call is sent: so that no renewal that begins meanwhile
/// cuts it short. One that began before is on the connection before this call. A call that fails takes that back; it may have been
/// carried out all the same, so what an earlier one gave is believed no longer than it asked for.
class Extension {
 public:
  Extension(std::shared_ptr<worker::JobState> state, Milliseconds lease)
      : state_(std::move(state)),
        lease_(lease),
        // From before the call, so that ours never ends later than the server's.
        until_(worker::Clock::now() + std::min<Milliseconds>(lease, std::chrono::days{365})) {
    worker::TimePoint certain = state_->extended_for_certain.load(std::memory_order_acquire);
    while (until_ < certain &&
           !state_->extended_for_certain.compare_exchange_weak(certain, until_, std::memory_order_acq_rel)) {
    }
    state_->extended_until.store(until_, std::memory_order_release);
  }

  [[nodiscard]] bool go_on(queue::Asker& asker) {
    if (asked_)
      return false;
    asked_ = true;
    const Queue::State& its = state_->queue.internal();
    const keyspace::KeyText row = its.keys.job(state_->id);
    const queue::Decimal token(state_->token);
    const queue::Decimal lease(lease_);
    asker.ask(0, its.scripts.extend_lock, queue::views(its.keys.active(), row),
              queue::views(state_->id.text(), token, lease), Repeat::safe);
    return true;
  }
  /// Also of one that was withdrawn.
  void heard(std::size_t, Result<Value> answer) {
    worker::TimePoint ours = until_;
    if (answer && answer->as_integer() == 1) {
      if (state_->extended_until.load(std::memory_order_acquire) == ours)
        state_->extended_for_certain.store(ours, std::memory_order_release);
      return;
    }
    if (answer) {
      outcome_ = queue::job_gone("extend");
    } else {
      outcome_ = std::unexpected(std::move(answer).error());
    }
    state_->extended_until.compare_exchange_strong(ours, state_->extended_for_certain.load(std::memory_order_acquire),
                                                   std::memory_order_acq_rel);
  }
  [[nodiscard]] Result<void> outcome() { return outcome_; }

 private:
  std::shared_ptr<worker::JobState> state_;
  Milliseconds lease_;
  worker::TimePoint until_;
  bool asked_ = false;
  Result<void> outcome_;
};

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

Reply<void> Job::progress_async(std::string_view value) {
  ECHOMQ_CHECK(check_held(*state_));
  const auto announced = state_->announced ? queue::Announced::yes : queue::Announced::no;
  return queue::update_progress(state_->queue, state_->id, value, announced);
}

Reply<std::int64_t> Job::log_async(std::string_view line, std::uint32_t keep) {
  ECHOMQ_CHECK(check_held(*state_));
  return state_->queue.add_log(state_->id, line, keep);
}

Reply<void> Job::extend_async(Milliseconds lease) {
  ECHOMQ_CHECK(check_held(*state_));
  ECHOMQ_CHECK(queue::check_lease(lease));
  lease = std::max(lease, state_->lease);  // never less than the renewals give
  return queue::converse<void>(*state_->queue.internal().core, std::nullopt, Extension(state_, lease),
                               queue::Bound::passed);
}

Reply<ChildTexts> Job::children_values_async() { return Flow(state_->queue).children_values(state_->id); }

Result<void> Job::progress(std::string_view value) { return progress_async(value).get(); }

Result<void> Job::log(std::string_view line, std::uint32_t keep) {
  ECHOMQ_CHECK(log_async(line, keep).get());
  return {};
}

Result<void> Job::extend(Milliseconds lease) { return extend_async(lease).get(); }

Result<ChildTexts> Job::children_values() { return children_values_async().get(); }

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
