// The connection on which a table hears of others' writes.
#include "cache/coherence.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "cache/exchange.hpp"
#include "keyspace/slot.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
/// What is waited at once: a client that closes waits for it.
constexpr milliseconds kOneWait{100};

}  // namespace

CoherenceLink::CoherenceLink(Coherence mode, const TableKeys& keys, std::weak_ptr<CoherenceSink> sink)
    : mode_(mode),
      prefix_(keys.prefix),
      channel_(keys.channel),
      sink_(std::move(sink)),
      slot_(mode == Coherence::tracking ? keyspace::slot(keys.prefix) : detail::Call::kAnySlot) {}

Result<void> CoherenceLink::start(client::LiveCore& core) {
  core_ = &core;
  deadline_ = core.options().deadline;
  core.watch_map(weak_from_this());
  std::shared_ptr<wire::Link> first;
  {
    const std::lock_guard lock(mutex_);
    open(core.node_of(slot_));
    first = link_;
  }
  first->start();
  const auto until = detail::Clock::now() + core.options().connect_timeout + deadline_;
  if (auto live = first->wait_live(until); !live)
    return live;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return first_.has_value(); }))
    return fail(Errc::timeout, "the server did not confirm the cache's subscription in time");
  return *first_;
}

/// With the mutex. The connection is not started.
void CoherenceLink::open(const wire::Endpoint& node) {
  const bool subscribes = mode_ == Coherence::broadcast;
  doubted_ = false;
  link_ = core_->open_link(subscribes ? ":cache" : ":tracking", subscribes,
                           std::make_shared<Ear>(weak_from_this(), ++number_), node);
}

void CoherenceLink::close() {
  std::shared_ptr<wire::Link> last;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    last = link_;
  }
  if (last)
    last->close(Error(Errc::client_closed, "the cache is closed", Repeat::safe));
}

std::shared_ptr<wire::Link> CoherenceLink::link() const {
  const std::lock_guard lock(mutex_);
  return link_;
}

bool CoherenceLink::is_current(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return number == number_;
}

void CoherenceLink::misplaced() {
  {
    const auto sink = sink_.lock();
    const std::lock_guard lock(mutex_);
    if (closed_ || std::exchange(doubted_, true))
      return;
    if (sink)
      sink->lost();
  }
  core_->read_map();  // and then `map_changed`
}

void CoherenceLink::map_changed() {
  std::shared_ptr<wire::Link> left;
  std::shared_ptr<wire::Link> next;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !first_)
      return;  // `start` waits for the first one
    const auto elsewhere = core_->better_node(*link_, slot_);
    if (!elsewhere && !doubted_)
      return;
    // The same node again when it serves the slot after all: what it has not told meanwhile is not known.
    left = link_;
    open(elsewhere.value_or(left->endpoint()));
    next = link_;
  }
  if (const auto sink = sink_.lock())
    sink->lost();
  left->close(Error(Errc::disconnected, "the cache's connection is with another node now", Repeat::safe));
  next->start();
}

void CoherenceLink::Ear::link_live(std::int64_t) {
  if (const auto link = owner.lock())
    link->live(number);
}

void CoherenceLink::Ear::link_lost(const Error&) {
  const auto link = owner.lock();
  if (!link || !link->is_current(number))
    return;
  if (const auto sink = link->sink_.lock())
    sink->lost();
  link->core_->read_map();  // its node may be gone, and another serve in its place
}

void CoherenceLink::Ear::link_push(const resp::View& frame) {
  const auto link = owner.lock();
  if (!link || !link->is_current(number))
    return;
  if (const auto sink = link->sink_.lock())
    read_push(frame, link->prefix_, link->channel_, *sink);
}

void CoherenceLink::live(std::uint64_t number) {
  const std::shared_ptr<wire::Link> with = link();
  if (!is_current(number))
    return;
  std::uint64_t round = 0;
  {
    const std::lock_guard lock(mutex_);
    round = ++round_;
    pause_ = kFirstPause;
  }
  subscribe(with, number, round);
}

void CoherenceLink::subscribe(const std::shared_ptr<wire::Link>& with, std::uint64_t number, std::uint64_t round) {
  auto end = [self = shared_from_this(), number, round](Result<std::vector<Value>> answers) {
    self->answered(number, round, std::move(answers));
  };
  Exchange* call = mode_ == Coherence::broadcast ? Exchange::command(std::move(end), "SUBSCRIBE", channel_)
                                                 : Exchange::command(std::move(end), "CLIENT", "TRACKING", "ON",
                                                                     "BCAST", "PREFIX", prefix_, "NOLOOP");
  call->deadline = detail::Clock::now() + deadline_;
  with->submit_internal(call);
}

void CoherenceLink::answered(std::uint64_t number, std::uint64_t round, Result<std::vector<Value>> answers) {
  const std::shared_ptr<wire::Link> by = link();
  if (!is_current(number))
    return;
  Result<void> outcome;
  if (!answers) {
    outcome = std::unexpected<Error>(std::move(answers).error());
  } else if (mode_ == Coherence::tracking && by->protocol() < 3) {
    outcome = fail(Errc::requires_resp3, "tracking needs a server that speaks RESP3");
  } else if (answers->back().is_error()) {
    outcome = std::unexpected<Error>(wire::to_error(answers->back().error_text()));
  }
  const std::string text = outcome ? std::string() : outcome.error().message();
  // Taken before the lock, for it may be the last owner of a table that takes the lock when it ends.
  const auto sink = sink_.lock();
  milliseconds pause{0};
  {
    const std::lock_guard lock(mutex_);
    if (number != number_)
      return;
    // Within the lock: whoever doubts the connection later must find L1 on, to put it off.
    if (outcome && !doubted_ && sink)
      sink->armed();
    if (!first_) {
      first_ = std::move(outcome);
    } else if (!outcome && round == round_ && !closed_) {
      pause = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    changed_.notify_all();
  }
  // Of a connection that is lost another one tells when it is live; of one that stays nobody would.
  if (pause == milliseconds(0) || !sink || !by->live() || core_->closed())
    return;
  sink->refused();
  const LogField fields[] = {{"channel", mode_ == Coherence::broadcast ? channel_ : prefix_}, {"text", text}};
  core_->log(LogLevel::warning, "cache_hears_nothing", fields);
  ask_again(round, pause);
}

void CoherenceLink::ask_again(std::uint64_t round, milliseconds left) {
  const milliseconds wait = std::min(left, kOneWait);
  core_->after(wait, [of = weak_from_this(), round, left = left - wait] {
    const auto self = of.lock();
    if (!self || self->core_->closed())
      return;
    std::shared_ptr<wire::Link> with;
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->closed_ || round != self->round_)
        return;
      with = self->link_;
      number = self->number_;
    }
    if (left > milliseconds(0))
      return self->ask_again(round, left);
    if (with->live())
      self->subscribe(with, number, round);
  });
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
