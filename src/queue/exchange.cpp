// The arguments of `settle`, `take` and `settle_and_take`, and what their replies say.
#include "queue/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

/// Settlements of one script call.
constexpr std::size_t kMostSettlements = 1000;
constexpr std::uint32_t kMostTaken = 1000;

[[nodiscard]] Result<void> check_settlement(const Settlement& one) {
  switch (one.kind) {
    case SettleKind::done: ECHOMQ_CHECK(check_wait("keep", one.keep)); break;
    case SettleKind::retry:
      ECHOMQ_CHECK(check_limit("max_attempts", one.max_attempts));
      ECHOMQ_CHECK(check_wait("wait", one.wait));
      ECHOMQ_CHECK(check_wait("keep", one.keep));
      break;
    case SettleKind::dead: ECHOMQ_CHECK(check_wait("keep", one.keep)); break;
    case SettleKind::delay: return check_wait("wait", one.wait);
    case SettleKind::hand_back: return {};
  }
  return one.text ? check_text(one.kind == SettleKind::done ? "result" : "error", *one.text) : Result<void>();
}

/// A flat list of arguments. Numbers live in a second list that never grows beyond what was reserved for it.
class Arguments {
 public:
  explicit Arguments(std::size_t settlements) {
    parts_.reserve(5 + 7 * settlements);
    numbers_.reserve(3 + 4 * settlements);
  }
  void add(std::string_view part) { parts_.push_back(part); }
  template <typename Number>
  void add_number(Number number) {
    parts_.push_back(numbers_.emplace_back(number));
  }
  void add(const Settlement& one) {
    add(one.id.text());
    if (one.token.value() == 1) {
      add("1");  // most jobs end in their first run
    } else {
      add_number(one.token);
    }
    switch (one.kind) {
      case SettleKind::done:
        if (!one.text && one.keep.count() == 0)
          return add("d");
        // The flow parent of a job without a result is given its id, as by `complete`.
        add("D");
        add(one.text.value_or(one.id.text()));
        return add_number(one.keep);
      case SettleKind::retry:
        add("r");
        add(one.text.value_or(std::string_view()));
        add_number(one.wait);
        add_number(one.max_attempts);
        return add_number(one.keep);
      case SettleKind::dead:
        add("k");
        add(one.text.value_or(std::string_view()));
        return add_number(one.keep);
      case SettleKind::delay: add("w"); return add_number(one.wait);
      case SettleKind::hand_back: return add("h");
    }
  }
  [[nodiscard]] std::span<const std::string_view> parts() const noexcept { return parts_; }

 private:
  std::vector<std::string_view> parts_;
  std::vector<Decimal> numbers_;
};

[[nodiscard]] std::string_view order_of(const TakeRequest& take) {
  if (!take.flat)
    return take.whole_turns ? "g" : "l";  // lanes hold no parents
  const std::string_view order = !take.lanes ? "fp" : take.lanes_first ? "lfp" : "flp";
  return take.find_parents ? order : order.substr(0, order.size() - 1);
}

[[nodiscard]] Result<void> read_verdicts(std::string_view verb, const resp::View& list, std::size_t count,
                                         Exchanged& answer) {
  if (!list.is_aggregate() || list.size() < count)
    return unexpected_reply(verb, list);
  std::vector<Settled>& out = answer.settled;
  out.reserve(count);
  auto elements = list.elements();
  while (out.size() < count) {
    const resp::View one = elements.next();
    switch (one.as_integer().value_or(-100)) {
      case 1: out.push_back(Settled::completed); break;
      case 2: out.push_back(Settled::scheduled); break;
      case 3: out.push_back(Settled::dead); break;
      case 4: out.push_back(Settled::delayed); break;
      case 5: out.push_back(Settled::handed_back); break;
      case 0: out.push_back(Settled::gone); break;
      case -1: out.push_back(Settled::stale); break;
      default: return unexpected_reply(verb, one);
    }
  }
  while (!elements.done()) {
    const auto parent = JobId::parse(elements.next().as_text().value_or(""));
    const auto by = elements.done() ? std::nullopt : elements.next().as_integer();
    if (parent && by && *by >= 1 && static_cast<std::size_t>(*by) <= count)
      answer.fallen.push_back({*parent, static_cast<std::size_t>(*by) - 1});
  }
  return {};
}

/// No run may take longer: a row's number of milliseconds may be beyond what a clock can add to now.
constexpr Milliseconds kLongestRun = std::chrono::days{365};

/// A row field that should be a number of at least `least`; one that is not counts as absent.
[[nodiscard]] std::optional<std::int64_t> read_number(const resp::View& field, std::int64_t least) {
  const auto number = field.as_integer();
  return number && *number >= least ? number : std::nullopt;
}

[[nodiscard]] Result<void> read_job(std::string_view verb, const resp::View& reply, TakenJob& taken) {
  if (!reply.is_aggregate())
    return unexpected_reply(verb, reply);
  auto elements = reply.elements();
  const resp::View id_text = elements.next();
  const resp::View payload = elements.next();
  const resp::View token = elements.next();
  const resp::View group = elements.next();
  const auto id = JobId::parse(id_text.as_text().value_or(""));
  const auto attempts = token.as_integer();
  if (!id || !attempts || *attempts < 1)
    return unexpected_reply(verb, reply);
  ClaimedJob& job = taken.job;
  job.id = *id;
  job.token = Token(static_cast<std::uint64_t>(*attempts));
  job.has_payload = !payload.is_null();
  if (const auto text = payload.as_text())
    job.payload = *text;
  if (!group.is_null()) {
    const auto lane = LaneId::parse(group.as_text().value_or(""));
    if (!lane)
      return unexpected_reply(verb, reply);
    job.lane = *lane;
  }
  taken.failures = static_cast<std::uint64_t>(*attempts) - 1;
  if (elements.done())
    return {};

  if (const auto most = read_number(elements.next(), 1))
    taken.max_attempts = static_cast<std::uint32_t>(std::min<std::int64_t>(*most, 0xffffffff));
  if (const auto timeout = read_number(elements.next(), 1))
    taken.timeout = Milliseconds(std::min<std::int64_t>(*timeout, kLongestRun.count()));
  if (const auto backoff = elements.next().as_text())
    taken.backoff.emplace(*backoff);
  if (const auto traceparent = elements.next().as_text())
    taken.traceparent.emplace(*traceparent);
  const auto failures = elements.next().as_integer();
  const auto flow = elements.next().as_integer();
  if (!failures || !flow)
    return unexpected_reply(verb, reply);
  taken.failures = static_cast<std::uint64_t>(std::max<std::int64_t>(*failures, 0));
  taken.flow_child = (*flow & 1) != 0;
  taken.flow_parent = (*flow & 2) != 0;
  taken.cancelled = (*flow & 4) != 0;
  return {};
}

[[nodiscard]] Result<void> read_taken(std::string_view verb, const resp::View& reply, Exchanged& out) {
  if (!reply.is_aggregate())
    return unexpected_reply(verb, reply);
  auto elements = reply.elements();
  const auto gate = elements.next().as_integer();
  const auto wait = elements.next().as_integer();
  const auto more = elements.next().as_integer();
  const auto expired = elements.next().as_integer();
  const resp::View jobs = elements.next();
  const auto claimed_at = elements.next().as_integer();
  if (!claimed_at || !gate || *gate < 0 || *gate > 4 || !wait || !more || !expired || *expired < 0 ||
      !jobs.is_aggregate())
    return unexpected_reply(verb, reply);
  out.gate = static_cast<Gate>(*gate);
  out.wait = Milliseconds(*wait);
  out.more = *more != 0;
  out.claimed_at = UnixMillis(Milliseconds(*claimed_at));
  out.expired = static_cast<std::uint64_t>(*expired);
  for (std::vector<JobId>* ids : {&out.expired_ids, &out.fallen_of_age}) {
    if (elements.done())
      break;
    for (const resp::View& one : elements.next().elements()) {
      if (const auto id = JobId::parse(one.as_text().value_or("")))
        ids->push_back(*id);
    }
  }
  out.jobs.reserve(jobs.size());
  for (const resp::View& one : jobs.elements()) {
    // One that no one can read holds up no others.
    if (read_job(verb, one, out.jobs.emplace_back()))
      continue;
    out.jobs.pop_back();
    ++out.unreadable;
  }
  return {};
}

}  // namespace

Reply<Exchanged> exchange(const Queue& queue, std::span<const Settlement> settlements,
                          const std::optional<TakeRequest>& take, std::optional<Milliseconds> deadline) {
  ECHOMQ_CHECK(check_deadline(deadline));
  if (settlements.empty() && !take)
    return fail(Errc::invalid_argument, "exchange: neither settlements nor a claim");
  if (settlements.size() > kMostSettlements) {
    return fail(Errc::invalid_argument,
                fmt::format("settlements: {} in one call, at most {}", settlements.size(), kMostSettlements));
  }
  for (const Settlement& one : settlements)
    ECHOMQ_CHECK(check_settlement(one));

  const Queue::State& state = queue.internal();
  Arguments arguments(settlements.size());
  arguments.add(state.keys.base());
  if (take) {
    ECHOMQ_CHECK(check_limit("most", take->most));
    if (take->most > kMostTaken)
      return fail(Errc::invalid_argument, fmt::format("most: {}, at most {}", take->most, kMostTaken));
    ECHOMQ_CHECK(check_lease(take->lease));
    if (!take->lanes && !take->flat)
      return fail(Errc::invalid_argument, "exchange: a claim from neither lanes nor the flat set");
    if (take->whole_turns && take->flat)
      return fail(Errc::invalid_argument, "exchange: whole turns are of claims from lanes only");
    arguments.add_number(take->most);
    arguments.add_number(take->lease);
    arguments.add(order_of(*take));
    if (take->last_moment) {
      if (!settlements.empty())
        return fail(Errc::invalid_argument, "exchange: a last moment is of claims without settlements only");
      arguments.add_number(take->last_moment->time_since_epoch().count());
    }
  }
  for (const Settlement& one : settlements)
    arguments.add(one);

  const Views<2> keys = views(state.keys.pending(), state.keys.active());
  if (!take) {
    return state.core->eval<Exchanged>(state.scripts.settle, keys, arguments.parts(), settings(Repeat::safe, deadline),
                                       [count = settlements.size()](const wire::Answer& answer) -> Result<Exchanged> {
                                         Exchanged out;
                                         out.resent = answer.resent;
                                         ECHOMQ_CHECK(read_verdicts("settle", answer.view, count, out));
                                         return out;
                                       });
  }
  // A claim is not repeated: the lost answer may have leased jobs that a repetition would not give again.
  if (settlements.empty()) {
    return state.core->eval<Exchanged>(state.scripts.take, keys, arguments.parts(), settings(Repeat::unsafe, deadline),
                                       [at_once = take->at_once](const wire::Answer& answer) -> Result<Exchanged> {
                                         Exchanged out;
                                         ECHOMQ_CHECK(read_taken("take", answer.view, out));
                                         if (at_once)
                                           at_once(out);
                                         return out;
                                       });
  }
  return state.core->eval<Exchanged>(state.scripts.settle_and_take, keys, arguments.parts(),
                                     settings(Repeat::unsafe, deadline),
                                     [count = settlements.size()](const wire::Answer& answer) -> Result<Exchanged> {
                                       Exchanged out;
                                       auto elements = answer.view.elements();
                                       const resp::View verdicts = elements.next();
                                       const resp::View taken = elements.next();
                                       ECHOMQ_CHECK(read_verdicts("settle_and_take", verdicts, count, out));
                                       ECHOMQ_CHECK(read_taken("settle_and_take", taken, out));
                                       return out;
                                     });
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
