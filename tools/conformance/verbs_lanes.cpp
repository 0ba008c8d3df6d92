// Batches, weighted lanes, bulk deletion, repeats, the pump, and a holder's lock markers.
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/batch.hpp"

namespace echomq::conformance {
namespace {

[[nodiscard]] json::value claimed_many(Caller& c, Reply<std::vector<ClaimedJob>> reply) {
  return c.value(std::move(reply), [](const std::vector<ClaimedJob>& jobs) -> json::value {
    if (jobs.empty())
      return "empty";
    json::array list;
    for (const ClaimedJob& job : jobs)
      list.push_back(job_tuple(job));
    return ok(list);
  });
}

json::value claim_batch(Caller& c) {
  const ClaimBatchOptions options{.size = c.args.count("size"), .lease = c.args.duration("lease_ms")};
  return claimed_many(c, c.queue().claim_batch(options));
}

json::value obliterate(Caller& c) {
  const json::value* force = c.args.find("force");
  const ObliterateOptions options{.force = force != nullptr && force->as_bool(),
                                  .budget = c.args.count("budget", 1000)};
  return c.value(c.queue().obliterate(options),
                 [](Obliterated how) { return json::value(how == Obliterated::more ? "more" : "ok"); });
}

json::value drain(Caller& c) {
  const json::value* scheduled = c.args.find("include_schedule");
  return c.number(c.queue().drain({.include_schedule = scheduled != nullptr && scheduled->as_bool()}));
}

json::value repeat_register(Caller& c) {
  const std::string payload = c.args.text("template");
  const RepeatOptions options{.every = c.args.duration("every_ms"),
                              .first_in = c.args.has("first_in_ms") ? c.args.duration("first_in_ms") : Milliseconds(0),
                              .payload = payload};
  return c.value(c.queue().register_repeat(c.args.text("name"), options), [](Registered registered) {
    return ok(registered == Registered::registered ? "registered" : "exists");
  });
}

[[nodiscard]] json::value found(Caller& c, Reply<RepeatFound> reply, std::string_view word) {
  return c.value(std::move(reply),
                 [&](RepeatFound answer) { return ok(json::string(answer == RepeatFound::found ? word : "absent")); });
}

json::value repeat_due(Caller& c) {
  return c.value(c.queue().due_repeats(c.args.count("limit")), [](const std::vector<DueRepeat>& due) {
    json::array list;
    for (const DueRepeat& one : due) {
      json::array record{text_to_json(one.name), nullptr, nullptr};
      if (one.every)
        record[1] = json::string(std::to_string(one.every->count()));
      if (one.payload)
        record[2] = text_to_json(*one.payload);
      list.push_back(record);
    }
    return ok(list);
  });
}

using Verb = std::function<json::value(Caller&)>;

/// One tick of a pump.
[[nodiscard]] json::value pump_sweep(Caller& c) {
  return c.value(c.queue().pump_sweep(c.args.count("batch", 100)), [](const Pumped& pumped) {
    return ok(json::object{{"promoted", pumped.promoted}, {"fired", pumped.fired}, {"delivered", pumped.delivered}});
  });
}

const std::map<std::string_view, Verb>& lane_verbs() {
  static const std::map<std::string_view, Verb> table = {
      {"claim_batch", claim_batch},
      {"lane_wclaim",
       [](Caller& c) {
         return claimed_many(c, c.queue().claim_lane_weighted({.lease = c.args.duration("lease_ms")}));
       }},
      {"lane_bclaim",
       [](Caller& c) { return claimed_many(c, c.queue().claim_lane_batch({.lease = c.args.duration("lease_ms")})); }},
      {"lane_weight", [](Caller& c) { return c.done(c.queue().weigh_lane(c.args.group(), c.args.count("weight"))); }},
      {"lane_drain", [](Caller& c) { return c.number(c.queue().drain_lane(c.args.group())); }},
      {"lane_reap",
       [](Caller& c) { return c.number(c.queue().reap_lane(c.args.group(), c.args.count("limit", 100))); }},
      {"drain", drain},
      {"obliterate", obliterate},
      {"repeat_register", repeat_register},
      {"repeat_cancel", [](Caller& c) { return found(c, c.queue().cancel_repeat(c.args.text("name")), "cancelled"); }},
      {"repeat_advance",
       [](Caller& c) {
         return found(c, c.queue().advance_repeat(c.args.text("name"), c.args.duration("every_ms")), "advanced");
       }},
      {"repeat_due", repeat_due},
      {"pump_sweep", pump_sweep},
      {"repeat_count", [](Caller& c) { return c.number(c.queue().repeat_count()); }},
  };
  return table;
}

/// What the handler of `batch_run` says of one job.
[[nodiscard]] std::optional<echomq::Outcome> verdict_of(const json::object& verdicts, const ClaimedJob& job) {
  if (const json::value* all = verdicts.if_contains("*")) {
    // No map at all, which the types of this library do not allow: the failure that the canonical worker makes of it.
    return Retry("bad verdict: " + json::serialize(all->at(1)));
  }
  const json::value* verdict = verdicts.if_contains(job.payload);
  if (verdict == nullptr)
    return Done();
  if (verdict->is_string())
    return std::nullopt;  // "omit"
  if (text_of(verdict->at(0)) == "delay")
    return Delay(Milliseconds(integer_of(verdict->at(1))));
  return Retry(text_of(verdict->at(1)));
}

/// Claims and settles so many batches as the step asks for; answers with what the handler was given.
[[nodiscard]] Outcome batch_run(const Client& client, std::string_view name, const json::object& args) {
  using std::chrono::steady_clock;
  const Queue queue = client.queue(good(QueueName::parse(name)));
  const BatchShape shape{.min_size = static_cast<std::uint32_t>(integer_of(args.at("min_size"))),
                         .timeout = Milliseconds(integer_of(args.at("timeout")))};
  if (const auto checked = shape.check(); !checked)
    return {json::object{{"raises", checked.error().message()}}, checked.error().text};
  const BatchOptions options{.lease = Milliseconds(integer_of(args.at("lease_ms"))),
                             .retry_delay = Milliseconds(integer_of(args.at("retry_delay_ms"))),
                             .max_attempts = static_cast<std::uint32_t>(integer_of(args.at("max_attempts")))};
  const json::object& verdicts = args.at("verdicts").as_object();
  json::array batches;
  const auto handler = [&](std::span<const ClaimedJob> jobs) {
    json::array batch;
    std::vector<std::optional<echomq::Outcome>> outcomes;
    for (const ClaimedJob& job : jobs) {
      batch.push_back(job_tuple(job));
      outcomes.push_back(verdict_of(verdicts, job));
    }
    batches.push_back(batch);
    return outcomes;
  };

  const auto give_up = steady_clock::now() + std::chrono::seconds(10);
  const auto calls = static_cast<std::size_t>(integer_of(args.at("calls")));
  auto window = steady_clock::now();
  while (batches.size() < calls && steady_clock::now() < give_up) {
    const auto elapsed = std::chrono::duration_cast<Milliseconds>(steady_clock::now() - window);
    const auto size = shape.decide(static_cast<std::uint64_t>(good(queue.pending_size().get())), elapsed);
    if (!size) {
      std::this_thread::sleep_for(Milliseconds(5));
      continue;
    }
    BatchOptions round = options;
    round.size = static_cast<std::uint32_t>(*size);
    (void)good(run_batch(queue, handler, round));
    window = steady_clock::now();
  }
  return {batches, {}};
}

}  // namespace

std::optional<Outcome> make_lane_call(const Client& client, std::string_view call, std::string_view queue,
                                      const json::object& args) {
  const auto verb = lane_verbs().find(call);
  if (verb == lane_verbs().end() && call != "batch_run")
    return std::nullopt;
  try {
    if (call == "batch_run")
      return batch_run(client, queue, args);
    Caller caller(client.queue(good(QueueName::parse(queue))), args);
    Outcome outcome;
    outcome.result = verb->second(caller);
    outcome.error_text = caller.error_text;
    return outcome;
  } catch (const Raised& raised) {
    return Outcome{json::object{{"raises", raised.why}}, raised.why};
  }
}

bool LockHand::knows(std::string_view call) {
  return call == "lock_plane" || call == "track" || call == "untrack" || call == "lock_beat";
}

Outcome LockHand::make_call(const Client& client, std::string_view call, std::string_view queue,
                            const json::object& args) {
  const auto tracked = [&](const Result<void>& done) -> Outcome {
    if (!done)
      return {error_word(done.error()), done.error().text};
    return {static_cast<std::int64_t>(plane_->count()), {}};
  };
  try {
    Caller caller(client.queue(good(QueueName::parse(queue))), args);
    if (call == "lock_plane") {
      LockPlaneOptions options{.lease = caller.args.duration("lease_ms")};
      if (caller.args.has("extend_ms"))
        options.extend = caller.args.duration("extend_ms");
      plane_ = good(LockPlane::create(caller.queue(), options));
      return {"ok", {}};
    }
    if (!plane_)
      throw Raised{"there is no lock plane"};
    if (call == "track")
      return tracked(plane_->track(caller.args.id(), caller.args.token()).get());
    if (call == "untrack")
      return tracked(plane_->untrack(caller.args.id()).get());
    const std::size_t all = plane_->count();
    const auto result = caller.value(plane_->beat(), [&](const std::vector<JobId>& lost) {
      return ok(json::object{{"extended", static_cast<std::int64_t>(all - lost.size())}, {"dropped", ids(lost)}});
    });
    return {result, caller.error_text};
  } catch (const Raised& raised) {
    return {json::object{{"raises", raised.why}}, raised.why};
  }
}

}  // namespace echomq::conformance
