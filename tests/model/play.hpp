// Plays a step on the model: changes the state as the documents say, and gives the calls that must do the same to a server,
// each with the reply it must get.
#pragma once

#include <string>
#include <vector>

#include "echomq/value.hpp"
#include "model/commands.hpp"
#include "model/state.hpp"

namespace echomq::model {

struct Call {
  std::string script{};  // empty: a plain command, all of it in `args`
  std::vector<std::string> keys{};
  std::vector<std::string> args{};
  Value expected{};
  /// Sent again as long as it answers 1, so up to its last reply.
  bool until_zero = false;
};

/// No calls: the step means nothing in this state.
using Turn = std::vector<Call>;

[[nodiscard]] Turn play(State& state, const Command& command);

// ---- what the parts of play share --------------------------------------------------------------------------------------

struct Stage {
  State& state;
  const Command& command;
  std::size_t index;  // of the queue
  Queue& queue;

  [[nodiscard]] std::string key(const std::string& tail) const { return queue.base + tail; }
  [[nodiscard]] std::string row(const std::string& id) const { return queue.base + "job:" + id; }
  [[nodiscard]] std::string lane(const std::string& group) const { return queue.base + "g:" + group + ":pending"; }
  [[nodiscard]] std::string any_job() const { return job_id(index, command.job % kJobs); }
  [[nodiscard]] std::string group() const { return group_id(command.group); }
  /// One of `ids`, or any job when the step does not aim or there is none.
  [[nodiscard]] std::string aimed(const std::vector<std::string>& ids) const;
  /// An id whose row is absent, when the step aims and there is one.
  [[nodiscard]] std::string fresh_job() const;
  [[nodiscard]] std::vector<std::string> jobs_in(Place place) const;
  void hold(const std::string& id, std::int64_t token);
};

[[nodiscard]] inline std::string text(std::int64_t number) { return std::to_string(number); }
[[nodiscard]] Turn one(std::string script, std::vector<std::string> keys, std::vector<std::string> args,
                       Value expected);

[[nodiscard]] Turn play_admission(Stage stage);
[[nodiscard]] Turn play_claim(Stage stage);
[[nodiscard]] Turn play_settle(Stage stage);
[[nodiscard]] Turn play_recovery(Stage stage);
[[nodiscard]] Turn play_lanes(Stage stage);
[[nodiscard]] Turn play_operate(Stage stage);
[[nodiscard]] Turn play_flows(Stage stage);
[[nodiscard]] Turn play_repeats(Stage stage);
[[nodiscard]] Turn play_locks(Stage stage);

}  // namespace echomq::model
