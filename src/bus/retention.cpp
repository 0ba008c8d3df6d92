// Retention policies: their text, one application of one, and where they stand on the server.
#include "echomq/retention.hpp"

#include <array>
#include <boost/json.hpp>
#include <utility>

#include "bus/checks.hpp"
#include "bus/retention.hpp"
#include "bus/state.hpp"
#include "identity/quoted.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;
namespace json = boost::json;

/// Entries that one call of the script may remove for each limit.
constexpr string_view kMostEntries = "10000";
constexpr std::size_t kMostGroups = 900;
/// Whole numbers that a script reads exactly.
constexpr std::uint64_t kMostNumber = 999'999'999'999'999;

[[nodiscard]] Result<void> check_limits(string_view name, const RetentionLimits& limits) {
  if (limits.age && (limits.age->count() < 0 || static_cast<std::uint64_t>(limits.age->count()) > kMostNumber)) {
    return fail(Errc::invalid_argument,
                fmt::format("{}.age must be 0 to 10^15 - 1 ms, got {}", name, limits.age->count()));
  }
  for (const auto& [what, number] : {std::pair{"count", limits.count}, std::pair{"bytes", limits.bytes}}) {
    if (number && *number > kMostNumber)
      return fail(Errc::invalid_argument, fmt::format("{}.{} must be below 10^15, got {}", name, what, *number));
  }
  return {};
}

[[nodiscard]] json::object limits_json(const RetentionLimits& limits) {
  json::object out;
  if (limits.count)
    out["count"] = *limits.count;
  if (limits.age)
    out["age_ms"] = limits.age->count();
  if (limits.bytes)
    out["bytes"] = *limits.bytes;
  return out;
}

[[nodiscard]] std::unexpected<Error> not_a_policy(string_view text, string_view why) {
  return fail(Errc::invalid_argument, fmt::format("not a retention policy: {}: {}", why, identity::quoted(text)));
}

/// False for what is no object of whole numbers >= 0.
[[nodiscard]] bool read_limits(const json::value& value, RetentionLimits& limits) {
  if (!value.is_object())
    return false;
  for (const auto& [name, member] : value.get_object()) {
    boost::system::error_code error;
    const auto number = member.to_number<std::uint64_t>(error);
    if (error || member.is_double())
      return false;
    if (name == "count") {
      limits.count = number;
    } else if (name == "bytes") {
      limits.bytes = number;
    } else if (name == "age_ms" && number <= kMostNumber) {
      limits.age = Milliseconds(static_cast<std::int64_t>(number));
    } else {
      return false;
    }
  }
  return true;
}

/// A piece of the work: what one call of the script answers.
struct Piece {
  std::uint64_t removed = 0;
  bool more = false;
  HeldBy held_by = HeldBy::nothing;
};

[[nodiscard]] Result<Piece> read_piece(const wire::Answer& answer) {
  const auto removed = answer.view.at(0).as_integer();
  const auto more = answer.view.at(1).as_integer();
  const auto held = answer.view.at(2).copy_text();
  if (!removed || *removed < 0 || !more || !held)
    return unexpected_reply("retain", answer.view);
  return Piece{.removed = static_cast<std::uint64_t>(*removed),
               .more = *more != 0,
               .held_by = *held == "groups"    ? HeldBy::groups
                          : *held == "archive" ? HeldBy::archive
                                               : HeldBy::nothing};
}

/// Calls the script until there is no more, each call when the last has been answered.
class Retain final : public detail::CallOf<Retained> {
 public:
  Retain(const Stream::State& state, const RetentionPolicy& policy, std::uint32_t most_calls)
      : core_(state.core), keys_{state.key, state.archived_key}, calls_left_(most_calls) {
    const auto number = [](const auto& limit) { return limit ? std::to_string(*limit) : std::string(); };
    for (const RetentionLimits* limits : {&policy.keep, &policy.hard}) {
      arguments_.push_back(number(limits->count));
      arguments_.push_back(limits->age ? std::to_string(limits->age->count()) : std::string());
      arguments_.push_back(number(limits->bytes));
    }
    arguments_.emplace_back(policy.how == Trim::exact ? "=" : "~");
    arguments_.emplace_back(policy.archived_only ? "1" : "0");
    arguments_.emplace_back(kMostEntries);
    arguments_.emplace_back(policy.guard == GroupGuard::none  ? "none"
                            : policy.guard == GroupGuard::all ? "all"
                                                              : "named");
    if (policy.guard == GroupGuard::named)
      arguments_.insert(arguments_.end(), policy.groups.begin(), policy.groups.end());
  }
  void accept(const resp::View&) noexcept override {}

  void step() {
    static const script::ScriptSource* const source_text = script::find_script("stream_retain");
    const std::array<string_view, 2> keys = {keys_[0], keys_[1]};
    const std::vector<string_view> arguments(arguments_.begin(), arguments_.end());
    --calls_left_;
    retain();
    detail::CallPointer<Retain> self(this);
    core_->eval<Piece>(*source_text, keys, arguments, settings(Repeat::safe), read_piece)
        .then([self = std::move(self)](const Result<Piece>& piece) { self->take_in(piece); });
  }

 private:
  void destroy() noexcept override { delete this; }

  void take_in(const Result<Piece>& piece) {
    if (!piece) {
      if (win()) {
        store(std::unexpected<Error>(piece.error()));
        publish();
      }
      return;
    }
    sum_.removed += piece->removed;
    sum_.held_by = piece->held_by;
    sum_.more = piece->more;
    if (piece->more && calls_left_ > 0)
      return step();
    if (win()) {
      store(sum_);
      publish();
    }
  }

  const std::shared_ptr<client::Core> core_;
  const std::array<std::string, 2> keys_;
  std::vector<std::string> arguments_;
  std::uint32_t calls_left_;
  Retained sum_;
};

}  // namespace

namespace bus {

Result<void> check_policy(const RetentionPolicy& policy) {
  ECHOMQ_CHECK(check_limits("keep", policy.keep));
  ECHOMQ_CHECK(check_limits("hard", policy.hard));
  if (policy.guard != GroupGuard::named && !policy.groups.empty())
    return fail(Errc::invalid_argument, "groups are named only with GroupGuard::named");
  if (policy.guard == GroupGuard::named && (policy.groups.empty() || policy.groups.size() > kMostGroups))
    return fail(Errc::invalid_argument, fmt::format("name 1 to {} groups, got {}", kMostGroups, policy.groups.size()));
  for (const std::string& group : policy.groups)
    ECHOMQ_CHECK(check_name("group", group));
  if (policy.guard == GroupGuard::none && policy.hard != RetentionLimits())
    return fail(Errc::invalid_argument, "hard limits are for policies that a group guards");
  return {};
}

}  // namespace bus

Result<RetentionPolicy> RetentionPolicy::parse(string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object())
    return not_a_policy(text, "no JSON object");
  RetentionPolicy policy;
  for (const auto& [name, member] : value.get_object()) {
    if (name == "keep" || name == "hard") {
      if (!read_limits(member, name == "keep" ? policy.keep : policy.hard))
        return not_a_policy(text, "limits are count, age_ms and bytes, whole numbers");
    } else if (name == "exact" && member.is_bool()) {
      policy.how = member.get_bool() ? Trim::exact : Trim::approximate;
    } else if (name == "archive" && member.is_bool()) {
      policy.archived_only = member.get_bool();
    } else if (name == "groups" && member == "all") {
      policy.guard = GroupGuard::all;
    } else if (name == "groups" && member.is_array()) {
      policy.guard = GroupGuard::named;
      for (const json::value& group : member.get_array()) {
        if (!group.is_string())
          return not_a_policy(text, "groups are names");
        policy.groups.emplace_back(group.get_string());
      }
    } else {
      return not_a_policy(text, "a member that is not known here");
    }
  }
  if (auto sound = check_policy(policy); !sound)
    return not_a_policy(text, sound.error().text);
  return policy;
}

std::string RetentionPolicy::text() const {
  json::object out;
  out["keep"] = limits_json(keep);
  if (hard != RetentionLimits())
    out["hard"] = limits_json(hard);
  if (how == Trim::exact)
    out["exact"] = true;
  if (guard == GroupGuard::all)
    out["groups"] = "all";
  if (guard == GroupGuard::named)
    out["groups"] = json::array(groups.begin(), groups.end());
  if (archived_only)
    out["archive"] = true;
  return json::serialize(out);
}

Reply<Retained> retain(const Stream& stream, const RetentionPolicy& policy, std::uint32_t most_calls) {
  ECHOMQ_CHECK(check_policy(policy));
  ECHOMQ_CHECK(check_count("most_calls", most_calls));
  const Stream::State& state = stream.internal();
  auto* call = new Retain(state, policy, most_calls);
  call->source = state.core->source();
  call->default_target = state.core->continuations();
  detail::CallPointer<detail::CallOf<Retained>> mine(call);
  call->step();
  return Reply<Retained>(std::move(mine));
}

Reply<void> put_retention(const Stream& stream, const RetentionPolicy& policy) {
  ECHOMQ_CHECK(check_policy(policy));
  const Stream::State& state = stream.internal();
  const keyspace::QueueKeys keys(state.queue);
  return state.core->command<void>(parts(string_view("HSET"), keys.retention(), state.name.text(), policy.text()),
                                   settings(Repeat::safe), [](const wire::Answer& answer) -> Result<void> {
                                     if (!answer.view.as_integer())
                                       return unexpected_reply("put_retention", answer.view);
                                     return {};
                                   });
}

Reply<std::optional<RetentionPolicy>> get_retention(const Stream& stream) {
  const Stream::State& state = stream.internal();
  const keyspace::QueueKeys keys(state.queue);
  return state.core->command<std::optional<RetentionPolicy>>(
      parts(string_view("HGET"), keys.retention(), state.name.text()), settings(Repeat::safe),
      [](const wire::Answer& answer) -> Result<std::optional<RetentionPolicy>> {
        if (answer.view.is_null())
          return std::nullopt;
        const auto text = answer.view.copy_text();
        if (!text)
          return unexpected_reply("get_retention", answer.view);
        auto policy = RetentionPolicy::parse(*text);
        if (!policy)
          return fail(Errc::broken_state, policy.error().text);
        return *std::move(policy);
      });
}

Reply<bool> clear_retention(const Stream& stream) {
  const Stream::State& state = stream.internal();
  const keyspace::QueueKeys keys(state.queue);
  return state.core->command<bool>(parts(string_view("HDEL"), keys.retention(), state.name.text()),
                                   settings(Repeat::safe), [](const wire::Answer& answer) -> Result<bool> {
                                     const auto number = answer.view.as_integer();
                                     if (!number)
                                       return unexpected_reply("clear_retention", answer.view);
                                     return *number > 0 || answer.resent;
                                   });
}

}  // namespace v1
}  // namespace echomq
