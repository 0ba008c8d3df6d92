// `EventListener`: messages of many channels wait in one bounded line, from which the client's executor serves handlers.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "client/core.hpp"
#include "echomq/events.hpp"
#include "events/event_text.hpp"
#include "keyspace/keys.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"progress", "completed", "failed",    "delayed",
                                                    "dead",     "stalled",   "cancelled", "other"};

// So many messages a turn of the executor, which others use too.
constexpr int kTurn = 256;

[[nodiscard]] UnixMillis wall_clock() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

/// Held while a handler runs. Recursive, for what a handler calls; and fair: whoever waits for it has it next, not
/// whoever has just given it back.
class HandlerGate {
 public:
  void lock() {
    if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
      const std::lock_guard in_line(line_);
      held_.lock();
      owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ++depth_;
  }
  void unlock() {
    if (--depth_ > 0)
      return;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    held_.unlock();
  }

 private:
  std::mutex line_;
  std::mutex held_;
  std::atomic<std::thread::id> owner_{};
  unsigned depth_ = 0;  // guarded by held_
};

}  // namespace

std::string_view to_string(EventKind kind) noexcept { return kNames[static_cast<std::size_t>(kind)]; }

EventKind event_kind(std::string_view name) noexcept {
  const auto found = std::find(kNames.begin(), kNames.end() - 1, name);
  return static_cast<EventKind>(found - kNames.begin());
}

std::optional<std::string_view> JobEvent::find(std::string_view field) const noexcept {
  const auto found = std::find_if(extra.begin(), extra.end(), [&](const auto& one) { return one.first == field; });
  if (found == extra.end())
    return std::nullopt;
  return found->second;
}

bool JobEvent::will_retry() const noexcept { return kind == EventKind::failed && find("retry") == "1"; }

struct EventListener::State : std::enable_shared_from_this<EventListener::State> {
  struct Channel {
    explicit Channel(const QueueName& of) : queue(of) {}
    const QueueName queue;
    // Guarded by State::mutex. While a drop has not been told, more are added to it: what came before is heard, what comes
    // behind is lost, so the gap stands where it belongs.
    std::uint64_t dropped = 0;
    UnixMillis drop_from{};
    UnixMillis drop_until{};
  };
  struct Item {
    enum class What : std::uint8_t { message, gap, overflow };
    Channel* channel;  // lives as long as the state
    What what;
    std::string payload = {};
    UnixMillis from = {};
    UnixMillis until = {};
  };
  struct Handler {
    std::uint64_t number = 0;
    EventFilter filter;
    EventHandler on_event;  // one of the two
    EventGapHandler on_gap;
    bool ended = false;  // guarded by `running`
  };
  using Handlers = std::vector<std::shared_ptr<Handler>>;

  State(const std::shared_ptr<client::Core>& of, std::size_t bound) : core(of), most_waiting(bound) {}

  // The connection's side: on a thread that reads, so nothing here waits.

  void heard(Channel& channel, std::string_view payload) {
    received.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex);
    if (stopped)
      return;
    if (channel.dropped > 0 || line.size() >= most_waiting) {
      channel.drop_until = wall_clock();
      dropped.fetch_add(1, std::memory_order_relaxed);
      if (channel.dropped++ > 0)
        return;
      channel.drop_from = channel.drop_until;
      line.push_back({&channel, Item::What::overflow});
    } else {
      line.push_back({&channel, Item::What::message, std::string(payload)});
    }
    schedule_locked();
  }
  void lost(Channel& channel, UnixMillis from, UnixMillis until) {
    const std::lock_guard lock(mutex);
    if (stopped)
      return;
    line.push_back({&channel, Item::What::gap, {}, from, until});
    schedule_locked();
  }
  void schedule_locked() {
    if (scheduled)
      return;
    const auto poster = core.lock();
    if (!poster)
      return;
    scheduled = true;
    // An executor may run it here and now: the line must be free for it then.
    mutex.unlock();
    poster->post(Continuation(&State::run, new std::shared_ptr<State>(shared_from_this())));
    mutex.lock();
  }

  // The executor's side.

  static void run(void* raw) noexcept {
    const std::unique_ptr<std::shared_ptr<State>> self(static_cast<std::shared_ptr<State>*>(raw));
    (*self)->serve();
  }
  void serve() {
    for (int served = 0; served < kTurn; ++served) {
      Item item{nullptr, Item::What::message};
      std::uint64_t thrown_away = 0;
      {
        const std::lock_guard lock(mutex);
        if (stopped || line.empty()) {
          scheduled = false;
          return;
        }
        item = std::move(line.front());
        line.pop_front();
        if (item.what == Item::What::overflow) {
          item.from = item.channel->drop_from;
          item.until = item.channel->drop_until;
          thrown_away = std::exchange(item.channel->dropped, 0);
        }
      }
      if (item.what == Item::What::message) {
        tell_event(item.channel->queue, item.payload);
      } else {
        const auto cause = item.what == Item::What::overflow ? EventGap::Cause::overflow : EventGap::Cause::connection;
        tell_gap({item.channel->queue, cause, item.from, item.until, thrown_away});
      }
    }
    const std::lock_guard lock(mutex);
    scheduled = false;
    if (!stopped && !line.empty())
      schedule_locked();
  }
  void tell_event(const QueueName& queue, std::string_view payload) {
    events::EventText text;
    if (!events::read_event(payload, text)) {
      malformed.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    const EventKind kind = event_kind(text.name);
    if (kind == EventKind::other)
      unknown_kinds.fetch_add(1, std::memory_order_relaxed);
    const std::vector<events::Extra> extra(text.extra.begin(), text.extra.end());
    const JobEvent event{queue, kind, text.name, text.job, extra, payload};
    Handlers wanted;
    std::unique_lock at_handlers(running);
    const auto add = [&](const Handlers& some) {
      for (const auto& one : some) {
        const EventFilter& filter = one->filter;
        const bool of_kind =
            filter.kinds.empty() || std::find(filter.kinds.begin(), filter.kinds.end(), kind) != filter.kinds.end();
        if (one->on_event && of_kind && (!filter.queue || *filter.queue == queue))
          wanted.push_back(one);
      }
    };
    add(general);
    if (const auto found = by_job.find(text.job); found != by_job.end())
      add(found->second);
    at_handlers.unlock();
    for (const auto& one : wanted)
      call(*one, [&] { one->on_event(event); });
  }
  void tell_gap(const EventGap& gap) {
    gaps.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock at_handlers(running);
    const Handlers all = general;
    at_handlers.unlock();
    for (const auto& one : all) {
      if (one->on_gap)
        call(*one, [&] { one->on_gap(gap); });
    }
  }
  template <typename Act>
  void call(const Handler& handler, Act act) {
    // For each by itself: whoever removes one waits for the one that runs, not for all that are to run.
    const std::lock_guard in_handler(running);
    if (handler.ended || stopped_for_handlers)
      return;
    try {
      act();
    } catch (...) {
      handler_errors.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // The user's side.

  [[nodiscard]] std::uint64_t add(Handler handler) {
    const std::lock_guard in_handler(running);
    auto one = std::make_shared<Handler>(std::move(handler));
    one->number = ++last_number;
    if (one->filter.jobs.empty())
      general.push_back(one);
    for (const JobId& job : one->filter.jobs) {
      Handlers& of_job = by_job[job];
      if (of_job.empty() || of_job.back() != one)  // an id may be given twice
        of_job.push_back(one);
    }
    by_number.emplace(one->number, one);
    return one->number;
  }
  void remove(std::uint64_t number) {
    const std::lock_guard in_handler(running);
    const auto found = by_number.find(number);
    if (found == by_number.end())
      return;
    const std::shared_ptr<Handler> one = found->second;
    one->ended = true;
    by_number.erase(found);
    if (one->filter.jobs.empty())
      std::erase(general, one);
    for (const JobId& job : one->filter.jobs) {
      const auto of_job = by_job.find(job);
      if (of_job == by_job.end())
        continue;
      std::erase(of_job->second, one);
      if (of_job->second.empty())
        by_job.erase(of_job);
    }
  }
  void stop() {
    std::vector<Subscription> ending;
    {
      const std::lock_guard lock(mutex);
      stopped = true;
      line.clear();
      ending.swap(subscriptions);
    }
    ending.clear();
    const std::lock_guard wait_for_handler(running);
    stopped_for_handlers = true;
  }

  const std::weak_ptr<client::Core> core;
  const std::size_t most_waiting;
  std::deque<Channel> channels;  // constant once open

  mutable std::mutex mutex;
  std::deque<Item> line;                    // guarded by mutex
  bool scheduled = false;                   // guarded by mutex: a turn is posted or running
  bool stopped = false;                     // guarded by mutex
  std::vector<Subscription> subscriptions;  // guarded by mutex

  HandlerGate running;  // held while a handler runs; guards what follows
  bool stopped_for_handlers = false;
  std::uint64_t last_number = 0;
  Handlers general;  // in the order they were added
  std::map<JobId, Handlers> by_job;
  std::map<std::uint64_t, std::shared_ptr<Handler>> by_number;

  std::atomic<std::uint64_t> received{0}, malformed{0}, unknown_kinds{0}, dropped{0}, gaps{0}, handler_errors{0};
};

EventListener::Watch::Watch(Watch&& other) noexcept
    : state_(std::exchange(other.state_, {})), number_(std::exchange(other.number_, 0)) {}

EventListener::Watch& EventListener::Watch::operator=(Watch&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(number_, other.number_);
  return *this;
}

EventListener::Watch::~Watch() {
  if (const auto state = state_.lock())
    state->remove(number_);
}

EventListener::EventListener(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
EventListener::EventListener(EventListener&&) noexcept = default;
EventListener& EventListener::operator=(EventListener&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
EventListener::~EventListener() { stop(); }

Result<EventListener> EventListener::open(const Client& client, const QueueName& queue, EventListenerOptions options) {
  return open(client, std::span(&queue, 1), std::move(options));
}

Result<EventListener> EventListener::open(const Client& client, std::span<const QueueName> queues,
                                          EventListenerOptions options) {
  if (queues.empty())
    return fail(Errc::invalid_argument, "queues must not be empty");
  if (options.most_waiting == 0)
    return fail(Errc::invalid_argument, "most_waiting must be at least 1");
  const std::shared_ptr<client::Core>& core = client.core();
  EventListener listener(std::make_shared<State>(core, options.most_waiting));
  State& state = *listener.state_;
  if (options.on_event || options.on_gap) {
    (void)state.add({.filter = {}, .on_event = std::move(options.on_event), .on_gap = std::move(options.on_gap)});
  }
  std::vector<QueueName> names(queues.begin(), queues.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const QueueName& name : names)
    state.channels.emplace_back(name);
  std::vector<Reply<Subscription>> replies;
  replies.reserve(names.size());
  for (State::Channel& channel : state.channels) {
    // A subscription ends with the state, and may be told something until then: it does not keep the state alive.
    const std::weak_ptr<State> weak = listener.state_;
    replies.push_back(core->listen(keyspace::QueueKeys(channel.queue).events(),
                                   {.on_message =
                                        [weak, &channel](std::string_view, std::string_view payload) {
                                          if (const auto to = weak.lock())
                                            to->heard(channel, payload);
                                        },
                                    .on_gap =
                                        [weak, &channel](UnixMillis from, UnixMillis until) {
                                          if (const auto to = weak.lock())
                                            to->lost(channel, from, until);
                                        },
                                    .at_once = true}));
  }
  for (Reply<Subscription>& reply : replies) {
    Result<Subscription> confirmed = std::move(reply).get();
    if (!confirmed)
      return std::unexpected(std::move(confirmed).error());
    const std::lock_guard lock(state.mutex);
    state.subscriptions.push_back(*std::move(confirmed));
  }
  return listener;
}

EventListener::Watch EventListener::on(EventFilter filter, EventHandler handler) const {
  return {state_, state_->add({.filter = std::move(filter), .on_event = std::move(handler), .on_gap = {}})};
}
EventListener::Watch EventListener::on(EventKind kind, EventHandler handler) const {
  return on(EventFilter{.kinds = {kind}, .jobs = {}, .queue = {}}, std::move(handler));
}
EventListener::Watch EventListener::on(const JobId& job, EventHandler handler) const {
  return on(EventFilter{.kinds = {}, .jobs = {job}, .queue = {}}, std::move(handler));
}
EventListener::Watch EventListener::on_gap(EventGapHandler handler) const {
  return {state_, state_->add({.filter = {}, .on_event = {}, .on_gap = std::move(handler)})};
}

void EventListener::stop() {
  // From the handler this may be the last owner: it lives until the end of the call.
  if (const auto state = state_)
    state->stop();
}

bool EventListener::live() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->stopped && std::all_of(state_->subscriptions.begin(), state_->subscriptions.end(),
                                         [](const Subscription& one) { return one.live(); });
}

EventListenerStats EventListener::stats() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  const std::lock_guard lock(state_->mutex);
  return {.received = read(state_->received),
          .malformed = read(state_->malformed),
          .unknown_kinds = read(state_->unknown_kinds),
          .dropped = read(state_->dropped),
          .gaps = read(state_->gaps),
          .handler_errors = read(state_->handler_errors),
          .waiting = state_->line.size()};
}

}  // namespace v1
}  // namespace echomq
