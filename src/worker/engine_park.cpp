// Parking on the wake list when there is nothing to claim.
//
// No wake is lost: the `park` script looks at the queue and writes the worker's name in one step, so whatever is
// admitted later pushes a token, and a token stays in the list until some BLPOP takes it. A worker that has taken a
// token and has no slot left for what it stood for passes it on.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "client/attended.hpp"
#include "script/registry.hpp"
#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// Looks that promised what no claim found, before they are slowed down.
constexpr unsigned kFruitless = 3;
/// The shortest beat, however much work comes untold.
constexpr Milliseconds kShortestBeat{50};
constexpr Milliseconds kFirstPause{50};
/// How long a claim waits behind a BLPOP before it is sent anew. With leases so short that it would be less than the first,
/// a token is told instead.
constexpr Milliseconds kShortestRide{500};
constexpr Milliseconds kLongestRide{10'000};
constexpr Milliseconds kRideGrace{250};
/// Between two passes of tokens for work that others serve: without any such worker the token comes back at once.
constexpr Milliseconds kForeign{40};

[[nodiscard]] std::optional<Milliseconds> wait_of(std::int64_t milliseconds) {
  if (milliseconds < 0)
    return std::nullopt;
  return Milliseconds{std::min<std::int64_t>(milliseconds, std::int64_t{365} * 86'400'000)};
}

}  // namespace

void Engine::look() {
  if (looking_ || closed_)
    return;
  looking_ = true;
  named_ = true;
  static const script::ScriptSource& park = *script::find_script("park");
  const std::string beat = std::to_string(options_.beat.count());
  const std::array<std::string_view, 7> keys = {keys_.pending(), keys_.ring(), keys_.schedule(), keys_.active(),
                                                keys_.parked(),  keys_.wake(), keys_.meta()};
  const std::string_view serves = !batch_ ? "" : batch_->source == BatchSource::lanes ? "l" : "f";
  const std::array<std::string_view, 3> arguments = {name_, beat, serves};
  auto decode = [](const wire::Answer& answer) -> Result<Look> {
    const auto claimable = answer.view.at(0).as_integer();
    const auto due = answer.view.at(1).as_integer();
    const auto lapse = answer.view.at(2).as_integer();
    if (!claimable || !due || !lapse)
      return fail(Errc::protocol_error, "the reply of script park is not three integers");
    return Look{*claimable != 0, wait_of(*due), wait_of(*lapse)};
  };
  when(core_->eval<Look>(park, keys, std::span(arguments).first(batch_ ? 3 : 2), {.repeat = Repeat::safe}, decode),
       [this](const Result<Look>& answer) { looked(answer); });
}

void Engine::looked(const Result<Look>& answer) {
  looking_ = false;
  const bool by_beat = std::exchange(by_beat_, false);
  const bool again = std::exchange(look_again_, false);
  if (stopping_) {
    // Sent anew after a lost script it may have come behind all that the stop has said: the name is there again, and tokens
    // that stood for a due job are gone.
    take_name_out();
    pass_token_on();
    return;
  }
  if (!answer) {
    call_failed(answer.error(), "park");
    if (parked_)
      leave_parking();
    pause_claims(kFirstPause);
    return;
  }
  if (again)
    return look();
  due_ = answer->due ? now_ + *answer->due : TimePoint::max();
  // A millisecond later, when it has lapsed for certain, and not all workers at once.
  if (answer->lapse)
    alarms_.set_earlier(Alarm::sweep, now_ + *answer->lapse + Milliseconds{1} + at_random(Milliseconds{20}));

  if (by_beat) {
    // Work that nobody told: a peer that pushes no token admits here. Then look more often, and less when it is over.
    beat_ = answer->claimable ? std::max(beat_ / 4, std::min(kShortestBeat, options_.beat))
                              : std::min(beat_ * 2, options_.beat);
  }
  if (!answer->claimable) {
    nothing_claimable();
    next_promote();
    return;
  }
  named_ = false;  // the script has taken it out
  new_work();
  next_promote();
  if (++fruitless_ < kFruitless)
    return;
  claims_paused_ = true;
  alarms_.set(Alarm::claim, now_ + std::min(Milliseconds{1 << std::min(fruitless_ - kFruitless, 9U)}, options_.beat));
}

void Engine::nothing_claimable() {
  fruitless_ = 0;
  // Something came while the script ran, or the slots are taken: the next claims are on their way, no need to sleep.
  if (!dry_ || claims_ > 0 || full()) {
    if (parked_)
      leave_parking();
    return;
  }
  if (std::exchange(token_owed_, false) && batch_)
    pass_foreign_token();
  if (!parked_) {
    parked_ = true;
    wait_for_token();
  }
  alarms_.set(Alarm::beat, now_ + spread(beat_));
}

void Engine::wait_for_token() {
  // Batches gather first, and then claim what they lack.
  const auto wait = std::min(options_.lease / 3, kLongestRide);
  const std::size_t asked =
      gather_ || riding_ || wait < kShortestRide || sent_then_ == TimePoint::min() ? 0 : std::min(room(), bite());
  if (asked == 0) {
    watch_->park(true);
    return;
  }
  // Should this worker be cut off meanwhile, the server would give the jobs to nobody: so not for longer than a third of a
  // lease, in which the jobs that it has now cannot lapse and come to it once more. The BLPOP ends a little later.
  queue::TakeRequest take{
      .most = static_cast<std::uint32_t>(asked), .lease = options_.lease, .lanes_first = lanes_first_};
  take.last_moment = clock_then_ + std::chrono::ceil<Milliseconds>(now_ - sent_then_) + wait;
  lanes_first_ = !lanes_first_;
  asked_ += asked;
  riding_ = true;
  auto ride = std::make_shared<Ride>(Ride{clock_then_, sent_then_, nullptr});
  // Observers hear of a claim before its run begins, and from the control thread.
  if (!observers_)
    take.at_once = [this, ride](queue::Exchanged& answer) { begin_at_once(*ride, answer); };
  when(queue::exchange(riding_verbs_, {}, take, wait + kRideGrace),
       [this, asked, ride](Result<queue::Exchanged> answer) { ridden(asked, *ride, std::move(answer)); });
  if (!take.at_once)
    return;
  if (auto* attended = dynamic_cast<client::Attended*>(watch_.get()))
    pool_->lend(attended->attendant(), core_->late_wakes());
}

void Engine::begin_at_once(Ride& ride, queue::Exchanged& answer) const {
  if (!HandlerPool::attends(this) || !begins_at_once_.load(std::memory_order_relaxed) || answer.jobs.size() != 1)
    return;
  // Whatever concerns other runs, or ends without one, is the control thread's.
  const queue::TakenJob& first = answer.jobs.front();
  const TimePoint now = Clock::now();
  if (first.cancelled || first.job.token.value() > 1 ||
      now >= time_of(answer.claimed_at, ride.clock_then, ride.sent_then, now) + options_.lease)
    return;
  ride.begun = make_job(std::move(answer.jobs.front()));
  HandlerPool::begin_here(ride.begun);
}

void Engine::ridden(std::size_t asked, const Ride& ride, Result<queue::Exchanged> answer) {
  riding_ = false;
  asked_ -= asked;
  const bool marks = std::exchange(marks_ride_, false);
  if (!answer && answer.error().is(Errc::cancelled)) {
    // Never sent: this worker left, or its time was over before its turn came. If it sleeps it gets in line again.
    if (parked_ && !stopping_)
      wait_for_token();
    return;
  }
  if (std::exchange(parked_, false)) {
    alarms_.clear(Alarm::beat);
    promote_while_busy();
  }
  if (const std::uint64_t tokens = watch_->take_tokens(); tokens > 0) {
    counters_.wakes.fetch_add(tokens, std::memory_order_relaxed);
    token_owed_ = true;
    look_again_ = looking_;  // a look on its way may be older than what the token told
  }
  if (stopping_ && std::exchange(token_owed_, false))
    pass_token_on();  // behind it comes whatever the claim took: handed back, with a token of its own
  if (!answer) {
    // The connection was lost, or this one does not know the script: claim by the other one.
    dry_ = false;
    if (answer.error().is(Errc::client_closed) || answer.error().is(Errc::forked))
      closed_ = true;
    if (answer.error().is(Errc::outcome_unknown)) {
      call_failed(answer.error(), "claim behind the BLPOP");  // what it took, if anything, comes back by its lease
    } else {
      log(LogLevel::info, "worker_parking_ended", nullptr, answer.error().message());
    }
    if (!stopping_ && !answer.error().is(Errc::server_error))
      pause_claims(kFirstPause);
    return;
  }
  if (answer->gate == queue::Gate::late) {
    dry_ = dry_ && !token_owed_;  // whom the token was for must claim by itself; without one a look will do
    by_beat_ = dry_ && !looking_;
    return;
  }
  ++rides_ended_;
  const TimePoint at =
      sent_then_ == TimePoint::min() ? now_ : time_of(answer->claimed_at, clock_then_, sent_then_, now_);
  taken(at, *answer, true, ride.begun);
  if (marks)
    ask_for_marks();
}

/// The claim waited on the server, so when it was sent says nothing: the server's clock does, beside an earlier claim's. Never
/// later than the truth while that clock runs evenly, so that no lease is believed in when it is over.
TimePoint Engine::time_of(UnixMillis claimed_at, UnixMillis clock_then, TimePoint sent_then, TimePoint now) {
  return std::clamp(sent_then + (claimed_at - clock_then) - Milliseconds{1}, std::min(sent_then, now), now);
}

void Engine::new_work() {
  dry_ = false;
  if (parked_)
    leave_parking();
}

void Engine::leave_parking() {
  parked_ = false;
  watch_->park(false);
  alarms_.clear(Alarm::beat);
  promote_while_busy();
  // Others may sleep beside work that was not told to them: whoever has no slot left for it wakes the next one.
  token_owed_ = true;
}

void Engine::take_name_out() {
  named_ = false;
  const std::array<std::string_view, 3> parts = {"ZREM", keys_.parked(), name_};
  auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
  when(core_->command<void>(parts, {.repeat = Repeat::safe}, decode), [](const Result<void>&) {});
}

void Engine::tokens_taken(std::uint64_t tokens) {
  counters_.wakes.fetch_add(tokens, std::memory_order_relaxed);
  token_owed_ = true;
  if (stopping_) {
    pass_token_on();
  } else {
    new_work();
  }
}

void Engine::pass_foreign_token() {
  if (stopping_ || closed_)
    return;
  if (passed_ != TimePoint::min() && now_ < passed_ + kForeign) {
    alarms_.set_earlier(Alarm::pass, passed_ + kForeign);
    return;
  }
  passed_ = now_;
  pass_token_on();
}

void Engine::pass_token_on() {
  token_owed_ = false;
  struct Left {
    std::int64_t claimable = 0;
    std::int64_t parked = 0;
    unsigned answers = 0;
    bool unknown = false;
  };
  // One that stops takes along what it knows of the next due job, or the token that told it: then another one has to look.
  const bool tells_due = stopping_;
  auto left = std::make_shared<Left>();
  const auto push = [this] {
    auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
    const std::array<std::string_view, 3> token = {"LPUSH", keys_.wake(), "1"};
    const std::array<std::string_view, 4> trim = {"LTRIM", keys_.wake(), "0", "63"};
    when(core_->command<void>(token, {.repeat = Repeat::safe}, decode), [](const Result<void>&) {});
    when(core_->command<void>(trim, {.repeat = Repeat::safe}, decode), [](const Result<void>&) {});
  };
  const auto read = [&](std::string_view command, const std::string& key, std::int64_t Left::* into) {
    const std::array<std::string_view, 2> parts = {command, key};
    auto decode = [](const wire::Answer& answer) -> Result<std::int64_t> {
      return answer.view.as_integer().value_or(0);
    };
    when(core_->command<std::int64_t>(parts, {.repeat = Repeat::safe}, decode),
         [left, into, push, asked = tells_due ? 4U : 3U](const Result<std::int64_t>& answer) {
           if (answer) {
             (*left).*into += *answer;
           } else {
             left->unknown = true;  // rather one too many: the next one that parks drops it
           }
           if (++left->answers == asked && (left->unknown || (left->claimable > 0 && left->parked > 0)))
             push();
         });
  };
  read("ZCARD", keys_.pending(), &Left::claimable);
  read("LLEN", keys_.ring(), &Left::claimable);
  read("ZCARD", keys_.parked(), &Left::parked);
  if (tells_due)
    read("ZCARD", keys_.schedule(), &Left::claimable);
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
