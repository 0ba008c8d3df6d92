// Subscriptions.
#include "client/subscriptions.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {

namespace {

[[nodiscard]] UnixMillis wall_clock() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
/// What is waited at once: a client that closes waits for it.
constexpr milliseconds kOneWait{100};

}  // namespace

void Subscription::State::deliver(Event event) {
  if (handlers.at_once) {
    const std::lock_guard in_handler(running);
    {
      const std::lock_guard lock(mutex);
      if (cancelled)
        return;
    }
    tell(event);
    return;
  }
  {
    const std::lock_guard lock(mutex);
    if (cancelled)
      return;
    events.push_back(std::move(event));
    if (scheduled)
      return;
    scheduled = true;
  }
  target->post(Continuation(&State::run, new std::shared_ptr<State>(shared_from_this())));
}

void Subscription::State::end() {
  if (!handlers.on_end)
    return;
  const std::lock_guard in_handler(running);
  {
    const std::lock_guard lock(mutex);
    if (cancelled)
      return;
  }
  handlers.on_end();
}

void Subscription::State::run(void* raw) noexcept {
  const std::unique_ptr<std::shared_ptr<State>> self(static_cast<std::shared_ptr<State>*>(raw));
  State& state = **self;
  const std::lock_guard in_handler(state.running);
  for (;;) {
    Event event;
    {
      const std::lock_guard lock(state.mutex);
      if (state.cancelled || state.events.empty()) {
        state.scheduled = false;
        return;
      }
      event = std::move(state.events.front());
      state.events.pop_front();
    }
    state.tell(event);
  }
}

void Subscription::State::tell(const Event& event) const {
  if (event.is_gap) {
    if (handlers.on_gap)
      handlers.on_gap(event.from, event.until);
  } else if (handlers.on_message) {
    handlers.on_message(channel, event.payload);
  }
}

Subscription& Subscription::operator=(Subscription&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Subscription::~Subscription() { cancel(); }

void Subscription::cancel() noexcept {
  const std::shared_ptr<State> state = std::exchange(state_, nullptr);
  if (!state)
    return;
  {
    const std::lock_guard lock(state->mutex);
    state->cancelled = true;
    state->events.clear();
  }
  if (const auto hub = state->hub.lock())
    hub->remove(state);
  const std::lock_guard wait_for_handler(state->running);
}

bool Subscription::live() const noexcept {
  // A connection that is gone confirms nothing, also before its loss has been told around.
  const std::int64_t connection = connection_id();
  return connection != 0 && state_->live.load(std::memory_order_acquire) &&
         state_->confirmed_on.load(std::memory_order_acquire) == connection;
}
std::uint64_t Subscription::gaps() const noexcept { return state_ ? state_->gaps.load(std::memory_order_relaxed) : 0; }
std::int64_t Subscription::connection_id() const noexcept {
  if (!state_)
    return 0;
  const auto hub = state_->hub.lock();
  const auto link = hub ? hub->link() : nullptr;
  return link ? link->connection_id() : 0;
}

namespace client {

namespace {

/// Runs what it is given on the thread that has the answer.
class AtOnce final : public detail::Target {
 public:
  void post(Continuation continuation) override { continuation(); }
};
AtOnce at_once;

}  // namespace

Reply<Subscription> SubscriptionHub::subscribe(std::string_view channel, ChannelHandlers handlers) {
  auto state = std::make_shared<Subscription::State>();
  state->channel = channel;
  state->handlers = std::move(handlers);
  state->hub = weak_from_this();
  state->target = target_;

  const std::array<std::string_view, 2> parts = {"SUBSCRIBE", channel};
  auto decode = [self = weak_from_this(), state](const wire::Answer& answer) -> Result<Subscription> {
    const auto hub = self.lock();
    if (answer.view.is_error()) {
      if (hub)
        hub->remove(state);
      return std::unexpected(wire::to_error(answer.view.error_text()));
    }
    if (hub) {
      const std::lock_guard lock(hub->mutex_);
      if (const auto found = hub->channels_.find(state->channel); found != hub->channels_.end()) {
        found->second.confirmed = true;
      }
    }
    const auto confirming = hub ? hub->link() : nullptr;
    state->confirmed_on.store(confirming ? confirming->connection_id() : 0, std::memory_order_release);
    state->live.store(true, std::memory_order_release);
    return Subscription(state);
  };
  using Bound = wire::BoundCall<Subscription, decltype(decode), true>;
  Bound* call = Bound::make(parts, std::move(decode));
  // Who hears at once is answered at once: an executor that has stopped takes nothing any more.
  call->default_target = state->handlers.at_once ? &at_once : target_;
  call->repeat = Repeat::safe;
  call->deadline = detail::Clock::now() + deadline_;
  call->source = this;
  call->retain();
  detail::CallPointer<detail::CallOf<Subscription>> mine(call);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      call->release();
      return fail(Errc::client_closed, "the client is closed");
    }
    if (!link_) {
      link_ = ways_.make_link(this, nullptr);
      link_->start();
    }
    // Registered before the confirmation, so that no message after it is missed.
    channels_[state->channel].subscribers.push_back(state);
    // Under the lock, so that it is not left behind when the hub moves to another node.
    link_->submit(call, false);
  }
  return Reply<Subscription>(std::move(mine));
}

void SubscriptionHub::remove(const std::shared_ptr<Subscription::State>& state) {
  // Under the lock to the end, so that a subscription to the same channel that begins meanwhile is not undone.
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(state->channel);
  if (found == channels_.end())
    return;
  std::erase_if(found->second.subscribers, [&](const auto& weak) {
    const auto other = weak.lock();
    return !other || other == state;
  });
  if (!found->second.subscribers.empty())
    return;
  channels_.erase(found);
  state->live.store(false, std::memory_order_release);
  // While the connection is down there is nothing to undo: the channel is not restored.
  if (!link_ || !link_->live())
    return;
  const std::array<std::string_view, 2> parts = {"UNSUBSCRIBE", state->channel};
  auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
  detail::Call* call = wire::BoundCall<void, decltype(decode), true>::make(parts, decode);
  call->deadline = detail::Clock::now() + deadline_;
  link_->submit_internal(call);
}

void SubscriptionHub::cancel(detail::Call& call) {
  if (const auto connection = link())
    connection->cancel(call);
}

UnixMillis SubscriptionHub::end_gap(const std::string& channel, UnixMillis now) {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(channel);
  if (found == channels_.end())
    return now;
  return std::exchange(found->second.lost, std::nullopt).value_or(now);
}

void SubscriptionHub::link_live(std::int64_t connection_id) {
  const std::lock_guard lock(mutex_);
  heard_ = wall_clock();
  connection_ = connection_id;
  ++round_;
  asks_again_ = false;
  pause_ = kFirstPause;
  for (auto& [name, channel] : channels_) {
    channel.refused = false;
    if (channel.confirmed)  // else its first SUBSCRIBE waits in the link
      restore_locked(name, channel);
  }
}

void SubscriptionHub::restore_locked(const std::string& name, const Channel& channel) {
  const std::array<std::string_view, 2> parts = {"SUBSCRIBE", name};
  auto decode = [self = weak_from_this(), of = name, subscribers = channel.subscribers, connection_id = connection_,
                 round = round_](const wire::Answer& answer) -> Result<void> {
    const auto hub = self.lock();
    if (answer.view.is_error()) {
      Error why = wire::to_error(answer.view.error_text());
      if (hub)
        hub->refused(of, round, why);
      return std::unexpected(std::move(why));
    }
    const UnixMillis until = wall_clock();
    const UnixMillis from = hub ? hub->end_gap(of, until) : until;
    for (const auto& weak : subscribers) {
      const auto state = weak.lock();
      // One that has not been confirmed yet has a SUBSCRIBE of its own on the way, and has missed nothing; nor has one that
      // was confirmed on this connection.
      if (!state || state->confirmed_on.load(std::memory_order_acquire) == 0 ||
          state->live.load(std::memory_order_acquire))
        continue;
      state->confirmed_on.store(connection_id, std::memory_order_release);
      state->live.store(true, std::memory_order_release);
      state->gaps.fetch_add(1, std::memory_order_relaxed);
      state->deliver({.is_gap = true, .from = from, .until = until});
    }
    return {};
  };
  detail::Call* call = wire::BoundCall<void, decltype(decode), true>::make(parts, std::move(decode));
  link_->submit_internal(call);
}

void SubscriptionHub::refused(const std::string& name, std::uint64_t round, const Error& why) {
  milliseconds pause{0};
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(name);
    if (closed_ || round != round_ || found == channels_.end())
      return;
    found->second.refused = true;
    // All that are refused meanwhile are asked for together.
    if (!asks_again_) {
      asks_again_ = true;
      pause = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
  }
  ways_.refused(name, why);
  if (pause > milliseconds(0))
    ask_again(round, pause);
}

void SubscriptionHub::ask_again(std::uint64_t round, milliseconds left) {
  const milliseconds wait = std::min(left, kOneWait);
  ways_.later(wait, [of = weak_from_this(), round, left = left - wait] {
    const auto self = of.lock();
    if (!self)
      return;
    {
      const std::lock_guard lock(self->mutex_);
      // Of a connection that is lost the next one restores all.
      if (self->closed_ || round != self->round_ || !self->link_->live())
        return;
      if (left == milliseconds(0)) {
        self->asks_again_ = false;
        for (auto& [name, channel] : self->channels_) {
          if (std::exchange(channel.refused, false) && channel.confirmed)
            self->restore_locked(name, channel);
        }
        return;
      }
    }
    self->ask_again(round, left);
  });
}

void SubscriptionHub::link_lost(const Error&) {
  {
    const std::lock_guard lock(mutex_);
    // Silence is found out within two heartbeats and a tick: what was heard later than that was heard last.
    const UnixMillis lost = std::max(heard_, wall_clock() - 2 * heartbeat_ - std::chrono::seconds(1));
    for (auto& [name, channel] : channels_) {
      if (channel.confirmed && !channel.lost)
        channel.lost = lost;
      for (const auto& weak : channel.subscribers) {
        if (const auto state = weak.lock())
          state->live.store(false, std::memory_order_release);
      }
    }
  }
  leave_lost_node();
}

void SubscriptionHub::leave_lost_node() {
  std::shared_ptr<wire::Link> lost;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !link_ || link_->live())
      return;
    std::shared_ptr<wire::Link> elsewhere = ways_.make_link(this, &link_->endpoint());
    if (!elsewhere)
      return;
    lost = std::exchange(link_, std::move(elsewhere));
    // First subscriptions that are not confirmed yet; the others are restored when the new connection is live.
    wire::CallQueue waiting;
    lost->extract_waiting([](const detail::Call& call) { return !call.internal; }, waiting);
    link_->take_over(std::move(waiting));
    link_->start();
  }
  lost->close(Error(Errc::disconnected, "subscriptions moved to another node", Repeat::safe));
}

void SubscriptionHub::link_push(const resp::View& frame) {
  auto elements = frame.elements();
  std::array<std::string_view, 3> texts;
  for (std::string_view& text : texts) {
    const auto view = elements.next().as_text();
    if (!view)
      return;
    text = *view;
  }
  const auto [kind, channel, payload] = texts;
  if (kind != "message")
    return;
  std::vector<std::weak_ptr<Subscription::State>> subscribers;
  {
    const std::lock_guard lock(mutex_);
    heard_ = wall_clock();
    if (const auto found = channels_.find(std::string(channel)); found != channels_.end()) {
      subscribers = found->second.subscribers;
    }
  }
  for (const auto& weak : subscribers) {
    if (const auto state = weak.lock())
      state->deliver({.payload = std::string(payload)});
  }
}

std::shared_ptr<wire::Link> SubscriptionHub::link() const {
  const std::lock_guard lock(mutex_);
  return link_;
}

void SubscriptionHub::close(const Error& why) {
  std::shared_ptr<wire::Link> link;
  std::vector<std::weak_ptr<Subscription::State>> subscribers;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    link = link_;
    for (const auto& [name, channel] : channels_)
      subscribers.insert(subscribers.end(), channel.subscribers.begin(), channel.subscribers.end());
  }
  if (link)
    link->close(why);
  for (const auto& weak : subscribers) {
    if (const auto state = weak.lock())
      state->end();
  }
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
