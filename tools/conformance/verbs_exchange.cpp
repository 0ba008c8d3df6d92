// Many jobs in one call: `take`, `settle`, and both at once.
#include <stdexcept>

#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "queue/exchange.hpp"

namespace echomq::conformance {
namespace {

using namespace echomq::queue;

[[nodiscard]] bool flag(const Args& args, std::string_view name, bool otherwise) {
  const json::value* value = args.find(name);
  return value == nullptr ? otherwise : value->as_bool();
}

[[nodiscard]] TakeRequest request_of(const json::object& fields) {
  const Args args{fields};
  return {.most = args.count("most"),
          .lease = args.duration("lease_ms"),
          .lanes = flag(args, "lanes", true),
          .flat = flag(args, "flat", true),
          .lanes_first = flag(args, "lanes_first", false)};
}

[[nodiscard]] SettleKind kind_of(const std::string& word) {
  constexpr std::pair<std::string_view, SettleKind> kWords[] = {{"done", SettleKind::done},
                                                                {"retry", SettleKind::retry},
                                                                {"delay", SettleKind::delay},
                                                                {"dead", SettleKind::dead},
                                                                {"hand_back", SettleKind::hand_back}};
  for (const auto& [name, kind] : kWords) {
    if (name == word)
      return kind;
  }
  throw std::runtime_error("no such kind of settlement: " + word);
}

[[nodiscard]] json::value word_of(Settled verdict) {
  switch (verdict) {
    case Settled::completed: return "completed";
    case Settled::scheduled: return "scheduled";
    case Settled::dead: return "dead";
    case Settled::delayed: return "delayed";
    case Settled::handed_back: return "handed_back";
    case Settled::gone: return error("gone");
    case Settled::stale: break;
  }
  return error("stale");
}

[[nodiscard]] json::value word_of(Gate gate) {
  switch (gate) {
    case Gate::paused: return "paused";
    case Gate::concurrency: return "concurrency";
    case Gate::rate: return "rate";
    case Gate::late: return "late";
    case Gate::open: break;
  }
  return "open";
}

[[nodiscard]] json::object told(const Exchanged& answer) {
  json::array jobs;
  for (const TakenJob& one : answer.jobs)
    jobs.push_back(job_tuple(one.job));
  json::object out{{"jobs", jobs}, {"gate", word_of(answer.gate)}, {"more", answer.more}};
  if (answer.expired > 0)
    out["expired"] = answer.expired;
  return out;
}

[[nodiscard]] json::value settle(Caller& c) {
  const json::array& list = c.args.fields.at("jobs").as_array();
  std::vector<std::string> texts;
  texts.reserve(list.size());  // the settlements keep views of them
  std::vector<Settlement> settlements;
  for (const json::value& one : list) {
    const Args args{one.as_object()};
    Settlement settlement{.id = args.id(), .token = args.token(), .kind = kind_of(args.text("as"))};
    if (args.has("text"))
      settlement.text = texts.emplace_back(args.text("text"));
    if (args.has("wait_ms"))
      settlement.wait = args.duration("wait_ms");
    settlement.max_attempts = args.count("max_attempts", 3);
    if (args.has("keep_ms"))
      settlement.keep = args.duration("keep_ms");
    settlements.push_back(settlement);
  }
  std::optional<TakeRequest> request;
  if (const json::value* take = c.args.find("take"))
    request = request_of(take->as_object());
  return c.value(exchange(c.queue(), settlements, request), [&](const Exchanged& answer) {
    json::array verdicts;
    for (const Settled verdict : answer.settled)
      verdicts.push_back(word_of(verdict));
    if (!request)
      return ok(verdicts);
    json::object both = told(answer);
    both["settled"] = verdicts;
    return ok(both);
  });
}

}  // namespace

std::optional<Outcome> make_exchange_call(const Client& client, std::string_view call, std::string_view queue,
                                          const json::object& args) {
  if (call != "take" && call != "settle")
    return std::nullopt;
  Outcome outcome;
  try {
    Caller caller(client.queue(good(QueueName::parse(queue))), args);
    outcome.result = call == "settle" ? settle(caller)
                                      : caller.value(exchange(caller.queue(), {}, request_of(args)),
                                                     [](const Exchanged& answer) { return ok(told(answer)); });
    outcome.error_text = caller.error_text;
  } catch (const Raised& raised) {
    outcome.result = json::object{{"raises", raised.why}};
    outcome.error_text = raised.why;
  }
  return outcome;
}

}  // namespace echomq::conformance
