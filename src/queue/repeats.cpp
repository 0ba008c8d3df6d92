// Repeats: the registry, and admitting what is due; and the tick of a pump, of which that is a part.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "queue/conversation.hpp"
#include "queue/flow_deliver.hpp"
#include "queue/start.hpp"

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

/// Looks what is due, then fires it.
class Firing {
 public:
  Firing(const Queue::State& state, std::uint32_t limit)
      : core_(*state.core),
        scripts_(state.scripts),
        base_(state.keys.base()),
        repeat_(state.keys.repeat()),
        pending_(state.keys.pending()),
        limit_(limit) {}

  bool go_on(Asker& to) {
    if (!std::exchange(looked_, true)) {
      const Decimal limit(limit_);
      to.ask(0, scripts_.repeat_due, views(repeat_), views(base_, limit), Repeat::safe);
      return true;
    }
    if (error_ || due_.empty())
      return false;
    fire(to);
    return !error_;
  }

  void heard(std::size_t, Result<Value> answer) {
    if (!answer) {
      if (!error_)
        error_ = std::move(answer).error();
    } else if (!std::exchange(seen_, true)) {
      // Kept as it came: a run that was stored as a fraction must compare equal when it goes back.
      if (auto due = read_due(*answer)) {
        due_ = answer->take_items();
      } else {
        error_ = std::move(due).error();
      }
    } else {
      count(*answer);
    }
  }

  [[nodiscard]] Result<std::int64_t> outcome() {
    if (error_)
      return std::unexpected<Error>(*std::move(error_));
    return fired_;
  }

 private:
  void fire(Asker& to) {
    const auto due = std::exchange(due_, {});
    std::vector<BrandedId> ids;
    ids.reserve(due.size());
    for (std::size_t i = 0; i < due.size(); ++i) {
      auto id = core_.mint("JOB");
      if (!id) {
        error_ = std::move(id).error();
        return;
      }
      ids.push_back(*id);
    }
    for (std::size_t first = 0; first < due.size(); first += kFireChunk) {
      std::vector<std::string_view> arguments = {base_};
      for (std::size_t i = first; i < std::min(first + kFireChunk, due.size()); ++i) {
        arguments.push_back(due[i][0].as_text().value());
        arguments.push_back(due[i][3].as_text().value_or(""));
        arguments.push_back(ids[i].text());
      }
      to.ask(0, scripts_.repeat_fire, views(repeat_, pending_), arguments, Repeat::unsafe);
    }
  }
  void count(const Value& chunk) {
    for (const Value& verdict : chunk.items()) {
      if (verdict.as_integer() == 1)
        ++fired_;
      if (verdict.as_integer() == -3)
        core_.count_id_collision();  // still due: the next sweep mints again
    }
  }

  client::Core& core_;  // the conversation keeps it
  const Scripts& scripts_;
  std::string base_, repeat_, pending_;
  std::uint32_t limit_;
  bool looked_ = false;
  bool seen_ = false;  ///< what is due is known: further answers are those of `repeat_fire`
  std::vector<Value> due_;
  std::int64_t fired_ = 0;
  std::optional<Error> error_;
};

/// One tick of a pump: what is due, repeats and the outbox at once, each whether or not the others fail.
class Pump final : public Conversation<Pumped> {
 public:
  Pump(const Queue::State& state, std::uint32_t batch)
      : Conversation(*state.core, std::nullopt),
        scripts_(state.scripts),
        base_(state.keys.base()),
        schedule_(state.keys.schedule()),
        pending_(state.keys.pending()),
        batch_(batch),
        firing_(state, batch),
        outbox_(state.keys, batch, kOutbox) {}

 private:
  static constexpr std::size_t kFiring = 0;
  static constexpr std::size_t kPromote = 1;
  static constexpr std::size_t kOutbox = 2;  ///< and all that follow

  std::optional<Result<Pumped>> go_on() override {
    const bool fires = firing_.go_on(*this);
    const bool delivers = outbox_.go_on(*this);
    if (!std::exchange(begun_, true)) {
      const Decimal limit(batch_);
      ask(kPromote, scripts_.promote, views(schedule_, pending_), views(base_, limit), Repeat::unsafe);
      return std::nullopt;
    }
    if (fires || delivers)
      return std::nullopt;
    if (error_)
      return Result<Pumped>(std::unexpected<Error>(*std::move(error_)));
    ECHOMQ_TRY(pumped_.fired, firing_.outcome());
    ECHOMQ_TRY(const Delivered delivered, outbox_.outcome());
    pumped_.delivered = delivered.delivered;
    return Result<Pumped>(pumped_);
  }

  void heard(std::size_t tag, Result<Value> answer, bool) override {
    if (tag == kFiring)
      return firing_.heard(0, std::move(answer));
    if (tag >= kOutbox)
      return outbox_.heard(tag, std::move(answer));
    const auto promoted = answer ? answer->as_integer() : std::nullopt;
    if (promoted) {
      pumped_.promoted = *promoted;
    } else {
      error_ = answer ? Error(Errc::protocol_error, fmt::format("promote: unexpected reply {}", answer->to_string()))
                      : std::move(answer).error();
    }
  }

  const Scripts& scripts_;
  std::string base_, schedule_, pending_;
  std::uint32_t batch_;
  Firing firing_;
  OutboxPass outbox_;
  bool begun_ = false;
  Pumped pumped_;
  std::optional<Error> error_;
};

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
  return converse<std::int64_t>(*state_->core, std::nullopt, Firing(*state_, limit));
}

Reply<Pumped> Queue::pump_sweep(std::uint32_t batch) const {
  ECHOMQ_CHECK(check_limit("batch", batch));
  return (new Pump(*state_, batch))->begin();
}

}  // namespace v1
}  // namespace echomq
