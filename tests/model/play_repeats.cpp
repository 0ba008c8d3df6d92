// repeat_register, repeat_advance, repeat_cancel, repeat_due, repeat_fire; and registrations that hands and peers have spoilt.
// Document 2 section 10, protocol/README.md "Extensions".
#include <algorithm>
#include <utility>

#include "model/play.hpp"

namespace echomq::model {
namespace {

std::string name_of(const Stage& stage) { return repeat_name(stage.command.group % kRepeats); }
std::string record_of(const Stage& stage, const std::string& name) { return stage.key("repeat:" + name); }

/// A period, or what is none; seldom.
std::string period_of(const Stage& stage) {
  return stage.command.token == 9 ? "0" : stage.command.token == 8 ? "1.5" : text(1 + stage.command.amount);
}
bool is_period(const std::string& every) { return every != "0" && every.find_first_not_of("0123456789") == every.npos; }

/// The instant that the last two arguments name.
std::int64_t run_of(const Stage& stage, std::vector<std::string>& args) {
  const std::int64_t wait = stage.command.job;
  if (stage.command.flags % 2 == 0) {
    args.insert(args.end(), {text(wait), "in"});
    return stage.state.now() + wait;
  }
  args.push_back(text(stage.state.now() + wait - 8));  // the past is allowed
  return stage.state.now() + wait - 8;
}

Turn enter(Stage& stage) {
  const std::string name = name_of(stage);
  const std::string every = period_of(stage);
  const std::string payload = "r" + text(stage.command.amount);
  std::vector<std::string> args{name, every, payload};
  const std::int64_t run = run_of(stage, args);
  Value reply = Value::integer(1);
  if (!is_period(every)) {
    reply = Value::error("ERR period must be a positive integer");
  } else if (const auto at = stage.queue.repeats.find(name);
             at != stage.queue.repeats.end() && at->second.has_record()) {
    reply = Value::integer(0);
  } else {
    stage.queue.repeats[name] = {.run = run, .every = every, .payload = payload};
  }
  return one("repeat_register", {stage.key("repeat"), record_of(stage, name)}, std::move(args), reply);
}

Turn advance(Stage& stage) {
  const std::string name = name_of(stage);
  std::vector<std::string> args{name};
  const std::int64_t run = run_of(stage, args);
  const auto at = stage.queue.repeats.find(name);
  const bool there = at != stage.queue.repeats.end() && at->second.has_record();
  if (there)
    at->second.run = run;
  else if (at != stage.queue.repeats.end())
    stage.queue.repeats.erase(at);
  return one("repeat_advance", {stage.key("repeat"), record_of(stage, name)}, std::move(args),
             Value::integer(there ? 1 : 0));
}

Turn cancel(Stage& stage) {
  const std::string name = name_of(stage);
  const auto at = stage.queue.repeats.find(name);
  const bool was = at != stage.queue.repeats.end() && at->second.run;
  stage.queue.repeats.erase(name);
  return one("repeat_cancel", {stage.key("repeat"), record_of(stage, name)}, {name}, Value::integer(was ? 1 : 0));
}

/// Those whose run has come, or all that are in the registry, the oldest run first.
std::vector<std::pair<std::int64_t, std::string>> listed(const Stage& stage, bool due_only) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const auto& [name, repeat] : stage.queue.repeats) {
    if (repeat.run && (!due_only || *repeat.run <= stage.state.now()))
      found.emplace_back(*repeat.run, name);
  }
  std::ranges::sort(found);
  return found;
}

Turn due(Stage& stage) {
  const bool limited = stage.command.flags > 4;
  const std::size_t limit = limited ? stage.command.flags - 4 : 1000;
  std::vector<std::string> args{stage.queue.base};
  if (limited)
    args.push_back(text(static_cast<std::int64_t>(limit)));
  const auto shown = [](const std::optional<std::string>& value) {
    return value ? Value::text(*value) : Value::null();
  };
  Value::Items seen;
  for (const auto& [run, name] : listed(stage, true)) {
    if (seen.size() == limit)
      break;
    const Repetition& repeat = stage.queue.repeats.at(name);
    seen.push_back(
        Value::array({Value::text(name), shown(repeat.every), shown(repeat.payload), Value::text(text(run))}));
  }
  return one("repeat_due", {stage.key("repeat")}, std::move(args), Value::array(std::move(seen)));
}

/// One registration that a pump has seen with its run. Gives the verdict; `made` counts what was admitted.
std::int64_t fire_one(Stage& stage, const std::string& name, std::int64_t seen, const std::string& id,
                      std::int64_t& made) {
  const auto at = stage.queue.repeats.find(name);
  if (at == stage.queue.repeats.end() || at->second.run != seen)
    return -1;
  Repetition& repeat = at->second;
  if (!repeat.payload || !repeat.every || !is_period(*repeat.every)) {
    stage.queue.repeats.erase(at);
    return 0;
  }
  if (stage.queue.find(id) != nullptr)
    return -3;
  Job job;
  job.payload = *repeat.payload;
  stage.queue.jobs[id] = job;
  repeat.run = stage.state.now() + std::stoll(*repeat.every);
  ++made;
  return 1;
}

/// What a pump does with what it saw as due: now, or after another has been there.
Turn fire(Stage& stage) {
  std::vector<std::string> args{stage.queue.base};
  const auto seen = listed(stage, stage.command.flags < 6);  // the script leaves it to `repeat_due` what is due
  const std::string first = stage.fresh_job();
  const bool wrong_kind = stage.command.token == 9 && stage.command.flags == 7;
  std::size_t number = 0;
  while (number < kJobs && job_id(stage.index, number) != first)
    ++number;
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::int64_t run = seen[i].first - (stage.command.token == 8 && i == 0 ? 1 : 0);
    ids.push_back(wrong_kind && i == 0 ? group_id(0) : job_id(stage.index, (number + i) % kJobs));
    args.insert(args.end(), {seen[i].second, text(run), ids.back()});
  }
  const bool twice = stage.command.token == 7 && !seen.empty();
  if (twice) {  // the same run again in one call
    ids.push_back(job_id(stage.index, (number + seen.size()) % kJobs));
    args.insert(args.end(), {seen[0].second, text(seen[0].first), ids.back()});
  }
  const std::vector<std::string> keys{stage.key("repeat"), stage.key("pending")};
  if (wrong_kind && !seen.empty())
    return one("repeat_fire", keys, std::move(args), Value::error("EMQKIND job id must be JOB-namespaced"));
  Value::Items verdicts;
  std::int64_t made = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto& [run, name] = seen[i == seen.size() ? 0 : i];
    const std::int64_t shown = run - (stage.command.token == 8 && i == 0 ? 1 : 0);
    verdicts.push_back(Value::integer(fire_one(stage, name, shown, ids[i], made)));
  }
  stage.queue.flat_wake(made);
  return one("repeat_fire", keys, std::move(args), Value::array(std::move(verdicts)));
}

/// A hand or a peer takes away a part of a registration, or puts in what is no period.
Turn spoil(Stage& stage) {
  const std::string name = name_of(stage);
  const auto at = stage.queue.repeats.find(name);
  if (at == stage.queue.repeats.end())
    return {};
  Repetition& repeat = at->second;
  const std::string record = record_of(stage, name);
  Turn turn;
  switch (stage.command.flags % 4) {
    case 0:
      turn = one("", {}, {"DEL", record}, Value::integer(repeat.has_record() ? 1 : 0));
      repeat.every.reset();
      repeat.payload.reset();
      break;
    case 1:
      turn = one("", {}, {"HSET", record, "every_ms", "often"}, Value::integer(repeat.every ? 0 : 1));
      repeat.every = "often";
      break;
    case 2:
      turn = one("", {}, {"HDEL", record, "template"}, Value::integer(repeat.payload ? 1 : 0));
      repeat.payload.reset();
      break;
    default:
      turn = one("", {}, {"ZREM", stage.key("repeat"), name}, Value::integer(repeat.run ? 1 : 0));
      repeat.run.reset();
  }
  repeat.spoilt = true;
  if (!repeat.run && !repeat.has_record())
    stage.queue.repeats.erase(at);
  return turn;
}

}  // namespace

Turn play_repeats(Stage stage) {
  switch (stage.command.verb) {
    case Verb::repeat_register: return enter(stage);
    case Verb::repeat_advance: return advance(stage);
    case Verb::repeat_cancel: return cancel(stage);
    case Verb::repeat_due: return due(stage);
    case Verb::repeat_fire: return fire(stage);
    default: return spoil(stage);
  }
}

}  // namespace echomq::model
