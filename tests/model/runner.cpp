// One history step by step, and the loop over seeds.
#include "model/runner.hpp"

#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "model/invariants.hpp"

namespace echomq::model {
namespace {

std::string readable(const std::string& bytes) { return Value::text(bytes).to_string(); }

std::string shown(const Call& call) {
  std::string line = call.script.empty() ? "" : call.script + " |";
  for (const std::string& key : call.keys)
    line += " " + key;
  if (!call.script.empty())
    line += " |";
  for (const std::string& arg : call.args)
    line += " " + readable(arg);
  return line;
}

std::string shown(const std::vector<std::string>& content) {
  std::string line;
  for (const std::string& item : content)
    line += " " + readable(item);
  return line;
}

std::string differences(const Keyspace& model, const Keyspace& server) {
  std::string lines;
  for (const auto& [key, content] : model) {
    const auto at = server.find(key);
    if (at == server.end())
      lines += "  " + key + " is missing, should be" + shown(content) + "\n";
    else if (at->second != content)
      lines += "  " + key + " is" + shown(at->second) + ", should be" + shown(content) + "\n";
  }
  for (const auto& [key, content] : server) {
    if (!model.contains(key))
      lines += "  " + key + " is" + shown(content) + ", should not be\n";
  }
  return lines;
}

bool can_play(const Server& server, const Turn& turn) {
  for (const Call& call : turn) {
    if (!call.script.empty() && !server.has_script(call.script))
      return false;
  }
  return !turn.empty();
}

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

std::optional<std::string> play_history(Server& server, const History& history, Count& count) {
  State state = initial_state();
  server.reset(state);
  ++count.histories;
  Keyspace before;
  std::string trace;
  for (const Command& command : history) {
    State next = state;
    const Turn turn = play(next, command);
    const bool forgotten = turn.empty() && command.verb == Verb::crash;
    if (!forgotten && !can_play(server, turn))
      continue;  // means nothing here, or that script is not written yet
    state = std::move(next);
    if (forgotten)
      continue;
    ++count.steps;
    Server::Answer answer = server.ask(turn);
    for (std::size_t i = 0; i < turn.size(); ++i) {
      trace += "  " + shown(turn[i]) + " -> " + answer.replies[i].to_string() + "\n";
      if (answer.replies[i] != turn[i].expected)
        return "the last reply should be " + turn[i].expected.to_string() + "\n" + trace;
    }
    const Keyspace expected = render(state);
    const auto broken = broken_law(answer.keys, before, state);
    if (broken || answer.keys != expected) {
      return (broken ? "broken law: " + *broken : std::string("the keys differ")) + "\n" +
             differences(expected, answer.keys) + trace;
    }
    before = std::move(answer.keys);
  }
  return std::nullopt;
}

std::optional<std::string> play_many(Server& server, const Plan& plan, Count& count) {
  const auto clock = std::chrono::system_clock::now().time_since_epoch().count();
  const std::uint64_t seed = setting("ECHOMQ_MODEL_SEED", static_cast<std::uint64_t>(clock));
  const std::uint64_t steps = setting("ECHOMQ_MODEL_STEPS", plan.steps);
  const auto drawn = histories(plan.length);
  for (std::uint64_t round = 0; count.steps < steps; ++round) {
    rc::detail::TestParams params;
    params.seed = seed + round;
    params.maxSuccess = 20;
    params.disableShrinking = !plan.shrink;
    std::string last;
    const auto result = rc::detail::checkTestable(
        [&] {
          const History history = *drawn;
          if (auto wrong = play_history(server, history, count)) {
            last = std::move(*wrong);
            RC_FAIL("server and model part");
          }
        },
        rc::detail::TestMetadata{}, params);
    if (!result.is<rc::detail::SuccessResult>()) {
      std::ostringstream report;
      report << "ECHOMQ_MODEL_SEED=" << params.seed << " plays this again. The shortest history found:\n" << last;
      return report.str();
    }
  }
  return std::nullopt;
}

}  // namespace echomq::model
