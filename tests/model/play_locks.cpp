// lock_mark, lock_beat, lock_clear: the markers of a holder, over all that it holds of a queue and now and then what it does not.
// Document 2 section 14, protocol/README.md "Extensions". The servers of this test cannot expire the fields of a hash, so
// there is no field `lock`; the markers' own time to live runs on the real clock and is long.
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

constexpr std::int64_t kTimeToLive = 600'000;

/// Jobs and tokens, as the holder believes in them.
std::vector<std::pair<std::string, std::string>> held(const Stage& stage) {
  std::vector<std::pair<std::string, std::string>> jobs;
  for (const Held& one : stage.state.holders[stage.command.holder]) {
    if (one.queue == stage.index && jobs.size() < 3)
      jobs.emplace_back(one.id, text(one.token));
  }
  if (jobs.empty() || stage.command.token > 6)
    jobs.emplace_back(stage.any_job(), text(stage.command.amount % 3));
  return jobs;
}

}  // namespace

Turn play_locks(Stage stage) {
  const std::int64_t lease = 4 + stage.command.amount;
  const auto jobs = held(stage);
  std::vector<std::string> args{stage.queue.base};
  if (stage.command.verb == Verb::lock_beat)
    args.push_back(text(lease));
  if (stage.command.verb != Verb::lock_clear)
    args.push_back(text(kTimeToLive));
  std::int64_t count = 0;
  Value::Items lost;
  for (const auto& [id, token] : jobs) {
    args.insert(args.end(), {id, token});
    Job* const job = stage.queue.find(id);
    if (stage.command.verb == Verb::lock_mark && job != nullptr) {
      job->lock = token;
      ++count;
    } else if (stage.command.verb == Verb::lock_clear && job != nullptr && job->lock == token) {
      job->lock.reset();
      ++count;
    } else if (stage.command.verb == Verb::lock_beat) {
      if (job != nullptr && job->place == Place::active && text(job->attempts) == token)
        job->score = stage.state.now() + lease;
      else
        lost.push_back(Value::text(id));
    }
  }
  const Value reply = stage.command.verb == Verb::lock_beat ? Value::array(std::move(lost)) : Value::integer(count);
  return one(name_of(stage.command.verb), {stage.key("active")}, std::move(args), reply);
}

}  // namespace echomq::model
