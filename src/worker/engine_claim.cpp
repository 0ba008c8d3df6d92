// Claiming while slots are free, and parking on the wake list when there is nothing to claim.
//
// No wake is lost: the `park` script looks at the queue and writes the worker's name in one step, so whatever is
// admitted later pushes a token, and a token stays in the list until some BLPOP takes it. A worker that has taken a
// token and has no slot left for what it stood for passes it on.
#include <algorithm>
#include <array>

#include "script/registry.hpp"
#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// Settles that wait for a server that answers claims but no settles: beyond so many nothing more is claimed.
constexpr std::size_t kMostUnsettled = 1024;
constexpr Milliseconds kFirstPause{50};
constexpr Milliseconds kLongestPause{1000};
/// How often a worker without a free slot moves due jobs: it cannot sleep until the next one that it knows.
constexpr Milliseconds kBusyPromote{250};
/// Looks that promised what no claim found, before they are slowed down.
constexpr unsigned kFruitless = 3;

[[nodiscard]] std::optional<Milliseconds> wait_of(std::int64_t milliseconds) {
  if (milliseconds < 0)
    return std::nullopt;
  return Milliseconds{std::min<std::int64_t>(milliseconds, std::int64_t{365} * 86'400'000)};
}

}  // namespace

std::size_t Engine::room() const {
  if (full() || held_.size() >= options_.concurrency + kMostUnsettled)
    return 0;
  return options_.concurrency - handed_;
}

void Engine::claim_more() {
  if (closed_ || claims_paused_ || parked_)
    return;
  while (turns_.in_flight() < room()) {
    const std::optional<Source> source = turns_.next(now_);
    if (!source)
      break;
    send_claim(*source);
  }
  if (turns_.in_flight() > 0)
    return;
  if (full()) {
    if (token_owed_)
      pass_token_on();
    alarms_.set_earlier(Alarm::promote, now_ + spread(std::min(options_.beat, kBusyPromote)));
  } else if (turns_.dry()) {
    look();
  }
}

void Engine::send_claim(Source source) {
  // A claim that waits for a connection longer than this would give a job whose lease is nearly over by our clock.
  const ClaimOptions how{.lease = options_.lease, .deadline = std::max(options_.lease / 2, Milliseconds{50})};
  when(source == Source::lanes ? verbs_.claim_lane(how) : verbs_.claim(how),
       [this, source, sent = now_](Result<std::optional<ClaimedJob>> answer) {
         claimed(source, sent, std::move(answer));
       });
}

void Engine::claimed(Source source, TimePoint sent, Result<std::optional<ClaimedJob>> answer) {
  if (!answer) {
    // Whether the server has done it is unknown: a job that it gave away comes back by its lease.
    turns_.failed(source);
    call_failed(answer.error(), "claim");
    pause_claims();
    return;
  }
  claim_pause_ = Milliseconds{0};
  turns_.answered(source, answer->has_value(), now_);
  if (!answer->has_value())
    return;
  fruitless_ = 0;
  begin(*std::move(*answer), sent);
}

void Engine::begin(ClaimedJob claimed, TimePoint sent) {
  counters_.claimed.fetch_add(1, std::memory_order_relaxed);
  if (claimed.token.value() > 1) {
    // An earlier run of the same job that is still here has lost it to this one.
    std::vector<HeldJob*> older;
    for (auto& [job, held] : held_) {
      if (job->id == claimed.id && !held.lost && held.phase != Phase::settling)
        older.push_back(&held);
    }
    for (HeldJob* held : older)
      lose(*held, Loss::lapsed, "claimed again by this worker");
  }
  auto job = std::make_shared<JobState>(queue_, std::move(claimed));
  HeldJob& held = held_.try_emplace(job.get(), job, sent + options_.lease).first->second;
  alarms_.set_earlier(Alarm::lapse, held.lease_until);
  alarms_.set_earlier(Alarm::renew, sent + options_.lease / 3);
  if (stopping_ || now_ >= held.lease_until) {
    held.outcome = HandBack();
    settle(held);
    return;
  }
  ++handed_;
  counters_.running.store(static_cast<std::uint32_t>(handed_), std::memory_order_relaxed);
  pool_->submit(std::move(job));
}

void Engine::pause_claims() {
  claim_pause_ = std::clamp(claim_pause_ * 2, kFirstPause, kLongestPause);
  claims_paused_ = true;
  alarms_.set(Alarm::claim, now_ + spread(claim_pause_));
}

void Engine::look() {
  if (looking_ || closed_)
    return;
  looking_ = true;
  named_ = true;
  static const script::ScriptSource& park = *script::find_script("park");
  const std::string beat = std::to_string(options_.beat.count());
  const std::array<std::string_view, 7> keys = {keys_.pending(), keys_.ring(), keys_.schedule(), keys_.active(),
                                                keys_.parked(),  keys_.wake(), keys_.meta()};
  const std::array<std::string_view, 2> arguments = {name_, beat};
  auto decode = [](const wire::Answer& answer) -> Result<Look> {
    const auto claimable = answer.view.at(0).as_integer();
    const auto due = answer.view.at(1).as_integer();
    const auto lapse = answer.view.at(2).as_integer();
    if (!claimable || !due || !lapse)
      return fail(Errc::protocol_error, "the reply of script park is not three integers");
    return Look{*claimable != 0, wait_of(*due), wait_of(*lapse)};
  };
  when(core_->eval<Look>(park, keys, arguments, {.repeat = Repeat::safe}, decode),
       [this](const Result<Look>& answer) { looked(answer); });
}

void Engine::looked(const Result<Look>& answer) {
  looking_ = false;
  if (stopping_)
    return;
  if (!answer) {
    call_failed(answer.error(), "park");
    if (parked_)
      leave_parking();
    pause_claims();
    return;
  }
  due_ = answer->due ? now_ + *answer->due : TimePoint::max();
  next_promote();
  // A millisecond later, when it has lapsed for certain, and not all workers at once.
  if (answer->lapse)
    alarms_.set_earlier(Alarm::sweep, now_ + *answer->lapse + Milliseconds{1} + at_random(Milliseconds{20}));

  if (!answer->claimable) {
    nothing_claimable();
    return;
  }
  named_ = false;  // the script has taken it out
  new_work();
  if (++fruitless_ < kFruitless)
    return;
  claims_paused_ = true;
  alarms_.set(Alarm::claim, now_ + std::min(Milliseconds{1 << std::min(fruitless_ - kFruitless, 9U)}, options_.beat));
}

void Engine::nothing_claimable() {
  fruitless_ = 0;
  // Something came while the script ran, or the slots are taken: the next claims are on their way, no need to sleep.
  if (!turns_.dry() || turns_.in_flight() > 0 || full()) {
    if (parked_)
      leave_parking();
    return;
  }
  token_owed_ = false;
  if (!parked_) {
    parked_ = true;
    watch_->park(true);
  }
  alarms_.set(Alarm::beat, now_ + spread(options_.beat));
}

void Engine::new_work() {
  turns_.refresh();
  if (parked_)
    leave_parking();
}

void Engine::leave_parking() {
  parked_ = false;
  watch_->park(false);
  alarms_.clear(Alarm::beat);
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

void Engine::pass_token_on() {
  token_owed_ = false;
  struct Left {
    std::int64_t claimable = 0;
    std::int64_t parked = 0;
    unsigned answers = 0;
  };
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
         [left, into, push](const Result<std::int64_t>& answer) {
           if (answer)
             (*left).*into += *answer;
           if (++left->answers == 3 && left->claimable > 0 && left->parked > 0)
             push();
         });
  };
  read("ZCARD", keys_.pending(), &Left::claimable);
  read("LLEN", keys_.ring(), &Left::claimable);
  read("ZCARD", keys_.parked(), &Left::parked);
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
