// All waits of a client for the ends of jobs of one queue.
#include "queue/wait_hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "queue/checks.hpp"
#include "queue/scripts.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

/// Hubs by core and queue, as long as somebody waits there or did a moment ago.
struct Hubs {
  std::mutex mutex;
  std::map<std::pair<const client::Core*, QueueName>, std::weak_ptr<WaitHub>> all;
};
[[nodiscard]] Hubs& hubs() {
  static Hubs& made = *new Hubs;  // never destroyed: hubs may end after statics do
  return made;
}

/// Lets `Reply::cancel` end a wait; there is no connection to drive. The table drops the call when it next looks at it.
class Withdrawing final : public detail::Source {
 public:
  bool drive(bool (*)(void*), void*, detail::Clock::time_point) override { return false; }
  void leave_to_library() noexcept override {}
  void cancel(detail::Call& call) override {
    if (call.win())
      call.fail(Error(Errc::cancelled, "the wait was cancelled", Repeat::safe));
  }
};
[[nodiscard]] detail::Source* withdrawing() {
  static Withdrawing& made = *new Withdrawing;
  return &made;
}

/// Whether the same look may well succeed a moment later.
[[nodiscard]] bool passes(const Error& error) noexcept {
  for (const Errc code : {Errc::unreachable, Errc::disconnected, Errc::outcome_unknown, Errc::timeout, Errc::overloaded,
                          Errc::read_only, Errc::loading, Errc::moved, Errc::cluster_down}) {
    if (error.is(code))
      return true;
  }
  return false;
}

[[nodiscard]] Error closed() { return {Errc::client_closed, "the client is closed"}; }

[[nodiscard]] std::optional<std::string> text_or_nothing(const resp::View& view) {
  return view.is_null() ? std::nullopt : view.copy_text();
}

}  // namespace

std::optional<Ended> read_kept(JobId id, std::string_view bytes) {
  const std::size_t word = bytes.find('\0');
  if (word == std::string_view::npos)
    return std::nullopt;
  const std::string_view how = bytes.substr(0, word);
  if (how != "completed" && how != "dead")
    return std::nullopt;
  return Ended{id, how == "dead" ? EndedAs::dead : EndedAs::completed, std::string(bytes.substr(word + 1))};
}

WaitCall::WaitCall(const client::Core& core, JobId job, WaitOptions options)
    : id(job),
      until(Clock::now() + std::min<Milliseconds>(options.timeout, std::chrono::days{365})),
      beat(std::min<Milliseconds>(options.beat, std::chrono::days{365})) {
  source = withdrawing();
  default_target = const_cast<client::Core&>(core).continuations();
}

void WaitCall::finish(Result<Ended> result) noexcept {
  if (!win())
    return;
  store(std::move(result));
  publish();
}

std::shared_ptr<WaitHub> WaitHub::of(const std::shared_ptr<client::Core>& core, const QueueName& queue) {
  Hubs& known = hubs();
  std::shared_ptr<WaitHub> of_another;  // of a core that stood at the same address; it must not end under the lock
  const std::lock_guard lock(known.mutex);
  std::weak_ptr<WaitHub>& place = known.all[{core.get(), queue}];
  of_another = place.lock();
  if (of_another && of_another->core_.lock() == core)
    return of_another;
  auto hub = std::make_shared<WaitHub>(core, queue);
  place = hub;
  return hub;
}

WaitHub::WaitHub(const std::shared_ptr<client::Core>& core, const QueueName& queue) : core_(core), keys_(queue) {}

WaitHub::~WaitHub() {
  Hubs& known = hubs();
  {
    const std::lock_guard lock(known.mutex);
    std::erase_if(known.all, [](const auto& entry) { return entry.second.expired(); });
  }
  for (auto& [id, watched] : watched_) {
    for (const Waiting& call : watched.calls)
      call->finish(std::unexpected<Error>(closed()));
  }
}

void WaitHub::warm_up() {
  {
    const std::lock_guard lock(mutex_);
    idle_since_ = Clock::now();
    if (!to_subscribe(idle_since_))
      return;
  }
  tick_by(Clock::now() + kTick);
  subscribe();
}

void WaitHub::wait(Waiting call) {
  bool first = false;
  const Clock::time_point until = call->until;
  {
    const std::lock_guard lock(mutex_);
    WaitCall& one = *call.get();
    Watched& watched = watched_[one.id];
    one.older_look = watched.sent;
    set_due(one, std::min(one.until, Clock::now() + one.beat));
    watched.calls.push_back(std::move(call));
    first = to_subscribe(Clock::now());
    if (phase_ == Phase::live)
      look_at(one.id, watched);
  }
  tick_by(std::min(until, Clock::now() + kTick));
  if (first)
    subscribe();
  send_looks();
}

void WaitHub::subscribe() {
  const auto core = core_.lock();
  if (!core)
    return fail_all(closed());
  const Client client = Client::from_core(core);
  const std::weak_ptr<WaitHub> self = weak_from_this();
  const auto on_gap = [self] {
    if (const auto hub = self.lock())
      hub->look_at_all();
  };
  SubscriptionHandlers of_ended{[self](std::string_view, std::string_view message) {
                                  if (const auto hub = self.lock())
                                    hub->told(message);
                                },
                                on_gap};
  SubscriptionHandlers of_events{[self](std::string_view, std::string_view message) {
                                   if (const auto hub = self.lock())
                                     hub->told_of_event(message);
                                 },
                                 on_gap};
  // The strong reference ends with the answer, which always comes.
  const std::shared_ptr<WaitHub> kept = shared_from_this();
  client.subscribe(keys_.ended(), std::move(of_ended)).then([kept](Result<Subscription> made) {
    kept->subscribed(kept->ended_, std::move(made));
  });
  client.subscribe(keys_.events(), std::move(of_events)).then([kept](Result<Subscription> made) {
    kept->subscribed(kept->events_, std::move(made));
  });
}

void WaitHub::subscribed(std::optional<Subscription>& place, Result<Subscription> subscription) {
  // Ended outside the lock: what they end waits for a handler that may want the lock.
  std::optional<Subscription> other_ended;
  std::optional<Subscription> other_events;
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    if (subscription) {
      place.emplace(*std::move(subscription));
    } else {
      refusal_ = std::move(subscription).error();
    }
    if (--unconfirmed_ > 0)
      return;
    error = std::exchange(refusal_, std::nullopt);
    phase_ = error ? Phase::idle : Phase::live;
    if (error) {
      other_ended.swap(ended_);
      other_events.swap(events_);
      subscribe_at_ = Clock::now() + kSubscribeAgain;
    }
  }
  // While the server is away a wait goes on: the next tick asks again.
  if (error && passes(*error))
    return;
  if (error)
    return fail_all(*error);
  look_at_all();
}

void WaitHub::told(std::string_view id) {
  const auto job = JobId::parse(id);
  if (!job)
    return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = watched_.find(*job);
    if (found == watched_.end())
      return;
    look_at(*job, found->second);
  }
  send_looks();
}

void WaitHub::told_of_event(std::string_view message) {
  // A hint only: whatever names a job that somebody waits for is worth a look, in whichever order the names of the
  // object come. What a running job says of itself is not.
  if (message.find("\"event\":\"progress\"") != std::string_view::npos)
    return;
  for (std::size_t at = message.find("\"JOB"); at != std::string_view::npos; at = message.find("\"JOB", at + 1))
    told(message.substr(at + 1, BrandedId::kSize));
}

void WaitHub::look_at_all() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, watched] : watched_)
      look_at(id, watched);
  }
  send_looks();
}

void WaitHub::look_at(JobId id, Watched& watched) {
  if (watched.asked) {
    watched.again = watched.again || watched.sent != 0;
    return;
  }
  watched.asked = true;
  to_look_.push_back(id);
}

void WaitHub::send_looks() {
  const auto core = core_.lock();
  if (!core)
    return fail_all(closed());
  const script::ScriptSource& script = Scripts::get().ended;
  for (;;) {
    std::vector<JobId> ids;
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      if (looks_ >= kLooksOnTheWay)
        return;
      number = last_look_ + 1;
      while (!to_look_.empty() && ids.size() < kLookJobs) {
        const JobId id = to_look_.front();
        to_look_.pop_front();
        const auto found = watched_.find(id);
        if (found == watched_.end())
          continue;
        found->second.sent = number;
        ids.push_back(id);
      }
      if (ids.empty())
        return;
      ++looks_;
      last_look_ = number;
    }
    std::vector<std::string_view> arguments;
    arguments.reserve(ids.size());
    for (const JobId& id : ids)
      arguments.push_back(id.text());
    const auto decode = [](const wire::Answer& answer) -> Result<Looks> {
      Looks looks;
      if (!answer.view.is_aggregate() || answer.view.size() % 3 != 0)
        return unexpected_reply("wait", answer.view);
      looks.reserve(answer.view.size() / 3);
      auto elements = answer.view.elements();
      while (!elements.done()) {
        Look look;
        look.state = text_or_nothing(elements.next());
        look.last_error = text_or_nothing(elements.next());
        look.kept = text_or_nothing(elements.next());
        looks.push_back(std::move(look));
      }
      return looks;
    };
    core->eval<Looks>(script, views(keys_.base()), arguments, settings(Repeat::safe), decode)
        .then([kept = shared_from_this(), number, asked = std::move(ids)](Result<Looks> looks) {
          kept->looked(number, asked, std::move(looks));
        });
  }
}

void WaitHub::looked(std::uint64_t number, const std::vector<JobId>& ids, Result<Looks> looks) {
  Endings endings;
  if (looks && looks->size() != ids.size()) {
    looks =
        fail(Errc::protocol_error, fmt::format("wait: {} jobs were asked for, {} answered", ids.size(), looks->size()));
  }
  {
    const std::lock_guard lock(mutex_);
    --looks_;
    const Clock::time_point now = Clock::now();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const JobId id = ids[i];
      const auto found = watched_.find(id);
      // Whoever has begun to wait since, when nobody waited any more, has a look of its own to come.
      if (found == watched_.end() || found->second.sent != number)
        continue;
      Watched& watched = found->second;
      watched.asked = false;
      watched.sent = 0;
      const bool again = std::exchange(watched.again, false);
      if (!looks) {
        if (!passes(looks.error())) {
          end(id, std::unexpected<Error>(looks.error()), endings);
          continue;
        }
        for (const Waiting& call : watched.calls)
          set_due(*call.get(), std::min(call->until, now + kAgain));
        continue;
      }
      Look& look = (*looks)[i];
      if (look.state && *look.state != "dead") {
        if (again)
          look_at(id, watched);
        for (const Waiting& call : watched.calls)
          set_due(*call.get(), std::min(call->until, now + call->beat));
        continue;
      }
      Ended ended{id, EndedAs::gone, {}};
      auto kept = look.kept ? read_kept(id, *look.kept) : std::nullopt;
      if (!look.state) {
        if (kept)
          ended = *std::move(kept);
      } else {
        ended.how = EndedAs::dead;
        // A flow parent that died of a child has no error of its own.
        if (look.last_error) {
          ended.text = *std::move(look.last_error);
        } else if (kept && kept->how == EndedAs::dead) {
          ended.text = std::move(kept->text);
        }
      }
      end(id, std::move(ended), endings, number);
    }
  }
  tell(std::move(endings));
  send_looks();
}

void WaitHub::set_due(WaitCall& call, Clock::time_point when) {
  due_.erase({call.due, &call});
  call.due = when;
  due_.emplace(when, &call);
}

void WaitHub::end(JobId id, const Result<Ended>& how, Endings& endings, std::uint64_t look) {
  const auto found = watched_.find(id);
  std::vector<Waiting> later;
  for (Waiting& call : found->second.calls) {
    if (look != 0 && call->older_look == look) {
      later.push_back(std::move(call));
      continue;
    }
    due_.erase({call->due, call.get()});
    endings.emplace_back(std::move(call), how);
  }
  found->second.calls = std::move(later);
  if (!found->second.calls.empty())
    return look_at(id, found->second);
  watched_.erase(found);
  if (watched_.empty())
    idle_since_ = Clock::now();
}

void WaitHub::fail_all(const Error& why) {
  Endings endings;
  {
    const std::lock_guard lock(mutex_);
    while (!watched_.empty())
      end(watched_.begin()->first, std::unexpected<Error>(why), endings);
    to_look_.clear();
  }
  tell(std::move(endings));
}

void WaitHub::tell(Endings endings) noexcept {
  for (auto& [call, how] : endings)
    call->finish(std::move(how));
}

void WaitHub::tick_by(Clock::time_point when) {
  const auto core = core_.lock();
  if (!core)
    return fail_all(closed());
  {
    const std::lock_guard lock(mutex_);
    if (next_tick_ <= when)
      return;
    next_tick_ = when;
  }
  const auto wait = std::max(std::chrono::ceil<Milliseconds>(when - Clock::now()), Milliseconds{1});
  core->after(wait, [kept = shared_from_this(), when] { kept->tick(when); });
}

void WaitHub::tick(Clock::time_point planned) {
  const auto core = core_.lock();
  if (!core || core->closed())
    return fail_all(closed());
  Endings endings;
  std::optional<Subscription> unused_ended;
  std::optional<Subscription> unused_events;
  bool again = false;
  Clock::time_point next = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    if (planned != next_tick_)
      return;  // an earlier one was set meanwhile, and has seen to it
    next_tick_ = Clock::time_point::max();
    const Clock::time_point now = Clock::now();
    while (!due_.empty() && due_.begin()->first <= now) {
      WaitCall& call = *due_.begin()->second;
      const JobId id = call.id;
      Watched& watched = watched_.at(id);
      if (call.until > now && !call.settled()) {
        set_due(call, std::min(call.until, now + call.beat));
        look_at(id, watched);
        continue;
      }
      due_.erase(due_.begin());
      const auto place = std::find_if(watched.calls.begin(), watched.calls.end(),
                                      [&](const Waiting& one) { return one.get() == &call; });
      endings.emplace_back(std::move(*place), Ended{id, EndedAs::timeout, {}});
      watched.calls.erase(place);
      if (watched.calls.empty())
        watched_.erase(id);
      if (watched_.empty())
        idle_since_ = now;
    }
    again = !watched_.empty() && to_subscribe(now);
    if (!watched_.empty() || phase_ == Phase::subscribing || now < idle_since_ + kLinger) {
      next = now + kTick;
      if (!due_.empty())
        next = std::clamp(due_.begin()->first, now + Milliseconds{1}, next);
    } else if (phase_ == Phase::live) {
      phase_ = Phase::idle;
      unused_ended.swap(ended_);
      unused_events.swap(events_);
    }
  }
  tell(std::move(endings));
  if (next == Clock::time_point::max())
    return;
  tick_by(next);
  if (again)
    subscribe();
  send_looks();
}

bool WaitHub::to_subscribe(Clock::time_point now) {
  if (phase_ != Phase::idle || now < subscribe_at_)
    return false;
  phase_ = Phase::subscribing;
  unconfirmed_ = 2;
  return true;
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
