// Which part plays which verb, and how steps find the jobs they aim at.
#include "model/play.hpp"

#include <utility>

namespace echomq::model {

Turn one(std::string script, std::vector<std::string> keys, std::vector<std::string> args, Value expected) {
  Turn turn;
  turn.push_back({std::move(script), std::move(keys), std::move(args), std::move(expected)});
  return turn;
}

std::string Stage::aimed(const std::vector<std::string>& ids) const {
  return command.aim == 0 || ids.empty() ? any_job() : ids[command.job % ids.size()];
}

std::string Stage::fresh_job() const {
  if (command.aim > 0) {
    for (std::size_t i = 0; i < kJobs; ++i) {
      if (const std::string id = job_id(index, (command.job + i) % kJobs); queue.find(id) == nullptr)
        return id;
    }
  }
  return any_job();
}

std::vector<std::string> Stage::jobs_in(Place place) const {
  std::vector<std::string> ids;
  for (const auto& [id, job] : queue.jobs) {
    if (job.place == place && !job.ghost)
      ids.push_back(id);
  }
  return ids;
}

void Stage::hold(const std::string& id, std::int64_t token) {
  state.holders[command.holder].push_back({index, id, token});
}

Turn play(State& state, const Command& command) {
  const std::size_t index = command.queue;
  const Stage stage{state, command, index, state.queues[index]};
  switch (command.verb) {
    case Verb::enqueue:
    case Verb::genqueue:
    case Verb::schedule:
    case Verb::admit: return play_admission(stage);
    case Verb::claim:
    case Verb::gclaim:
    case Verb::gwclaim:
    case Verb::gbclaim:
    case Verb::bclaim: return play_claim(stage);
    case Verb::complete:
    case Verb::retry:
    case Verb::delay:
    case Verb::hand_back:
    case Verb::extend_lock:
    case Verb::extend_locks: return play_settle(stage);
    case Verb::crash:
    case Verb::advance:
    case Verb::promote:
    case Verb::reap:
    case Verb::sweep_stalled:
    case Verb::greap_group: return play_recovery(stage);
    case Verb::gpause:
    case Verb::gresume:
    case Verb::glimit:
    case Verb::gweight:
    case Verb::greassign:
    case Verb::gdrain: return play_lanes(stage);
    case Verb::enqueue_flow:
    case Verb::hold_parent:
    case Verb::enqueue_flow_child:
    case Verb::deliver:
    case Verb::deliver_again: return play_flows(stage);
    case Verb::repeat_register:
    case Verb::repeat_advance:
    case Verb::repeat_cancel:
    case Verb::repeat_due:
    case Verb::repeat_fire:
    case Verb::spoil_repeat: return play_repeats(stage);
    case Verb::lock_mark:
    case Verb::lock_beat:
    case Verb::lock_clear: return play_locks(stage);
    default: return play_operate(stage);
  }
}

}  // namespace echomq::model
