// The wake hub.
#include "client/wake_hub.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "client/attended.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace client {
namespace {

// How long one BLPOP parks. A half-open connection is noticed that much later, so not for ever.
constexpr std::chrono::seconds kPark{20};
constexpr std::chrono::seconds kGrace{3};
// Where the server forbids CLIENT UNBLOCK, a queue that joins waits so long at most.
constexpr std::chrono::seconds kShortPark{1};
// A BLPOP that CLIENT UNBLOCK does not find is looked for again: so often at once, then after a pause each time.
constexpr unsigned kQuickUnblocks = 10;
constexpr std::chrono::milliseconds kUnblockPause{20};
// Between two BLPOPs that the server refuses.
constexpr std::chrono::milliseconds kRefused{250};

[[nodiscard]] Error left() { return Error(Errc::cancelled, "its worker has left its parking place", Repeat::safe); }
[[nodiscard]] Error overdue() { return Error(Errc::cancelled, "its time was over before its turn came", Repeat::safe); }

}  // namespace

void end_claim(detail::Call& claim, const Error& why) {
  if (claim.win())
    claim.fail(why);
  claim.release();
}

class WakeHub::Watch final : public WakeWatch, public Attended {
 public:
  Watch(std::shared_ptr<WakeHub> hub, std::string wake_key, std::function<void()> on_wake)
      : hub_(std::move(hub)), key_(std::move(wake_key)), on_wake_(std::move(on_wake)) {}
  ~Watch() override { hub_->remove(*this); }
  void park(bool parked) override { hub_->set_parked(*this, parked, nullptr, {}); }
  void park_with(detail::Call* claim, std::chrono::milliseconds wait) override {
    hub_->set_parked(*this, true, claim, detail::Clock::now() + wait);
  }
  /// Worth to be sent: what is left of its time is not only the end of it.
  [[nodiscard]] bool claims(detail::Clock::time_point now) const {
    return parked_ && claim_ != nullptr && claim_until_ - now >= claim_wait_ / 2;
  }
  [[nodiscard]] std::uint64_t take_tokens() override { return tokens_.exchange(0, std::memory_order_relaxed); }
  [[nodiscard]] std::function<void(int bell)> attendant() override { return hub_->attendant(*this); }

  const std::shared_ptr<WakeHub> hub_;
  const std::string key_;
  const std::function<void()> on_wake_;
  std::atomic<std::uint64_t> tokens_{0};
  // Guarded by the hub.
  bool parked_ = false;
  detail::Call* claim_ = nullptr;  // not sent yet
  detail::Clock::time_point claim_until_{};
  detail::Clock::duration claim_wait_{};  // as it came
};

WakeHub::WakeHub(Ways ways, wire::Counters& counters, detail::Target* target)
    : ways_(std::move(ways)), counters_(counters), target_(target) {}

std::unique_ptr<WakeWatch> WakeHub::watch(std::string wake_key, std::function<void()> on_wake) {
  auto watch = std::make_unique<Watch>(shared_from_this(), std::move(wake_key), std::move(on_wake));
  const std::lock_guard lock(mutex_);
  watches_.emplace(watch->key_, watch.get());
  return watch;
}

void WakeHub::remove(Watch& watch) {
  detail::Call* claim = nullptr;
  std::shared_ptr<wire::Link> left_link;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = watches_.equal_range(watch.key_);
    const auto found = std::find_if(begin, end, [&](const auto& entry) { return entry.second == &watch; });
    if (found != end)
      watches_.erase(found);
    unpark_locked(watch);
    claim = std::exchange(watch.claim_, nullptr);
    if (rider_ == &watch)
      left_link = leave_connection_locked();  // with it goes the claim: what it took would be nobody's
  }
  if (claim != nullptr)
    end_claim(*claim, left());
  if (left_link) {
    left_link->close(left());
    notify({}, true);  // a token may have gone with it
  }
  const std::lock_guard wait_for_callback(callbacks_);
}

std::function<void(int bell)> WakeHub::attendant(const Watch& watch) const {
  const std::lock_guard lock(mutex_);
  if (closed_ || !link_ || rider_ != &watch)
    return {};
  return [link = link_](int bell) { link->attend(bell); };
}

void WakeHub::unpark_locked(Watch& watch) {
  if (!std::exchange(watch.parked_, false))
    return;
  if (const auto count = parked_.find(watch.key_); count != parked_.end() && --count->second == 0)
    parked_.erase(count);
}

void WakeHub::set_parked(Watch& watch, bool parked, detail::Call* claim, detail::Clock::time_point until) {
  std::unique_lock lock(mutex_);
  detail::Call* const unsent = closed_ ? claim : std::exchange(watch.claim_, claim);
  if (unsent != nullptr) {
    const Error why = closed_ ? Error(Errc::client_closed, "the client is closed", Repeat::safe) : left();
    lock.unlock();
    end_claim(*unsent, why);
    lock.lock();
  }
  if (closed_)
    return;
  if (claim != nullptr) {
    watch.claim_until_ = until;
    watch.claim_wait_ = until - detail::Clock::now();
  }
  // A BLPOP without a claim behind it gives way to one with.
  const bool mounts = claim != nullptr && asking_ && rider_ == nullptr && may_ride_locked();
  if (watch.parked_ == parked) {
    if (parked && !asking_) {
      ask_locked();
    } else if (mounts) {
      unblock_locked();
    }
    return;
  }
  if (!parked) {
    // The BLPOP in flight stays: should it take a token for nobody, that token is pushed back. But a claim behind it
    // would claim then.
    unpark_locked(watch);
    if (rider_ != &watch)
      return;
    detail::Call* const unwritten = withdraw_locked();
    if (unwritten == nullptr)
      return unblock_locked();
    lock.unlock();  // the next claim in line is seen to when the connection is there
    end_claim(*unwritten, left());
    return;
  }
  watch.parked_ = true;
  ++parked_[watch.key_];
  if (!link_) {
    link_ = ways_.park(shared_from_this());
    link_->start();
  }
  if (!asking_) {
    ask_locked();
  } else if (mounts || std::find(asked_.begin(), asked_.end(), watch.key_) == asked_.end()) {
    unblock_locked();
  }
}

void WakeHub::ask_locked() {
  if (closed_ || refused_ || parked_.empty() || !link_)
    return;
  asking_ = true;
  unblocking_ = false;
  unblocks_ = 0;
  ++generation_;
  asked_.clear();
  std::vector<std::string_view> parts = {"BLPOP"};
  for (const auto& [key, count] : parked_)
    asked_.push_back(key);
  parts.insert(parts.end(), asked_.begin(), asked_.end());
  rider_ = next_rider_locked();
  std::chrono::milliseconds park = can_unblock_ ? kPark : kShortPark;
  if (rider_ != nullptr) {
    park = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(rider_->claim_until_ - detail::Clock::now()),
                      std::chrono::milliseconds(1), park);
  }
  // In seconds with three places.
  std::string seconds = std::to_string(park.count() + 1'000'000);
  seconds.insert(seconds.size() - 3, 1, '.');
  parts.push_back(std::string_view(seconds).substr(1));
  auto decode = [self = weak_from_this(), asked = generation_](const wire::Answer& answer) -> Result<void> {
    const auto hub = self.lock();
    if (!hub)
      return {};
    if (answer.view.is_error()) {
      hub->refused(asked, wire::to_error(answer.view.error_text()));
      return {};
    }
    if (answer.view.is_aggregate() && answer.view.size() == 2) {
      const auto key = answer.view.at(0).as_text();
      hub->answered(asked, std::string(key ? *key : std::string_view()), true);
    } else {
      hub->answered(asked, {}, false);
    }
    return {};
  };
  // Errors of the transport go past the decoder: this call's own `fail` tells the hub.
  using Bound = wire::BoundCall<void, decltype(decode), true>;
  detail::Call* call = Bound::make(parts, std::move(decode));
  call->default_target = target_;
  call->blocking = true;
  call->deadline = detail::Clock::now() + park + kGrace;
  // When the call ends without an answer (lost connection, closed), ask again: on the executor, for whoever ends it may hold
  // locks. An answer has been dealt with by then, and wakes nobody for this.
  struct OnEnd final : detail::Target {
    OnEnd(std::weak_ptr<WakeHub> its_hub, std::uint64_t its_generation, detail::CallOf<void>* its_call,
          detail::Target* its_executor)
        : hub(std::move(its_hub)), generation(its_generation), call(its_call), executor(its_executor) {}
    const std::weak_ptr<WakeHub> hub;
    const std::uint64_t generation;
    detail::CallOf<void>* const call;
    detail::Target* const executor;
    void post(Continuation continuation) override {
      if (call->peek()) {
        continuation();
      } else {
        executor->post(continuation);
      }
    }
    static void run(void* raw) noexcept {
      const std::unique_ptr<OnEnd> self(static_cast<OnEnd*>(raw));
      const Result<void> result = self->call->take();
      self->call->release();
      if (const auto hub = self->hub.lock(); hub && !result)
        hub->failed(self->generation, result.error());
    }
  };
  call->retain();
  auto on_end = std::make_unique<OnEnd>(weak_from_this(), generation_, static_cast<Bound*>(call), target_);
  OnEnd* const target = on_end.get();
  (void)call->on_done(target, Continuation(&OnEnd::run, on_end.release()));
  if (rider_ == nullptr) {
    link_->submit(call, false);
    if (may_ride_locked())
      renew_next_locked();
    return;
  }
  // Behind the BLPOP on the same connection, and in the same write: the server runs it as soon as the BLPOP has ended.
  detail::Call* claim = std::exchange(rider_->claim_, nullptr);
  claim->blocking = true;
  claim->deadline = call->deadline;
  ridden_ = claim;
  wire::CallQueue both;
  both.push(call);
  both.push(claim);
  link_->submit(std::move(both));
}

bool WakeHub::may_ride_locked() const {
  // With several queues nobody knows whose token it will be; and a BLPOP that has to be asked anew for a queue that joins
  // would send the claims of the others home each time.
  // And whoever leaves must be able to take its claim along.
  return can_unblock_ && asked_.size() == 1 && !watches_.empty() && watches_.begin()->first == watches_.rbegin()->first;
}

WakeHub::Watch* WakeHub::next_rider_locked() {
  if (!may_ride_locked())
    return nullptr;
  const auto now = detail::Clock::now();
  const auto found =
      std::find_if(watches_.begin(), watches_.end(), [now](const auto& entry) { return entry.second->claims(now); });
  return found != watches_.end() ? found->second : nullptr;
}

void WakeHub::renew_next_locked() {
  const auto found = std::find_if(watches_.begin(), watches_.end(), [](const auto& entry) {
    return entry.second->parked_ && entry.second->claim_ != nullptr;
  });
  if (found != watches_.end())
    end_claim(*std::exchange(found->second->claim_, nullptr), overdue());  // answered into a mailbox, so with the lock
}

WakeHub::Watch* WakeHub::dismount_locked() {
  // One with a new claim in line has heard of the end of the last, and has parked anew.
  if (rider_ != nullptr && rider_->claim_ == nullptr)
    unpark_locked(*rider_);
  ridden_ = nullptr;
  return std::exchange(rider_, nullptr);
}

detail::Call* WakeHub::withdraw_locked() {
  wire::CallQueue unwritten;
  link_->extract_waiting([this](const detail::Call& call) { return &call == ridden_; }, unwritten);
  detail::Call* const claim = unwritten.pop();
  if (claim != nullptr)
    rider_ = nullptr;
  return claim;
}

std::shared_ptr<wire::Link> WakeHub::leave_connection_locked() {
  auto link = std::exchange(link_, nullptr);
  asking_ = false;
  ++generation_;  // what the BLPOP comes to is of no interest any more
  (void)dismount_locked();
  if (!closed_ && !parked_.empty()) {
    link_ = ways_.park(shared_from_this());
    link_->start();
    ask_locked();
  }
  return link;
}

void WakeHub::unblock_refused(std::uint64_t generation) {
  std::shared_ptr<wire::Link> link;
  {
    const std::lock_guard lock(mutex_);
    can_unblock_ = false;
    if (!asking_ || generation != generation_)
      return;
    link = leave_connection_locked();
  }
  if (link)
    link->close(Error(Errc::disconnected, "the server forbids CLIENT UNBLOCK", Repeat::safe));
  notify({}, true);  // a token may have gone with it
}

void WakeHub::unblock_again(std::uint64_t generation) {
  const auto again = [this, generation] {
    const std::lock_guard lock(mutex_);
    if (!asking_ || generation_ != generation)
      return;
    unblocking_ = false;
    unblock_locked();
  };
  bool soon = false;
  {
    const std::lock_guard lock(mutex_);
    soon = ++unblocks_ < kQuickUnblocks;
  }
  if (soon)
    return again();
  ways_.later(kUnblockPause, [self = shared_from_this(), again] { again(); });
}

void WakeHub::unblock_locked() {
  const std::int64_t id = link_ ? link_->connection_id() : 0;
  if (unblocking_ || id == 0)
    return;  // not connected: the BLPOP is asked anew anyway
  unblocking_ = true;
  const std::string text = std::to_string(id);
  const std::array<std::string_view, 3> parts = {"CLIENT", "UNBLOCK", text};
  auto decode = [self = weak_from_this(), asked = generation_](const wire::Answer& answer) -> Result<void> {
    // 0: the server had not seen the BLPOP yet (it travels on another connection). Ask again while it is the same one; not
    // without end, for it may never arrive.
    const auto freed = answer.view.as_integer();
    const auto hub = self.lock();
    if (hub && answer.view.is_error() && answer.view.error_text().starts_with("NOPERM")) {
      hub->unblock_refused(asked);
    } else if (hub && freed && *freed == 0) {
      hub->unblock_again(asked);
    }
    return {};
  };
  detail::Call* call = wire::BoundCall<void, decltype(decode), true>::make(parts, decode);
  call->deadline = detail::Clock::now() + std::chrono::seconds(10);
  call->repeat = Repeat::safe;  // lost with its connection, it would leave the BLPOP as it is until its end
  ways_.beside(*link_)->submit_internal(call);
}

void WakeHub::send(std::vector<std::string> parts) {
  const std::vector<std::string_view> views(parts.begin(), parts.end());
  auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
  detail::Call* call = wire::BoundCall<void, decltype(decode), true>::make(views, decode);
  call->deadline = detail::Clock::now() + std::chrono::seconds(10);
  ways_.push_back(call);
}

void WakeHub::answered(std::uint64_t generation, const std::string& key, bool got_token) {
  bool used = false;
  {
    const std::lock_guard lock(mutex_);
    const bool is_newest = generation == generation_;
    Watch* rider = nullptr;
    if (is_newest) {
      asking_ = false;
      rider = dismount_locked();
    }
    if (got_token) {
      counters_.wakes.fetch_add(1, std::memory_order_relaxed);
      if (rider != nullptr) {
        rider->tokens_.fetch_add(1, std::memory_order_relaxed);  // its claim's answer follows at once, and tells
      } else {
        used = parked_.contains(key);
        if (!used && !closed_)
          send({"LPUSH", key, "1"});
      }
    }
    if (!used && is_newest)
      ask_locked();
  }
  if (!used)
    return;
  notify(key, false);
  const std::lock_guard lock(mutex_);
  if (!asking_)
    ask_locked();
}

void WakeHub::refused(std::uint64_t generation, const Error& why) {
  // Unblocked, or the lists are somewhere else.
  if (why.text.starts_with("UNBLOCKED") || (ways_.misplaced && (why.is(Errc::moved) || why.is(Errc::cluster_down))))
    return failed(generation, why);
  // It took no token, and it would refuse the same again at once.
  {
    const std::lock_guard lock(mutex_);
    if (generation != generation_)
      return;
    asking_ = false;
    (void)dismount_locked();
    if (closed_ || std::exchange(refused_, true))
      return;
  }
  ways_.later(kRefused, [self = weak_from_this()] {
    if (const auto hub = self.lock()) {
      const std::lock_guard lock(hub->mutex_);
      hub->refused_ = false;
      if (!hub->asking_)
        hub->ask_locked();
    }
  });
}

void WakeHub::failed(std::uint64_t generation, const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (generation != generation_)
      return;  // of a connection that was given up
    asking_ = false;
    (void)dismount_locked();
    if (closed_ || why.is(Errc::client_closed))
      return;
    if (why.text.starts_with("UNBLOCKED"))
      counters_.unblocked_errors.fetch_add(1, std::memory_order_relaxed);
  }
  notify({}, true);  // a token may have gone with the answer
  if (ways_.misplaced && (why.is(Errc::moved) || why.is(Errc::cluster_down))) {
    ways_.find();  // and then `look_again`
    return;
  }
  if (!why.text.starts_with("UNBLOCKED") && why.repeat != Repeat::safe && !why.is(Errc::outcome_unknown))
    return;
  const std::lock_guard lock(mutex_);
  if (!asking_)
    ask_locked();
}

void WakeHub::notify(const std::string& key, bool all) {
  const std::lock_guard running(callbacks_);
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (all) {
      for (const auto& [name, watch] : watches_)
        callbacks.push_back(watch->on_wake_);
    } else {
      // One token wakes one worker, in turns: one that has no use for it passes it on, and it must not come back to it.
      const auto [begin, end] = watches_.equal_range(key);
      const auto found = std::find_if(begin, end, [](const auto& entry) { return entry.second->parked_; });
      if (found != end) {
        callbacks.push_back(found->second->on_wake_);
        watches_.insert(watches_.extract(found));  // behind the others of its key
      } else if (!closed_) {
        send({"LPUSH", key, "1"});  // whoever it was for has gone meanwhile
      }
    }
  }
  for (const auto& callback : callbacks)
    callback();
}

void WakeHub::link_live(std::int64_t) {
  {
    const std::lock_guard lock(mutex_);
    // Whoever parked while there was no connection could not end the BLPOP that was on its way without its key.
    const bool lacks = std::any_of(parked_.begin(), parked_.end(), [this](const auto& entry) {
      return std::find(asked_.begin(), asked_.end(), entry.first) == asked_.end();
    });
    if (asking_ && (lacks || (rider_ == nullptr && next_rider_locked() != nullptr)))
      unblock_locked();
    if (!std::exchange(lived_, true))
      return;  // no token was lost: none has been asked for
  }
  notify({}, true);
}
void WakeHub::link_lost(const Error&) {}

void WakeHub::look_again() {
  std::shared_ptr<wire::Link> left;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !link_)
      return;
    if (ways_.misplaced && ways_.misplaced(*link_)) {
      left = std::exchange(link_, ways_.park(shared_from_this()));
      link_->start();
      asking_ = false;
      (void)dismount_locked();
    }
    if (!asking_)
      ask_locked();
  }
  if (left)
    left->close(Error(Errc::disconnected, "the wake list is on another node", Repeat::safe));
}

bool WakeHub::used() const {
  const std::lock_guard lock(mutex_);
  return !watches_.empty();
}

void WakeHub::close(const Error& why) {
  std::shared_ptr<wire::Link> link;
  std::vector<detail::Call*> unsent;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    link = std::move(link_);
    for (const auto& [key, watch] : watches_) {
      if (detail::Call* claim = std::exchange(watch->claim_, nullptr))
        unsent.push_back(claim);
    }
  }
  for (detail::Call* claim : unsent)
    end_claim(*claim, why);
  if (link)
    link->close(why);
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
