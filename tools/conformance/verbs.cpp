#include "conformance/verbs.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "conformance/caller.hpp"
#include "echomq/queue.hpp"
#include "queue/swept.hpp"

namespace echomq::conformance {

json::value error_word(const Error& failure) {
  switch (static_cast<Errc>(failure.code.value())) {
    case Errc::wrong_kind: return error("kind");
    case Errc::stale_token: return error("stale");
    case Errc::job_gone: return error("gone");
    case Errc::job_locked: return error("locked");
    case Errc::not_dead: return error("not_dead");
    case Errc::not_paused: return error("not_paused");
    case Errc::active_jobs_present: return error("active");
    case Errc::concurrency_ceiling: return error("rate");
    case Errc::empty_pipeline: return error("empty_pipeline");
    case Errc::invalid_argument: return json::object{{"raises", failure.message()}};
    case Errc::unknown_state: {
      const std::size_t from = failure.text.find('\'') + 1;
      const std::string name = failure.text.substr(from, failure.text.find('\'', from) - from);
      return error(json::array{"unknown_state", name});
    }
    default: return error(json::object{{"server", failure.text}});
  }
}

json::array job_tuple(const ClaimedJob& job) {
  json::array tuple{json::string(job.id.text()), job.has_payload ? text_to_json(job.payload) : json::value(nullptr),
                    static_cast<std::int64_t>(job.token.value())};
  if (job.lane)
    tuple.push_back(json::string(job.lane->text()));
  return tuple;
}

namespace {

constexpr std::array<std::string_view, 1> kMissing = {"hydrate"};

[[nodiscard]] json::value admitted(Caller& c, Reply<Admission> reply, std::string_view word) {
  return c.value(std::move(reply), [&](const Admission& admission) {
    return ok(json::string(admission.verdict == Admitted::enqueued ? word : "duplicate"));
  });
}

[[nodiscard]] json::value claimed(Caller& c, Reply<std::optional<ClaimedJob>> reply) {
  return c.value(std::move(reply), [](const std::optional<ClaimedJob>& job) -> json::value {
    if (!job)
      return "empty";
    return ok(job_tuple(*job));
  });
}

json::value enqueue_many(Caller& c) {
  std::vector<std::string> payloads;
  std::vector<NewJob> jobs;
  const json::array& list = c.args.fields.at("jobs").as_array();
  payloads.reserve(list.size());
  for (const json::value& job : list) {
    payloads.push_back(text_of(job.at(1)));
    jobs.push_back({.payload = payloads.back(), .id = good(JobId::parse(text_of(job.at(0))))});
  }
  return c.value(c.queue().enqueue_many(jobs), [](const std::vector<Result<Admission>>& results) {
    json::array verdicts;
    for (const Result<Admission>& one : results) {
      if (one) {
        verdicts.push_back(one->verdict == Admitted::enqueued ? "enqueued" : "duplicate");
      } else {
        verdicts.push_back(error_word(one.error()));
      }
    }
    return ok(verdicts);
  });
}

json::value extend_locks(Caller& c) {
  std::vector<Held> held;
  for (const json::value& one : c.args.fields.at("held").as_array()) {
    held.push_back({good(JobId::parse(text_of(one.at(0)))), Token(one.at(1).to_number<std::uint64_t>())});
  }
  return c.value(c.queue().extend_many(held, c.args.duration("lease_ms")),
                 [](const std::vector<JobId>& failed) { return ok(ids(failed)); });
}

json::value get_counts(Caller& c) {
  std::vector<std::string> names;
  for (const json::value& name : c.args.fields.at("states").as_array())
    names.push_back(text_of(name));
  const std::vector<std::string_view> views(names.begin(), names.end());
  return c.value(c.queue().counts_of(views), [&](const std::vector<std::int64_t>& counts) {
    json::object by_name;
    for (std::size_t i = 0; i < names.size(); ++i)
      by_name[names[i]] = counts[i];
    return ok(by_name);
  });
}

json::value lane_depths(Caller& c) {
  std::vector<LaneId> lanes;
  for (const json::value& group : c.args.fields.at("groups").as_array()) {
    lanes.push_back(good(LaneId::parse(text_of(group))));
  }
  return c.value(c.queue().lane_depths(lanes), [&](const std::vector<std::int64_t>& depths) {
    json::object by_group;
    for (std::size_t i = 0; i < lanes.size(); ++i)
      by_group[lanes[i].text()] = depths[i];
    return ok(by_group);
  });
}

json::value get_job(Caller& c) {
  return c.value(c.queue().job(c.args.id()), [](const std::optional<JobRow>& row) -> json::value {
    if (!row)
      return "absent";
    json::object fields;
    for (const auto& [name, value] : row->fields)
      fields[name] = text_to_json(value);
    return ok(fields);
  });
}

json::value get_job_state(Caller& c) {
  return c.value(c.queue().state(c.args.id()), [](JobState state) {
    // The wire has no word for a job in its lane: there it is pending.
    return ok(json::string(to_string(state == JobState::waiting_in_lane ? JobState::pending : state)));
  });
}

json::value get_job_logs(Caller& c) {
  return c.value(c.queue().logs(c.args.id()), [](const std::vector<std::string>& lines) {
    json::array list;
    for (const std::string& line : lines)
      list.push_back(text_to_json(line));
    return ok(list);
  });
}

json::value retry(Caller& c) {
  const std::string text = c.args.text("error");
  const RetryOptions options{
      .delay = c.args.duration("delay_ms"), .max_attempts = c.args.count("max_attempts"), .error = text};
  json::value result = c.value(c.queue().retry(c.args.id(), c.args.token(), options),
                               [](Retried retried) { return ok(retried == Retried::dead ? "dead" : "scheduled"); });
  // The canonical host has one word for both refusals of this verb; here a row that is gone is told apart.
  return result == error("gone") ? error("stale") : result;
}

json::value complete(Caller& c) {
  CompleteOptions options;
  std::string result;
  if (c.args.has("result")) {
    result = c.args.text("result");
    options.result = result;
  }
  return c.done(c.queue().complete(c.args.id(), c.args.token(), options));
}

json::value delay(Caller& c) {
  if (c.args.has("run_at_ms")) {
    return c.done(c.queue().delay_until(c.args.id(), c.args.token(), c.args.instant("run_at_ms")));
  }
  return c.done(c.queue().delay(c.args.id(), c.args.token(), c.args.duration("delay_ms")));
}

json::value sweep_stalled(Caller& c) {
  // The canonical defaults, not ours: the vocabulary leaves them out.
  const SweepOptions options{.max_stalled = c.args.count("max_stalled", 1), .limit = c.args.count("limit", 100)};
  return c.value(c.queue().sweep_stalled(options), [](const Swept& swept) {
    return ok(json::object{{"recovered", ids(swept.recovered)}, {"dead", ids(swept.dead)}});
  });
}

json::value sweep_lapsed(Caller& c) {
  const SweepOptions options{.max_stalled = c.args.count("max_stalled", 1), .limit = c.args.count("limit", 100)};
  return c.value(queue::sweep_lapsed(c.queue(), options), [](const queue::SweptLapsed& all) {
    return ok(json::object{
        {"recovered", ids(all.swept.recovered)}, {"dead", ids(all.swept.dead)}, {"fallen", ids(all.fallen)}});
  });
}

json::value publish(Caller& c) {
  std::vector<std::pair<std::string, std::string>> extra;
  if (const json::value* list = c.args.find("extra")) {
    for (const json::value& one : list->as_array())
      extra.emplace_back(text_of(one.at(0)), text_of(one.at(1)));
  }
  const std::vector<std::pair<std::string_view, std::string_view>> views(extra.begin(), extra.end());
  const std::string event = c.args.text("event");
  return c.done(c.queue().publish(event, c.args.id(), views));
}

using Verb = std::function<json::value(Caller&)>;

const std::map<std::string_view, Verb>& verbs() {
  static const std::map<std::string_view, Verb> table = {
      {"enqueue",
       [](Caller& c) {
         return admitted(c, c.queue().enqueue(c.args.text("payload"), {.id = c.args.id()}), "enqueued");
       }},
      {"enqueue_many", enqueue_many},
      {"enqueue_at",
       [](Caller& c) {
         const EnqueueOptions options{.id = c.args.id()};
         return admitted(c, c.queue().enqueue_at(c.args.text("payload"), c.args.instant("run_at_ms"), options),
                         "scheduled");
       }},
      {"enqueue_in",
       [](Caller& c) {
         const EnqueueOptions options{.id = c.args.id()};
         return admitted(c, c.queue().enqueue_in(c.args.text("payload"), c.args.duration("delay_ms"), options),
                         "scheduled");
       }},
      {"lane_enqueue",
       [](Caller& c) {
         const JobId id = c.args.id();
         const EnqueueOptions options{.id = id, .lane = c.args.group()};
         return admitted(c, c.queue().enqueue(c.args.text("payload"), options), "enqueued");
       }},
      {"claim", [](Caller& c) { return claimed(c, c.queue().claim({.lease = c.args.duration("lease_ms")})); }},
      {"lane_claim",
       [](Caller& c) { return claimed(c, c.queue().claim_lane({.lease = c.args.duration("lease_ms")})); }},
      {"complete", complete},
      {"retry", retry},
      {"delay", delay},
      {"promote", [](Caller& c) { return c.number(c.queue().promote(c.args.count("limit", 100))); }},
      {"reap", [](Caller& c) { return c.number(c.queue().reap()); }},
      {"sweep_stalled", sweep_stalled},
      {"sweep_lapsed", sweep_lapsed},
      {"job_stalled",
       [](Caller& c) { return c.value(c.queue().stalled(c.args.id()), [](bool yes) { return json::value(yes); }); }},
      {"extend_lock",
       [](Caller& c) { return c.done(c.queue().extend(c.args.id(), c.args.token(), c.args.duration("lease_ms"))); }},
      {"extend_locks", extend_locks},
      {"update_data", [](Caller& c) { return c.done(c.queue().update_data(c.args.id(), c.args.text("payload"))); }},
      {"update_progress",
       [](Caller& c) { return c.done(c.queue().update_progress(c.args.id(), c.args.text("progress"))); }},
      {"add_log",
       [](Caller& c) {
         return c.number(c.queue().add_log(c.args.id(), c.args.text("line"), c.args.count("keep", 0)));
       }},
      {"get_job_logs", get_job_logs},
      {"remove_job",
       [](Caller& c) {
         std::optional<DedupId> dedup;
         if (c.args.has("dedup_id"))
           dedup = good(DedupId::parse(c.args.text("dedup_id")));
         return c.done(c.queue().remove(c.args.id(), dedup));
       }},
      {"reprocess_job", [](Caller& c) { return c.done(c.queue().reprocess(c.args.id())); }},
      {"publish", publish},
      {"browse",
       [](Caller& c) {
         return c.value(c.queue().browse(c.args.count("n")),
                        [](const std::vector<JobId>& list) { return ok(ids(list)); });
       }},
      {"pending_size", [](Caller& c) { return c.number(c.queue().pending_size()); }},
      {"get_counts", get_counts},
      {"get_job", get_job},
      {"get_job_state", get_job_state},
      {"get_metrics",
       [](Caller& c) {
         const Metric metric = c.args.text("which") == "failed" ? Metric::failed : Metric::completed;
         return c.value(c.queue().metric(metric), [](const MetricValue& value) {
           return ok(json::object{{"count", value.count}, {"data_points", value.data_points}});
         });
       }},
      {"get_deduplication_job_id",
       [](Caller& c) {
         return c.value(c.queue().dedup_holder(good(DedupId::parse(c.args.text("dedup_id")))),
                        [](const std::optional<std::string>& holder) -> json::value {
                          return holder ? ok(text_to_json(*holder)) : json::value("absent");
                        });
       }},
      {"get_rate_limit_ttl",
       [](Caller& c) {
         return c.value(c.queue().rate_limit_ttl(c.args.count("max_jobs", 0)),
                        [](Milliseconds left) { return ok(left.count()); });
       }},
      {"get_global_rate_limit", [](Caller& c) { return c.number(c.queue().global_rate_limit()); }},
      {"is_maxed", [](Caller& c) { return c.done(c.queue().check_concurrency()); }},
      {"lane_depth", [](Caller& c) { return c.number(c.queue().lane_depth(c.args.group())); }},
      {"lane_depths", lane_depths},
      {"queue_pause", [](Caller& c) { return c.done(c.queue().pause()); }},
      {"queue_resume", [](Caller& c) { return c.done(c.queue().resume()); }},
      {"lane_pause", [](Caller& c) { return c.done(c.queue().pause_lane(c.args.group())); }},
      {"lane_resume", [](Caller& c) { return c.done(c.queue().resume_lane(c.args.group())); }},
      {"lane_reassign",
       [](Caller& c) {
         const JobId id = c.args.id();
         json::value result = c.value(c.queue().reassign(id, c.args.group()), [](Reassigned moved) {
           if (moved == Reassigned::not_waiting)
             return error("not_pending");
           return ok(moved == Reassigned::moved ? "reassigned" : "noop");
         });
         return result == error("gone") ? error("not_found") : result;
       }},
      {"lane_limit", [](Caller& c) { return c.done(c.queue().limit_lane(c.args.group(), c.args.count("limit"))); }},
  };
  return table;
}

}  // namespace

bool is_missing(std::string_view call) { return std::find(kMissing.begin(), kMissing.end(), call) != kMissing.end(); }

Outcome make_call(const Client& client, std::string_view call, std::string_view queue, const json::object& args) {
  if (auto outcome = make_lane_call(client, call, queue, args))
    return *std::move(outcome);
  if (auto exchanged = make_exchange_call(client, call, queue, args))
    return *std::move(exchanged);
  if (auto flow = make_flow_call(client, call, queue, args))
    return *std::move(flow);
  if (auto outcome = make_cancel_call(client, call, queue, args))
    return *std::move(outcome);
  if (auto outcome = make_bus_call(client, call, queue, args))
    return *std::move(outcome);
  if (auto cached = make_cache_call(client, call, args))
    return *std::move(cached);
  const auto verb = verbs().find(call);
  if (verb == verbs().end())
    throw std::runtime_error("no such verb: " + std::string(call));
  Outcome outcome;
  try {
    Caller caller(client.queue(good(QueueName::parse(queue))), args);
    outcome.result = verb->second(caller);
    outcome.error_text = caller.error_text;
  } catch (const Raised& raised) {
    outcome.result = json::object{{"raises", raised.why}};
    outcome.error_text = raised.why;
  }
  return outcome;
}

}  // namespace echomq::conformance
