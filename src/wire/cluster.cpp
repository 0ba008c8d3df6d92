// Routing, redirection and the slot map of a cluster.
#include "wire/cluster.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>
#include <utility>

#include "keyspace/keys.hpp"
#include "wire/request.hpp"
#include "wire/request_keys.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

using std::chrono::milliseconds;

/// The node that has the deployment's own keys; also the one for commands without a key.
constexpr std::uint32_t kHomeSlot = keyspace::slot(keyspace::kVersionKey);

/// The map is not asked for more often.
constexpr milliseconds kRefreshGap{100};
constexpr milliseconds kRefreshDeadline{1000};
/// Held calls are looked at so often, and let go after so long whatever the old node does.
constexpr milliseconds kWatch{10};
constexpr milliseconds kLongestHold{1000};
/// Nodes that contradict each other for a while are asked again and again, from here on at the pace of a wait.
constexpr std::uint8_t kQuickRedirects = 3;
constexpr milliseconds kRedirectPause{20};
constexpr std::uint8_t kMostRedirects = 250;
/// Before a call whose keys are divided is tried again; doubled each time.
constexpr milliseconds kFirstPause{5};
constexpr milliseconds kLongestPause{50};
/// A node that serves no slot yet is kept connected for so long after a call went there behind ASKING.
constexpr std::chrono::seconds kAskedLately{10};

using Refusal = detail::Call::Refusal;

}  // namespace

Cluster::Cluster(boost::asio::io_context& io, Settings settings, Connect connect, Counters& counters,
                 Link::LogFunction log, std::function<void()> on_change)
    : io_(io),
      settings_(std::move(settings)),
      connect_(std::move(connect)),
      counters_(counters),
      log_(std::move(log)),
      on_change_(std::move(on_change)),
      refresh_timer_(io),
      watch_timer_(io) {}

Cluster::~Cluster() = default;

// Opening.

Result<void> Cluster::open() {
  Error why(Errc::unreachable, "no node of the cluster", Repeat::safe);
  bool mapped = false;
  for (const Endpoint& seed : settings_.seeds) {
    const std::shared_ptr<Link> link = connect_(seed, nullptr, nullptr);
    link->start();
    const auto until = detail::Clock::now() + settings_.connect_timeout + milliseconds(200);
    Result<void> live = link->wait_live(until);
    Result<Ranges> ranges = Ranges();
    if (live) {
      auto answered = std::make_shared<std::promise<Result<Ranges>>>();
      auto answer = answered->get_future();
      ask(link, [answered](Result<Ranges> result) { answered->set_value(std::move(result)); });
      ranges = answer.get();  // the call's deadline bounds it
    } else {
      ranges = std::unexpected(std::move(live).error());
    }
    link->close(Error(Errc::client_closed, "the map is read", Repeat::safe));
    if (!ranges) {
      why = std::move(ranges).error();
      // Another node would say the same.
      if (why.is(Errc::version_mismatch))
        return fail(std::move(why));
      continue;
    }
    if (ranges->empty()) {
      why = Error(Errc::cluster_down, seed.to_string() + " knows no node that serves a slot", Repeat::safe);
      continue;
    }
    apply(*ranges);
    mapped = true;
    break;
  }
  if (!mapped)
    return fail(std::move(why));

  std::shared_ptr<Link> fence;
  {
    const Lock lock(mutex_);
    Node* owner = slots_[kHomeSlot];
    if (owner == nullptr)
      return fail(Errc::cluster_down, "no node serves the slot of " + std::string(keyspace::kVersionKey), Repeat::safe);
    fence = link_of(*owner).shared_from_this();
  }
  return fence->wait_live(detail::Clock::now() + settings_.connect_timeout + milliseconds(200));
}

// Nodes. All of these want mutex_, in whole where they change something.

bool Cluster::is_live(const Node* node) { return node != nullptr && node->link && node->link->live(); }

Cluster::Node* Cluster::any_node() const {
  // The same for all clients while it is well, so that a publication finds the subscribers that its sender counts.
  if (Node* const home = slots_[kHomeSlot]; is_live(home))
    return home;
  Node* chosen = nullptr;
  for (const auto& node : nodes_) {
    if (!node->serves)
      continue;
    if (is_live(node.get()))
      return node.get();
    if (chosen == nullptr || (node->link && !chosen->link))
      chosen = node.get();
  }
  return chosen != nullptr ? chosen : nodes_.front().get();
}

Cluster::Node* Cluster::node_of(std::uint32_t slot) const {
  Node* const owner = slot < slots_.size() ? slots_[slot] : nullptr;
  return owner != nullptr ? owner : any_node();  // any will say what is wrong
}

Cluster::Node& Cluster::node_at(const Endpoint& endpoint) {
  const auto found = std::ranges::find_if(nodes_, [&](const auto& node) { return node->endpoint == endpoint; });
  if (found != nodes_.end())
    return **found;
  return *nodes_.emplace_back(std::make_unique<Node>(*this, endpoint));
}

Link& Cluster::link_of(Node& node) {
  if (!node.link) {
    node.link = connect_(node.endpoint, this, &node);
    if (closed_) {
      node.link->close(close_error_);
    } else {
      node.link->start();
    }
  }
  return *node.link;
}

Endpoint Cluster::owner_of(std::uint32_t slot) const {
  const std::shared_lock lock(mutex_);
  return node_of(slot)->endpoint;
}

std::shared_ptr<Link> Cluster::link_to(const Endpoint& node) {
  const Lock lock(mutex_);
  return link_of(node_at(node)).shared_from_this();
}

std::unique_ptr<Endpoint> Cluster::live_node(const Endpoint* avoided) const {
  const std::shared_lock lock(mutex_);
  const auto fits = [&](const Node* node) {
    return is_live(node) && node->serves && (avoided == nullptr || node->endpoint != *avoided);
  };
  if (fits(slots_[kHomeSlot]))
    return std::make_unique<Endpoint>(slots_[kHomeSlot]->endpoint);
  for (const auto& node : nodes_) {
    if (fits(node.get()))
      return std::make_unique<Endpoint>(node->endpoint);
  }
  return nullptr;
}

bool Cluster::is_connected(const Endpoint& endpoint) const {
  const std::shared_lock lock(mutex_);
  return std::ranges::any_of(nodes_,
                             [&](const auto& node) { return node->endpoint == endpoint && is_live(node.get()); });
}

std::vector<std::shared_ptr<Link>> Cluster::every_node() {
  const Lock lock(mutex_);
  std::vector<std::shared_ptr<Link>> out;
  for (const auto& node : nodes_) {
    if (node->serves)
      out.push_back(link_of(*node).shared_from_this());
  }
  return out;
}

// Calls.

void Cluster::end(detail::Call* call, const Error& why) {
  if (call->win()) {
    if (call->resent)
      counters_.outcomes_unknown.fetch_add(1, std::memory_order_relaxed);
    call->fail(unanswered(*call, false, why));
  }
  call->release();
}

Result<void> Cluster::route(detail::Call& call) {
  if (call.slot != detail::Call::kUnrouted)
    return {};
  auto slot = slot_of_request({call.request, call.request_size});
  if (!slot)
    return std::unexpected(std::move(slot).error());
  call.slot = *slot;
  return {};
}

/// Where a call goes: to the connection, or to the others of its slot that are held. Without a connection when it was ended.
Cluster::Way Cluster::way_of(detail::Call* call) {
  if (Result<void> routed = route(*call); !routed) {
    end(call, routed.error());
    return {};
  }
  for (;;) {
    std::shared_lock lock(mutex_);
    if (closed_) {
      const Error why = close_error_;
      lock.unlock();
      end(call, why);
      return {};
    }
    Held* const held = held_at(call->slot);
    Node* const node = held != nullptr && held->from != nullptr ? held->from : node_of(call->slot);
    if (node->link)
      return {.lock = std::move(lock), .held = held, .link = node->link.get()};
    lock.unlock();
    const Lock opening(mutex_);
    (void)link_of(*node);
  }
}

void Cluster::submit_or(detail::Call* call, AtBound at_bound) {
  for (;;) {
    Way way = way_of(call);
    if (way.link == nullptr)
      return;
    Link::Taken taken = Link::Taken::accepted;
    std::shared_ptr<Link> full;
    std::uint64_t seen = 0;
    if (way.held != nullptr) {
      const std::lock_guard guard(held_mutex_);
      taken = way.link->taken_beside(held_calls_, held_bytes_);
      if (taken == Link::Taken::accepted) {
        counters_.commands.fetch_add(1, std::memory_order_relaxed);
        call->source = way.link;
        return hold(way.held->later, call);
      }
      seen = releases_;
    } else {
      // Under the lock, so that no call reaches a node after its slot was taken from it and earlier calls were sent on.
      taken = way.link->try_submit(call);
      if (taken == Link::Taken::accepted)
        return;
      full = way.link->shared_from_this();
    }
    way.lock.unlock();
    if (taken == Link::Taken::closed)
      return end(call, Error(Errc::client_closed, "the client is closed", Repeat::safe));
    if (at_bound == AtBound::pass)
      return submit_internal(call);
    if (taken == Link::Taken::overloaded || at_bound == AtBound::refuse || detail::Clock::now() >= call->deadline) {
      counters_.overloads.fetch_add(1, std::memory_order_relaxed);
      return end(call, Error(Errc::overloaded, "too many calls in flight", Repeat::safe));
    }
    if (full) {
      full->wait_for_room(call->deadline);
    } else {
      wait_for_let_go(seen, call->deadline);
    }
  }
}

void Cluster::submit_internal(detail::Call* call) {
  call->internal = true;
  Way way = way_of(call);
  if (way.link == nullptr)
    return;
  // It may follow calls that others have started: not before these either.
  if (way.held != nullptr) {
    call->source = way.link;
    const std::lock_guard guard(held_mutex_);
    return hold(way.held->later, call);
  }
  if (way.link->try_submit_internal(call))  // under the lock, as above
    return;
  way.lock.unlock();
  end(call, Error(Errc::client_closed, "the client is closed", Repeat::safe));
}

bool Cluster::withdraw(detail::Call& call) {
  const Lock lock(mutex_);
  CallQueue found;
  if (Held* const held = held_at(call.slot)) {
    for (CallQueue* queue : {&held->moved, &held->later})
      queue->extract([&](const detail::Call& other) { return &other == &call; }, found);
  }
  if (found.empty())
    return std::ranges::any_of(nodes_, [&](const auto& node) { return node->link && node->link->withdraw(call); });
  note_let_go(found);
  (void)found.pop();
  return true;
}

/// What it waits for goes on.
void Cluster::cancel(detail::Call& call) {
  if (!call.win())
    return;
  counters_.outcomes_unknown.fetch_add(1, std::memory_order_relaxed);
  call.fail(Error(Errc::outcome_unknown, "cancelled after it was written", call.repeat));
}

// Calls that are held.

/// Wants mutex_.
Cluster::Held* Cluster::held_at(std::uint32_t slot) {
  if (held_.empty())
    return nullptr;
  const auto found = held_.find(slot);
  return found != held_.end() ? &found->second : nullptr;
}

/// Wants held_mutex_, or mutex_ in whole.
void Cluster::hold(CallQueue& among, detail::Call* call) {
  held_calls_.fetch_add(1, std::memory_order_relaxed);
  held_bytes_.fetch_add(call->request_size, std::memory_order_relaxed);
  held_deadline_ = std::min(held_deadline_, call->deadline);
  among.push(call);
}

/// Takes out what is held past its deadline. Wants mutex_ in whole.
void Cluster::expire_held(CallQueue& late) {
  const TimePoint now = detail::Clock::now();
  if (now < held_deadline_)
    return;
  held_deadline_ = TimePoint::max();
  for (auto& [slot, held] : held_) {
    for (CallQueue* queue : {&held.moved, &held.later}) {
      queue->extract([&](const detail::Call& call) { return call.deadline <= now; }, late);
      queue->for_each([&](const detail::Call& call) { held_deadline_ = std::min(held_deadline_, call.deadline); });
    }
  }
  if (!late.empty())
    note_let_go(late);
}

void Cluster::wait_for_let_go(std::uint64_t seen, TimePoint until) {
  std::unique_lock lock(held_mutex_);
  released_.wait_until(lock, until, [&] { return releases_ != seen; });
}

/// Tells who waits for room that calls are held no longer. Wants mutex_ in whole.
void Cluster::note_let_go(const CallQueue& calls) {
  std::size_t bytes = 0;
  calls.for_each([&](const detail::Call& call) { bytes += call.request_size; });
  held_calls_.fetch_sub(calls.size(), std::memory_order_relaxed);
  held_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  const std::lock_guard guard(held_mutex_);
  ++releases_;
  released_.notify_all();
  if (ready_waiters_.empty())
    return;
  boost::asio::post(io_, [self = shared_from_this()] { self->ask_whether_ready(); });
}

/// Without a lock: whoever waited runs in here.
void Cluster::ask_whether_ready() {
  std::vector<detail::CallOf<void>*> waiters;
  {
    const std::lock_guard guard(held_mutex_);
    waiters.swap(ready_waiters_);
  }
  for (detail::CallOf<void>* waiter : waiters)
    when_ready(waiter);
}

void Cluster::when_ready(detail::CallOf<void>* waiter) {
  std::shared_ptr<Link> fullest;
  {
    const std::shared_lock lock(mutex_);
    std::size_t most = 0;
    for (const auto& node : nodes_) {
      const auto& link = node->link;
      if (link && (!fullest || link->pending() > most)) {
        fullest = link;
        most = link->pending();
      }
    }
    if (!held_.empty() && !closed_) {
      const std::lock_guard guard(held_mutex_);
      if (fullest && fullest->taken_beside(held_calls_, held_bytes_) != Link::Taken::accepted) {
        ready_waiters_.push_back(waiter);
        return;
      }
    }
  }
  if (fullest)
    return fullest->when_ready(waiter);
  // No node has been asked anything since the ones that served have gone: there is room.
  if (waiter->win()) {
    waiter->store({});
    waiter->publish();
  }
  waiter->release();
}

std::size_t Cluster::pending() const {
  const std::shared_lock lock(mutex_);
  std::size_t sum = held_calls_.load(std::memory_order_relaxed);
  for (const auto& node : nodes_) {
    if (node->link)
      sum += node->link->pending();
  }
  return sum;
}

bool Cluster::live() const {
  const std::shared_lock lock(mutex_);
  return std::ranges::any_of(nodes_, [](const auto& node) { return is_live(node.get()); });
}

void Cluster::close(const Error& why) {
  CallQueue held;
  std::vector<std::shared_ptr<Link>> links;
  {
    const Lock lock(mutex_);
    if (closed_)
      return;
    closed_ = true;
    close_error_ = why;
    for (auto& [slot, calls] : held_) {
      held.append(std::move(calls.moved));
      held.append(std::move(calls.later));
    }
    held_.clear();
    note_let_go(held);
    for (const auto& node : nodes_) {
      if (node->link)
        links.push_back(node->link);
    }
  }
  for (const auto& link : links)  // without the lock: whoever waits for room is told in there
    link->close(why);
  while (detail::Call* call = held.pop())
    end(call, why);
  ask_whether_ready();
  boost::asio::post(io_, [self = shared_from_this()] {
    self->refresh_timer_.cancel();
    self->watch_timer_.cancel();
    if (self->asked_)
      self->asked_->close(self->close_error_);
  });
}

// Redirection.

Refusal Cluster::refusal(const Link& from, std::string_view error_text, std::vector<SlotMove>& moves) {
  if (error_text.starts_with("CLUSTERDOWN"))
    want_refresh();
  if (error_text.starts_with("TRYAGAIN"))
    return Refusal::try_again;
  std::optional<SlotMove> move = parse_moved(error_text, from.endpoint());
  if (!move)
    move = parse_ask(error_text, from.endpoint());
  if (!move)
    return Refusal::none;
  const Refusal how = move->ask ? Refusal::ask : Refusal::moved;
  // Usually a whole pipeline on one slot.
  if (moves.empty() || moves.back().slot != move->slot || moves.back().ask != move->ask || moves.back().to != move->to)
    moves.push_back(*std::move(move));
  return how;
}

void Cluster::redirect(Link&, CallQueue& calls, const std::vector<SlotMove>& moves) {
  CallQueue given_up;
  CallQueue divided;
  CallQueue closed;
  bool changed = false;
  {
    const Lock lock(mutex_);
    std::map<std::uint32_t, Node*> asked;
    if (closed_) {
      closed.swap(calls);
    } else {
      std::vector<std::pair<std::uint32_t, Node*>> changes;
      for (const SlotMove& move : moves) {
        if (move.ask) {
          asked[move.slot] = &node_at(move.to);
        } else {
          changes.emplace_back(move.slot, &node_at(move.to));
        }
      }
      changed = !changes.empty();
      change_hands(changes);
    }
    const TimePoint now = detail::Clock::now();
    std::map<Node*, CallQueue> direct;
    while (detail::Call* call = calls.pop()) {
      Refusal how = std::exchange(call->refusal, Refusal::none);
      const bool asked_for = std::exchange(call->asking, false);
      call->replies = commands_of_request({call->request, call->request_size});
      if (!call->resent || call->repeat == Repeat::unsafe)
        call->first_written = TimePoint{};  // it had no effect where it was
      Node* behind_asking = nullptr;
      if (how == Refusal::ask) {
        const auto at = asked.find(call->slot);
        if (at == asked.end()) {
          how = Refusal::try_again;
        } else if (at->second != node_of(call->slot)) {  // else the slot is there as a whole meanwhile
          behind_asking = at->second;
        }
      }
      if (how == Refusal::try_again) {
        call->redirects = 0;  // what is between two waits
        const milliseconds pause = std::min(kFirstPause * (1 << call->pauses), kLongestPause);
        if (now + pause >= call->deadline) {
          divided.push(call);
          continue;
        }
        if (kFirstPause * (1 << call->pauses) < kLongestPause)
          ++call->pauses;
        if (!held_.contains(call->slot))
          held_[call->slot].until = now + pause;
        hold(held_[call->slot].moved, call);
        continue;
      }
      const bool paused = ++call->redirects > kQuickRedirects;
      if (call->redirects > kMostRedirects || (paused && now >= call->deadline)) {
        given_up.push(call);
        continue;
      }
      counters_.redirects.fetch_add(1, std::memory_order_relaxed);
      // One that is told ASK where it was asked for begins at the owner again, like the others, after a while.
      if (behind_asking != nullptr && !(paused && asked_for)) {
        call->asking = true;
        behind_asking->asked = now;
        direct[behind_asking].push(call);
        continue;
      }
      if (paused && !held_.contains(call->slot))
        held_[call->slot].until = now + kRedirectPause;
      if (const auto held = held_.find(call->slot); held != held_.end()) {
        hold(held->second.moved, call);
      } else {
        direct[node_of(call->slot)].push(call);
      }
    }
    for (auto& [node, queue] : direct)
      link_of(*node).take_over(std::move(queue));
    if (!held_.empty())
      let_go();
  }
  while (detail::Call* call = closed.pop())
    end(call, close_error_);
  while (detail::Call* call = given_up.pop())
    end(call, Error(Errc::moved, "the nodes do not agree who serves its slot", Repeat::safe));
  while (detail::Call* call = divided.pop())
    end(call, Error(Errc::moved, "TRYAGAIN: its slot is on its way, and its keys are on two nodes", Repeat::safe));
  keep_watch();
  if (changed)
    want_refresh();
}

/// Slots get new owners; `let_go` is due afterwards. Wants mutex_.
void Cluster::change_hands(const std::vector<std::pair<std::uint32_t, Node*>>& changes) {
  std::map<Node*, std::vector<std::uint32_t>> taken;
  for (const auto& [slot, to] : changes) {
    Node* const before = std::exchange(slots_[slot], to);
    if (to != nullptr)
      to->serves = true;
    if (before != nullptr && before != to && before->link)
      taken[before].push_back(slot);
  }
  const TimePoint now = detail::Clock::now();
  for (auto& [before, slots] : taken) {
    Link::Slots pending;
    before->link->add_pending_slots(pending);
    for (const std::uint32_t slot : slots) {
      if (!pending.test(slot))
        continue;
      if (Held& held = held_[slot]; held.from == nullptr) {
        held.from = before;
        held.until = now + kLongestHold;
      }
    }
  }
}

/// Sends on what need not be held any longer. Wants mutex_.
void Cluster::let_go() {
  const TimePoint now = detail::Clock::now();
  std::map<Node*, Link::Slots> pending;
  for (const auto& [slot, held] : held_) {
    Node* const from = held.from;
    if (from == nullptr || pending.contains(from))
      continue;
    Link& link = *from->link;
    if (!link.live()) {
      // What a lost connection would send again when it is back goes to the new owner instead.
      CallQueue waiting;
      link.extract_waiting(
          [&](const detail::Call& call) {
            const auto found = held_.find(call.slot);
            return found != held_.end() && found->second.from == from && slots_[call.slot] != from;
          },
          waiting);
      while (detail::Call* call = waiting.pop()) {
        call->asking = false;
        hold(held_[call->slot].moved, call);
      }
    }
    link.add_pending_slots(pending[from]);
  }
  for (auto at = held_.begin(); at != held_.end();) {
    Held& held = at->second;
    const bool due = now >= held.until || (held.from != nullptr && !pending[held.from].test(at->first));
    if (!due) {
      ++at;
      continue;
    }
    CallQueue all = std::move(held.moved);
    all.append(std::move(held.later));
    note_let_go(all);
    if (!all.empty())
      link_of(*node_of(at->first)).take_over(std::move(all));
    at = held_.erase(at);
  }
}

void Cluster::keep_watch() {
  boost::asio::post(io_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->watching_)
      return;
    CallQueue late;
    bool held = false;
    {
      const Lock lock(self->mutex_);
      if (self->closed_)
        return;
      if (!self->held_.empty()) {
        self->expire_held(late);
        self->let_go();
      }
      held = !self->held_.empty();
    }
    while (detail::Call* call = late.pop())
      self->end(call, Error(Errc::timeout, "its slot is on its way: not sent before its deadline", Repeat::safe));
    if (!held)
      return;
    self->watching_ = true;
    self->watch_timer_.expires_after(kWatch);
    self->watch_timer_.async_wait([weak](const boost::system::error_code&) {
      if (const auto again = weak.lock()) {
        again->watching_ = false;
        again->keep_watch();
      }
    });
  });
}

// The map.

void Cluster::node_lost() {
  want_refresh();
  on_change_();
}

void Cluster::want_refresh() {
  if (refresh_wanted_.exchange(true, std::memory_order_acq_rel))
    return;
  boost::asio::post(io_, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->refresh();
  });
}

/// On the library's thread.
void Cluster::refresh() {
  if (refreshing_)
    return;
  std::shared_ptr<Link> link;
  std::vector<Endpoint> others;
  {
    const std::shared_lock lock(mutex_);
    if (closed_)
      return;
    const TimePoint now = detail::Clock::now();
    if (now < last_refresh_ + kRefreshGap) {
      refresh_timer_.expires_at(last_refresh_ + kRefreshGap);
      refresh_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
        const auto self = weak.lock();
        if (self && !error)
          self->refresh();
      });
      return;
    }
    last_refresh_ = now;
    ++next_asked_;
    for (std::size_t i = 0; i < nodes_.size() && !link; ++i) {
      const auto& node = nodes_[(next_asked_ + i) % nodes_.size()];
      if (node->link && node->link->live())
        link = node->link;
      others.push_back(node->endpoint);
    }
    others.insert(others.end(), settings_.seeds.begin(), settings_.seeds.end());
  }
  refreshing_ = true;
  refresh_wanted_.store(false, std::memory_order_release);
  if (!link) {
    // Nobody is connected: a connection for this question alone.
    asked_ = connect_(others[next_asked_ % others.size()], nullptr, nullptr);
    asked_->start();
    link = asked_;
  }
  counters_.map_refreshes.fetch_add(1, std::memory_order_relaxed);
  ask(link, [weak = weak_from_this()](Result<Ranges> ranges) {
    const auto self = weak.lock();
    if (!self)
      return;
    boost::asio::post(self->io_, [weak, ranges = std::move(ranges)]() mutable {
      if (const auto again = weak.lock())
        again->refreshed(std::move(ranges));
    });
  });
}

void Cluster::ask(const std::shared_ptr<Link>& link, std::function<void(Result<Ranges>)> then) {
  constexpr std::string_view kParts[] = {"CLUSTER", "SLOTS"};
  auto decode = [from = link->endpoint()](const Answer& answer) { return parse_cluster_slots(answer.view, from); };
  using Ask = BoundCall<Ranges, decltype(decode), true>;
  detail::CallOf<Ranges>* call = Ask::make(kParts, decode);
  call->slot = detail::Call::kAnySlot;
  call->deadline = detail::Clock::now() + kRefreshDeadline;
  struct OnEnd {
    detail::CallOf<Ranges>* call;
    std::function<void(Result<Ranges>)> then;
    static void run(void* raw) noexcept {
      const std::unique_ptr<OnEnd> self(static_cast<OnEnd*>(raw));
      self->then(self->call->take());
      self->call->release();
    }
  };
  call->retain();
  (void)call->on_done(nullptr, Continuation(&OnEnd::run, new OnEnd{call, std::move(then)}));
  link->submit_internal(call);
}

void Cluster::refreshed(Result<Ranges> ranges) {
  refreshing_ = false;
  if (const std::shared_ptr<Link> asked = std::exchange(asked_, nullptr))
    asked->close(Error(Errc::client_closed, "the map is read", Repeat::safe));
  {
    const std::shared_lock lock(mutex_);
    if (closed_)
      return;
  }
  if (ranges && !ranges->empty()) {
    apply(*ranges);
    on_change_();
    if (refresh_wanted_.load(std::memory_order_acquire))
      refresh();
    return;
  }
  log_(LogLevel::warning, "slot_map_failed", ranges ? "no node serves a slot" : ranges.error().message());
  refresh_wanted_.store(true, std::memory_order_release);
  refresh();
}

void Cluster::apply(const Ranges& ranges) {
  {
    const Lock lock(mutex_);
    std::vector<Node*> owners(slots_.size(), nullptr);
    for (const auto& node : nodes_)
      node->serves = false;
    for (const SlotRange& range : ranges) {
      Node& node = node_at(range.owner);
      node.serves = true;
      std::fill(owners.begin() + range.first, owners.begin() + range.last + 1, &node);
    }
    std::vector<std::pair<std::uint32_t, Node*>> changes;
    for (std::uint32_t slot = 0; slot < owners.size(); ++slot) {
      if (owners[slot] != slots_[slot])
        changes.emplace_back(slot, owners[slot]);
    }
    change_hands(changes);
    const TimePoint now = detail::Clock::now();
    for (const auto& node : nodes_) {
      const auto& link = node->link;
      if (node->serves || !link || link->pending() > 0 || now < node->asked + kAskedLately ||
          std::ranges::any_of(held_, [&](const auto& held) { return held.second.from == node.get(); }))
        continue;
      link->close(Error(Errc::disconnected, node->endpoint.to_string() + " serves no slots any more", Repeat::safe));
      retired_.push_back(std::move(node->link));
    }
  }
  keep_watch();
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
