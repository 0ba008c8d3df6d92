// Repeats: the registry, and admitting what is due.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "queue/start.hpp"
#include "queue/steps.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Registrations of one `repeat_fire` script.
constexpr std::size_t kFireChunk = 300;

/// A list of `[name, period or null, payload or null, next run]`.
[[nodiscard]] Result<std::vector<DueRepeat>> read_due(const Value& reply) {
  const auto refuse = [&] {
    return fail(Errc::protocol_error, fmt::format("repeat_due: unexpected reply {}", reply.to_string()));
  };
  if (!reply.is_aggregate())
    return refuse();
  std::vector<DueRepeat> due;
  due.reserve(reply.size());
  for (const Value& one : reply.items()) {
    const auto run = one.size() == 4 ? one[3].as_double() : std::nullopt;
    if (!run || !one[0].as_text())
      return refuse();
    DueRepeat& repeat = due.emplace_back();
    repeat.name = *one[0].as_text();
    if (const auto every = one[1].as_integer(); every && *every >= 1)
      repeat.every = Milliseconds(*every);
    if (const auto payload = one[2].as_text())
      repeat.payload = std::string(*payload);
    constexpr auto kFar = static_cast<double>(kMaxExact);
    repeat.run = Instant(Milliseconds(static_cast<std::int64_t>(std::clamp(*run, -kFar, kFar))));
  }
  return due;
}

/// Looks what is due, then fires it. With `promote` the first round moves due jobs as well.
struct FireNext {
  client::Core& core;
  const Scripts& scripts;
  std::string base, repeat, pending, schedule;
  std::uint32_t limit;
  bool promote;
  Pumped pumped = {};
  bool asked = false;

  std::optional<Result<Pumped>> operator()(auto& steps, std::span<Value> answers) {
    if (answers.empty()) {
      const Decimal text(limit);
      steps.eval(scripts.repeat_due, views(repeat), views(base, text));
      if (promote)
        steps.eval(scripts.promote, views(schedule, pending), views(base, text));
      return std::nullopt;
    }
    return std::exchange(asked, true) ? count(answers) : fire(steps, answers);
  }

  std::optional<Result<Pumped>> fire(auto& steps, std::span<Value> answers) {
    if (promote)
      pumped.promoted = answers[1].as_integer().value_or(0);
    // The raw answer goes back as it came: a run that was stored as a fraction must compare equal.
    if (!read_due(answers[0]))
      return std::unexpected<Error>(read_due(answers[0]).error());
    const std::span<const Value> due = answers[0].items();
    if (due.empty())
      return pumped;
    std::vector<BrandedId> ids;
    ids.reserve(due.size());
    for (std::size_t i = 0; i < due.size(); ++i) {
      auto id = core.mint("JOB");
      if (!id)
        return std::unexpected<Error>(std::move(id).error());
      ids.push_back(*id);
    }
    for (std::size_t first = 0; first < due.size(); first += kFireChunk) {
      std::vector<std::string_view> arguments = {base};
      for (std::size_t i = first; i < std::min(first + kFireChunk, due.size()); ++i) {
        arguments.push_back(due[i][0].as_text().value());
        arguments.push_back(due[i][3].as_text().value_or(""));
        arguments.push_back(ids[i].text());
      }
      steps.eval(scripts.repeat_fire, views(repeat, pending), arguments);
    }
    return std::nullopt;
  }

  std::optional<Result<Pumped>> count(std::span<Value> answers) {
    for (const Value& chunk : answers) {
      for (const Value& verdict : chunk.items()) {
        if (verdict.as_integer() == 1)
          ++pumped.fired;
        if (verdict.as_integer() == -3)
          core.count_id_collision();  // still due: the next sweep mints again
      }
    }
    return pumped;
  }
};

/// Only what was fired.
struct FiredNext {
  FireNext fire;
  std::optional<Result<std::int64_t>> operator()(auto& steps, std::span<Value> answers) {
    auto pumped = fire(steps, answers);
    if (!pumped)
      return std::nullopt;
    if (!*pumped)
      return std::unexpected<Error>((*pumped).error());
    return (*pumped)->fired;
  }
};

[[nodiscard]] FireNext fire_next(const Queue::State& state, std::uint32_t limit, bool promote) {
  const keyspace::QueueKeys& keys = state.keys;
  return FireNext{*state.core,    state.scripts,   keys.base(), keys.repeat(),
                  keys.pending(), keys.schedule(), limit,       promote};
}

/// 1 found, 0 absent, which after a lost answer means found.
[[nodiscard]] auto decode_found(std::string_view verb) {
  return [verb](const wire::Answer& answer) -> Result<RepeatFound> {
    const auto number = answer.view.as_integer();
    if (number == 1 || (number == 0 && answer.resent))
      return RepeatFound::found;
    if (number == 0)
      return RepeatFound::absent;
    return unexpected_reply(verb, answer.view);
  };
}

}  // namespace

Reply<Registered> Queue::register_repeat(std::string_view name, RepeatOptions options) const {
  ECHOMQ_CHECK(check_repeat_name(name));
  ECHOMQ_CHECK(check_period("every", options.every));
  ECHOMQ_CHECK(check_wait("first_in", options.first_in));
  ECHOMQ_CHECK(check_text("payload", options.payload));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const keyspace::KeyText record = state_->keys.repeat_record(name);
  const Decimal every(options.every);
  const Decimal first_in(options.first_in);
  return state_->core->eval<Registered>(state_->scripts.repeat_register, views(state_->keys.repeat(), record),
                                        views(name, every, options.payload, first_in, std::string_view("in")),
                                        settings(Repeat::safe, options.deadline),
                                        [](const wire::Answer& answer) -> Result<Registered> {
                                          const auto number = answer.view.as_integer();
                                          if (number == 1)
                                            return Registered::registered;
                                          if (number == 0)
                                            return answer.resent ? Registered::present : Registered::exists;
                                          return unexpected_reply("register_repeat", answer.view);
                                        });
}

Reply<RepeatFound> Queue::cancel_repeat(std::string_view name) const {
  ECHOMQ_CHECK(check_repeat_name(name));
  const keyspace::KeyText record = state_->keys.repeat_record(name);
  return state_->core->eval<RepeatFound>(state_->scripts.repeat_cancel, views(state_->keys.repeat(), record),
                                         views(name), settings(Repeat::safe), decode_found("cancel_repeat"));
}

Reply<std::vector<DueRepeat>> Queue::due_repeats(std::uint32_t limit) const {
  ECHOMQ_CHECK(check_limit("limit", limit));
  const Decimal text(limit);
  return state_->core->eval<std::vector<DueRepeat>>(
      state_->scripts.repeat_due, views(state_->keys.repeat()), views(state_->keys.base(), text),
      settings(Repeat::safe), [](const wire::Answer& answer) { return read_due(resp::to_value(answer.view)); });
}

Reply<RepeatFound> Queue::advance_repeat(std::string_view name, Milliseconds every) const {
  ECHOMQ_CHECK(check_repeat_name(name));
  ECHOMQ_CHECK(check_period("every", every));
  const keyspace::KeyText record = state_->keys.repeat_record(name);
  const Decimal text(every);
  // An answer that was lost changes nothing: the repetition only counts from a little later.
  return state_->core->eval<RepeatFound>(state_->scripts.repeat_advance, views(state_->keys.repeat(), record),
                                         views(name, text, std::string_view("in")), settings(Repeat::safe),
                                         [](const wire::Answer& answer) -> Result<RepeatFound> {
                                           const auto number = answer.view.as_integer();
                                           if (number == 0 || number == 1)
                                             return number == 1 ? RepeatFound::found : RepeatFound::absent;
                                           return unexpected_reply("advance_repeat", answer.view);
                                         });
}

Reply<std::int64_t> Queue::repeat_count() const {
  return state_->core->command<std::int64_t>(views(std::string_view("ZCARD"), state_->keys.repeat()),
                                             settings(Repeat::safe), decode_integer("repeat_count"));
}

Reply<std::int64_t> Queue::fire_repeats(std::uint32_t limit) const {
  ECHOMQ_CHECK(check_limit("limit", limit));
  return run_steps<std::int64_t>(*state_->core, settings(Repeat::unsafe), FiredNext{fire_next(*state_, limit, false)});
}

Reply<Pumped> Queue::pump_sweep(std::uint32_t batch) const {
  ECHOMQ_CHECK(check_limit("batch", batch));
  return run_steps<Pumped>(*state_->core, settings(Repeat::unsafe), fire_next(*state_, batch, true));
}

}  // namespace v1
}  // namespace echomq
