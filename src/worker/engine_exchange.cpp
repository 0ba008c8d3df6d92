// Exchanges: what has ended is settled in the call that fetches what comes next.
//
// An idle worker's exchange goes out at once. While one is under way the runs that end are gathered, and another goes
// out beside it only when it is worth the server's while; so a busy worker makes one call for many jobs, and a single
// job waits for nobody.
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// Settles, and claims, of one call: about a millisecond of the server's time.
constexpr std::size_t kBite = 100;
/// Bytes of results and errors of one call.
constexpr std::size_t kBiteBytes = std::size_t{1} << 20;
/// Exchanges in flight: the server has others while we handle the last, and beside a busy producer as many turns as it.
constexpr std::size_t kWindow = 4;
/// What makes a second exchange worth its while.
constexpr std::size_t kWorthwhile = kBite / 2;
/// Jobs beyond the slots, at most.
constexpr std::size_t kMostPrefetch = kWindow * kBite;
/// Settles that wait for a server that answers claims but no settles: beyond so many nothing more is claimed.
constexpr std::size_t kMostUnsettled = 1024;
/// How long runs that ended wait at most for the exchange before theirs.
constexpr Milliseconds kHurryFirst{1};
constexpr Milliseconds kHurryLast{20};
/// How far apart workers that wait for the same rate window claim again.
constexpr Milliseconds kRateSpread{3};
constexpr Milliseconds kFirstClaimPause{50};
constexpr Milliseconds kLongestPause{1000};

}  // namespace

std::size_t Engine::bite() const {
  // A batch is settled, and the next one claimed, in one call.
  return gather_ ? std::max<std::size_t>(kBite, batch_->max_size) : kBite;
}

std::size_t Engine::room() const {
  if (gather_)
    return held_.size() + asked_ < gather_most() + kMostUnsettled ? gather_room() : 0;
  const std::size_t most = slots() + prefetch_;
  const std::size_t taken = handed_ + asked_;
  if (taken >= most || held_.size() + asked_ >= most + kMostUnsettled)
    return 0;
  return most - taken;
}

std::size_t Engine::worthwhile() const {
  if (exchanges_ == 0 || gather_)
    return 1;  // the end of a batch is the end of many jobs
  return exchanges_ < kWindow ? kWorthwhile : std::numeric_limits<std::size_t>::max();
}

void Engine::exchange_more() {
  while (send_exchange()) {
  }
  // An answer that does not come must not hold up what has ended meanwhile.
  if (exchanges_ > 0 && exchanges_ < kWindow && !alarms_.pending(Alarm::hurry))
    alarms_.set(Alarm::hurry, now_ + std::clamp<Clock::duration>(4 * round_trip_, kHurryFirst, kHurryLast));
  if (stopping_ || claims_ > 0 || claims_paused_ || parked_ || closed_)
    return;
  if (full() || sick()) {
    // What was claimable at the last claim has been claimed; whatever came later has tokens of its own.
    if (dry_ && !gather_ && !gated_)
      token_owed_ = false;
    if (token_owed_)
      pass_token_on();
  } else if (dry_) {
    look();
  }
}

bool Engine::send_exchange() {
  if (closed_ && ready_.empty())
    return false;
  const bool alone = !ready_.empty() && ready_.front()->held.alone;
  const std::size_t asked = may_claim() && !closed_ && !alone ? std::min(room(), bite()) : 0;
  if (std::max(asked, std::min(ready_.size(), bite())) == 0)
    return false;
  if (exchanges_ >= kWindow && !stopping_)
    return false;
  const bool worthwhile = alone || std::max(asked, ready_.size()) >= kWorthwhile || (hurry_ && !ready_.empty());
  if (exchanges_ > 0 && !stopping_ && !worthwhile)
    return false;

  Jobs settles = next_settles();
  std::vector<queue::Settlement> settlements;
  settlements.reserve(settles.size());
  for (const JobPtr& job : settles)
    settlements.push_back(settlement_of(job));
  std::optional<queue::TakeRequest> take;
  if (asked > 0) {
    take = queue::TakeRequest{
        .most = static_cast<std::uint32_t>(asked), .lease = options_.lease, .lanes_first = lanes_first_};
    if (gather_) {
      take->lanes = take->whole_turns = batch_->source == BatchSource::lanes;
      take->flat = !take->lanes;
    }
    lanes_first_ = !lanes_first_;
    asked_ += asked;
    ++claims_;
  }
  ++exchanges_;
  hurry_ = false;
  const Milliseconds deadline = exchange_deadline(!settles.empty(), asked > 0);
  when(queue::exchange(verbs_, settlements, take, deadline),
       [this, settles = std::move(settles), asked, sent = now_, rides = rides_ended_](Result<queue::Exchanged> answer) {
         exchanged(settles, asked, sent, rides != rides_ended_, std::move(answer));
       });
  return true;
}

Engine::Jobs Engine::next_settles() {
  Jobs out;
  std::size_t bytes = 0;
  std::size_t count = 0;
  const std::size_t most = bite();
  while (count < ready_.size() && count < most && bytes <= kBiteBytes) {
    const JobPtr& job = ready_[count];
    if (job->held.alone && count > 0)
      break;
    bytes += job->held.outcome.text.size();
    ++count;
    if (job->held.alone)
      break;
  }
  if (count == ready_.size()) {
    // As large as before: a steady flow needs no more memory.
    out.reserve(ready_.capacity());
    std::swap(out, ready_);
  } else {
    const auto end = ready_.begin() + static_cast<std::ptrdiff_t>(count);
    out.assign(std::make_move_iterator(ready_.begin()), std::make_move_iterator(end));
    ready_.erase(ready_.begin(), end);
  }
  for (const JobPtr& job : out) {
    job->held.phase = Phase::settling;
    ++job->held.tries;
  }
  return out;
}

Milliseconds Engine::exchange_deadline(bool settles, bool claims) const {
  // A claim that waits for a connection longer than this would give a job whose lease is nearly over by our clock.
  const Milliseconds claim = std::max(options_.lease / 2, Milliseconds{50});
  if (!settles)
    return claim;
  return claims ? std::min(settle_deadline(), claim) : settle_deadline();
}

void Engine::exchanged(const Jobs& settles, std::size_t asked, TimePoint sent, bool crossed,
                       Result<queue::Exchanged> answer) {
  --exchanges_;
  asked_ -= asked;
  if (asked > 0)
    --claims_;
  if (!answer) {
    call_failed(answer.error(), "exchange");
    for (const JobPtr& job : settles)
      settle_failed(job, answer.error(), settles.size() > 1 || asked > 0);
    // Whether the server has claimed is unknown: a job that it gave away comes back by its lease.
    if (asked > 0 && !stopping_)
      pause_claims(std::clamp(claim_pause_ * 2, kFirstClaimPause, kLongestPause));
    return;
  }
  for (std::size_t i = 0; i < settles.size() && i < answer->settled.size(); ++i) {
    settles[i]->held.maybe_done |= answer->resent;
    settled(settles[i], answer->settled[i]);
  }
  for (const queue::Fallen& one : answer->fallen)
    tell_death(one.parent, settles[one.by]->held.outcome.text);
  if (asked > 0) {
    clock_then_ = answer->claimed_at;
    sent_then_ = sent;
    taken(sent, *answer, crossed);
    if (!answer->jobs.empty())
      tune(sent);
    if (sent < marks_before_)
      ask_for_marks();
  } else if (parked_ && gated_ && !stopping_ && !settles.empty()) {
    look();  // the slot of a job in flight may be what the queue's ceiling lacked; no token tells that
  }
}

void Engine::taken(TimePoint at, queue::Exchanged& answer, bool crossed, const JobPtr& running) {
  claim_pause_ = Milliseconds{0};
  if (answer.expired > 0)
    tell_expired(answer);
  if (answer.unreadable > 0) {
    counters_.errors.fetch_add(answer.unreadable, std::memory_order_relaxed);
    log(LogLevel::error, "worker_jobs_unreadable", nullptr,
        std::to_string(answer.unreadable) + " claimed jobs have an id or a lane that is none; they end by their lease");
  }
  gated_ = answer.gate == queue::Gate::concurrency;
  counters_.claimed.fetch_add(answer.jobs.size(), std::memory_order_relaxed);
  if (answer.gate == queue::Gate::rate && !stopping_) {
    pause_claims(Milliseconds{0});
    // No longer than a beat, since an operator may open the window; past its last millisecond, and not all workers at once.
    alarms_.set(Alarm::claim, now_ + std::clamp(answer.wait, Milliseconds{0}, options_.beat) + Milliseconds{1} +
                                  at_random(kRateSpread));
  } else {
    // Nothing was left behind; or nothing came at all, whatever else the answer says. Jobs that were too old did come.
    dry_ = (answer.jobs.empty() && answer.expired == 0) || answer.gate != queue::Gate::open || !answer.more;
  }
  if (!answer.jobs.empty() || answer.expired > 0)
    fruitless_ = 0;
  if (answer.jobs.empty())
    return;
  if (running) {
    adopt(running, at);
    watch_queued();
    return;
  }
  submitted_.clear();
  const auto begin_next = [&](bool laned, std::size_t& next) {
    while (next < answer.jobs.size() && answer.jobs[next].job.lane.has_value() != laned)
      ++next;
    if (next == answer.jobs.size())
      return;
    if (JobPtr begun = begin(std::move(answer.jobs[next]), at, crossed))
      submitted_.push_back(std::move(begun));
    ++next;
  };
  // A claim gives the jobs of lanes and the flat ones each in a row; their handlers take turns.
  std::size_t lane_at = 0;
  std::size_t flat_at = 0;
  while (lane_at < answer.jobs.size() || flat_at < answer.jobs.size()) {
    begin_next(lanes_first_, lanes_first_ ? lane_at : flat_at);
    begin_next(!lanes_first_, lanes_first_ ? flat_at : lane_at);
  }
  tell_claimed();
  handed_ += submitted_.size();
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  if (gather_) {
    gather(submitted_);
  } else {
    pool_->submit(submitted_);
  }
  submitted_.clear();
  watch_queued();
}

Engine::JobPtr Engine::begin(queue::TakenJob taken, TimePoint sent, bool crossed) {
  if ((crossed || taken.job.token.value() > 1) && !is_newest(taken.job.id, taken.job.token))
    return nullptr;
  const bool cancelled = taken.cancelled;
  JobPtr job = make_job(std::move(taken));
  hold(job, sent);
  Held& held = job->held;
  if (cancelled) {
    counters_.cancelled.fetch_add(1, std::memory_order_relaxed);
    job->stop.request(StopCause::cancelled);
    held.outcome = Dead("cancelled");
    settle(job);
    return nullptr;
  }
  if (stopping_ || now_ >= held.lease_until) {
    held.outcome = HandBack();
    settle(job);
    return nullptr;
  }
  return job;
}

bool Engine::is_newest(const JobId& id, Token token) {
  const JobState* later = nullptr;
  const Jobs older = held_of(id, [&](const JobState& other) {
    if (other.token > token)
      later = &other;
    return !other.held.lost && other.held.phase != Phase::settling;
  });
  if (later != nullptr) {
    // Claims go by two connections: this answer was overtaken by that of a later claim.
    counters_.leases_lost.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::warning, "worker_lease_lost", later, "claimed again before the answer to the first claim came");
    return false;
  }
  for (const JobPtr& other : older) {
    // A job that is claimed before its lease is over has been put back by the settle whose answer is lost.
    const bool was_put_back = other->held.maybe_done && now_ < lease_of(*other);
    lose(other, was_put_back ? Loss::refused : Loss::lapsed, "claimed again by this worker");
  }
  return true;
}

void Engine::adopt(const JobPtr& running, TimePoint sent) {
  const bool newest = is_newest(running->id, running->token);
  hold(running, sent);
  counters_.running.store(static_cast<std::uint32_t>(++handed_), std::memory_order_relaxed);
  if (!newest) {
    running->held.lost = running->held.lapsed = true;
    running->lease_lost.store(true, std::memory_order_release);
    ask_to_stop(*running, StopCause::lease_lost);
  } else if (expired_) {
    // Begun as the worker was told to stop at once: it goes back as those did that had begun before.
    running->withdrawn.store(true, std::memory_order_release);
    running->held.outcome = HandBack();
    settle(running);
    while (send_exchange()) {
    }
    running->stop.request(StopCause::worker_stopped);
  }
}

Engine::JobPtr Engine::make_job(queue::TakenJob taken) const {
  auto job = std::allocate_shared<JobState>(BlockAllocator<JobState>(blocks_), queue_, std::move(taken));
  if (!job->timeout && options_.timeout.count() > 0)
    job->timeout = options_.timeout;
  job->lease = options_.lease;
  job->announced = publisher_.wants(job->id);
  return job;
}

void Engine::hold(const JobPtr& job, TimePoint sent) {
  Held& held = job->held;
  held.index = held_.size();
  held.since = now_;
  held.lease_until = sent + options_.lease;
  held_.push_back(job);
  by_id_.add(*job);
  if (observers_)
    claimed_.emplace_back(job);
  alarms_.set_earlier(Alarm::lapse, held.lease_until);
  alarms_.set_earlier(Alarm::renew, sent + options_.lease / 3);
  if (job->timeout)
    alarms_.set_earlier(Alarm::limit, now_ + *job->timeout);
}

void Engine::tune(TimePoint sent) {
  const Clock::duration took = now_ - sent;
  round_trip_ = round_trip_.count() == 0 ? took : round_trip_ + (took - round_trip_) / 8;
  const std::int64_t run = pool_->mean_run().count();
  if (run == 0 || gather_)
    return;  // batches gather instead
  // As many as the slots work off while two calls go to the server and back; and never more than a quarter of a lease's
  // work, so that what waits does not cost a renewal.
  using Nanoseconds = std::chrono::nanoseconds;
  const auto budget = std::min<Nanoseconds>(2 * round_trip_, Nanoseconds(options_.lease) / 4);
  const std::int64_t jobs = budget.count() * static_cast<std::int64_t>(options_.concurrency) / run;
  prefetch_ = static_cast<std::size_t>(std::clamp<std::int64_t>(jobs, 0, kMostPrefetch));
  counters_.prefetched.store(static_cast<std::uint32_t>(prefetch_), std::memory_order_relaxed);
}

void Engine::pause_claims(Milliseconds pause) {
  claim_pause_ = pause;
  claims_paused_ = true;
  alarms_.set(Alarm::claim, now_ + spread(claim_pause_));
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
