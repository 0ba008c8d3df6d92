// The log of a queue: turning it on, and reading it with what tells whether something is missing.
#include "echomq/event_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "events/event_log_state.hpp"
#include "resp/view.hpp"
#include "result/try.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using std::string_view;
using std::chrono::milliseconds;

constexpr std::uint64_t kLastNumber = ~std::uint64_t{0};
/// Numbers beyond are not exact in a script.
constexpr std::uint64_t kMostExact = 9007199254740991;
constexpr std::uint32_t kLargestPage = 10'000;

struct Place {
  std::uint64_t ms = 0;
  std::uint64_t number = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// A number without a sign, which is all of the text.
[[nodiscard]] std::optional<std::uint64_t> number_of(string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return number;
}

[[nodiscard]] std::optional<Place> place_of(string_view id) {
  const std::size_t dash = id.find('-');
  if (dash == string_view::npos)
    return std::nullopt;
  const auto ms = number_of(id.substr(0, dash));
  const auto number = number_of(id.substr(dash + 1));
  if (!ms || !number)
    return std::nullopt;
  return Place{*ms, *number};
}

[[nodiscard]] UnixMillis time_of(const Place& place) {
  return UnixMillis(milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(place.ms, INT64_MAX))));
}

[[nodiscard]] std::unexpected<Error> strange(const resp::View& reply) {
  return fail(Errc::protocol_error, "log_read: unexpected reply " + resp::to_value(reply).to_string());
}

[[nodiscard]] Result<LogEntry> entry_of(const resp::View& raw) {
  auto id = raw.at(0).copy_text();
  const auto place = id ? place_of(*id) : std::nullopt;
  if (!place)
    return strange(raw);
  LogEntry entry;
  entry.id = *std::move(id);
  entry.time = time_of(*place);
  const resp::View fields = raw.at(1);
  for (const auto& [name_view, value_view] : fields.pairs()) {
    auto name = name_view.copy_text();
    auto value = value_view.copy_text();
    if (!name || !value)
      return strange(raw);
    if (*name == "event") {
      entry.event = *std::move(value);
    } else if (*name == "job") {
      // What a peer or an operator has written by hand is given as it is.
      if (auto job = JobId::parse(*value)) {
        entry.job = *job;
      } else {
        entry.extra.emplace_back(*std::move(name), *std::move(value));
      }
    } else if (*name == "attempts") {
      entry.attempts = number_of(*value).value_or(0);
    } else if (*name == "lane") {
      entry.lane = *std::move(value);
    } else {
      entry.extra.emplace_back(*std::move(name), *std::move(value));
    }
  }
  return entry;
}

/// What `log_read` says beside the entries.
struct Facts {
  std::uint64_t added = 0;
  std::uint64_t length = 0;
  std::optional<Place> first;
  Place top;
  /// Entries that have gone: all of them were the oldest.
  [[nodiscard]] std::uint64_t gone() const noexcept { return added - std::min(added, length); }
};

[[nodiscard]] std::uint64_t count_at(const resp::View& reply, std::size_t index) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, reply.at(index).as_integer().value_or(0)));
}

[[nodiscard]] Facts facts_of(const resp::View& reply) {
  return {.added = count_at(reply, 0),
          .length = count_at(reply, 1),
          .first = place_of(reply.at(2).as_text().value_or("")),
          .top = place_of(reply.at(3).as_text().value_or("")).value_or(Place{})};
}

/// Whether something is missing between the cursor and the first entry that is left.
[[nodiscard]] std::optional<LogGap> gap_of(const LogCursor& from, const Facts& facts) {
  const Place at{from.milliseconds, from.number};
  LogGap gap{
      .missed = std::nullopt, .from = time_of(at), .until = time_of(facts.first.value_or(at)), .begun_anew = false};
  if (from.passed) {
    // Of a log that still is the one the cursor was in, its entry is the `passed`-th; when that is there, so is an id as low.
    const bool other = facts.added < *from.passed || (facts.gone() < *from.passed && facts.first && *facts.first > at);
    if (other) {
      gap.begun_anew = true;
      return gap;
    }
    if (facts.gone() <= *from.passed)
      return std::nullopt;
    gap.missed = facts.gone() - *from.passed;
    return gap;
  }
  if (at == Place{} || facts.gone() == 0 || (facts.first && *facts.first <= at))
    return std::nullopt;
  return gap;
}

/// Where to go on behind the entries of a page.
[[nodiscard]] LogCursor cursor_behind(const LogCursor& from, const Facts& facts, const LogPage& page, bool to_the_end) {
  LogCursor next = from;
  if (from.passed) {
    next.passed = std::max(*from.passed, facts.gone()) + page.entries.size();
  } else if (to_the_end && !page.more) {
    next.passed = facts.added;
  } else if (!page.entries.empty() && facts.first && place_of(page.entries.front().id) == facts.first) {
    next.passed = facts.gone() + page.entries.size();
  }
  if (!page.entries.empty()) {
    const Place last = place_of(page.entries.back().id).value_or(Place{});
    next.milliseconds = last.ms;
    next.number = last.number;
  } else if (to_the_end && page.gap) {
    // All that came has gone again.
    next.milliseconds = facts.top.ms;
    next.number = facts.top.number;
  }
  return next;
}

[[nodiscard]] Result<void> check_deadline(const std::optional<milliseconds>& deadline) {
  if (deadline && deadline->count() < 1)
    return fail(Errc::invalid_argument, fmt::format("deadline must be 1ms or more, got {}ms", deadline->count()));
  return {};
}

[[nodiscard]] wire::CallSettings settings(Repeat repeat, std::optional<milliseconds> deadline = {}) {
  wire::CallSettings out;
  out.repeat = repeat;
  if (deadline)
    out.deadline = std::min<milliseconds>(*deadline, std::chrono::days{365});
  return out;
}

[[nodiscard]] Result<const script::ScriptSource*> find(string_view name) {
  const script::ScriptSource* script = script::find_script(name);
  if (script == nullptr)
    return fail(Errc::server_error, fmt::format("script {} is not part of this build", name));
  return script;
}

[[nodiscard]] Reply<bool> set(const EventLog::State& state, std::span<const string_view> arguments,
                              std::optional<milliseconds> deadline) {
  ECHOMQ_TRY(const script::ScriptSource* script, find("log_set"));
  const std::array<string_view, 3> keys = {state.keys.logging(), state.keys.log(), state.keys.meta()};
  return state.core->eval<bool>(*script, keys, arguments, settings(Repeat::safe, deadline),
                                [](const wire::Answer& answer) -> Result<bool> {
                                  const auto was_on = answer.view.as_integer();
                                  if (!was_on)
                                    return strange(answer.view);
                                  return *was_on == 1;
                                });
}

template <typename T, typename Decode>
[[nodiscard]] Reply<T> ask(const EventLog::State& state, string_view first, string_view last, std::uint32_t count,
                           std::optional<milliseconds> deadline, Decode decode) {
  ECHOMQ_TRY(const script::ScriptSource* script, find("log_read"));
  const std::array<string_view, 3> keys = {state.keys.log(), state.keys.logging(), state.keys.meta()};
  const std::string most = std::to_string(count);
  const std::array<string_view, 3> arguments = {first, last, most};
  return state.core->eval<T>(*script, keys, arguments, settings(Repeat::safe, deadline), std::move(decode));
}

}  // namespace

const std::string* LogEntry::find(string_view name) const noexcept {
  const auto found =
      std::find_if(extra.begin(), extra.end(), [name](const auto& field) { return field.first == name; });
  return found == extra.end() ? nullptr : &found->second;
}

LogCursor LogCursor::since(UnixMillis instant) noexcept {
  const std::int64_t ms = instant.time_since_epoch().count();
  if (ms <= 0)
    return {};
  return {.milliseconds = static_cast<std::uint64_t>(ms) - 1, .number = kLastNumber, .passed = std::nullopt};
}

std::string LogCursor::text() const {
  return passed ? fmt::format("{}-{}:{}", milliseconds, number, *passed) : fmt::format("{}-{}", milliseconds, number);
}

Result<LogCursor> LogCursor::parse(string_view text) {
  const std::size_t colon = text.find(':');
  const auto place = place_of(text.substr(0, colon));
  std::optional<std::uint64_t> passed;
  if (colon != string_view::npos)
    passed = number_of(text.substr(colon + 1));
  if (!place || (colon != string_view::npos && !passed))
    return fail(Errc::invalid_argument, fmt::format("no cursor of a log: '{}'", text.substr(0, 100)));
  return LogCursor{.milliseconds = place->ms, .number = place->number, .passed = passed};
}

EventLog::EventLog(const Client& client, const QueueName& queue)
    : state_(std::make_shared<const State>(queue, client.core())) {}

const QueueName& EventLog::queue() const noexcept { return state_->keys.queue(); }

Reply<bool> EventLog::turn_on(LogOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  if (options.most < 1 || options.most > kMostExact)
    return fail(Errc::invalid_argument, fmt::format("most must be 1 to {}, got {}", kMostExact, options.most));
  if (options.age && (options.age->count() < 1 || static_cast<std::uint64_t>(options.age->count()) > kMostExact))
    return fail(Errc::invalid_argument, fmt::format("age must be 1ms or more, got {}ms", options.age->count()));
  const std::string most = std::to_string(options.most);
  const std::string age = std::to_string(options.age ? options.age->count() : 0);
  const std::array<string_view, 4> arguments = {"on", most, age, options.claims ? "1" : "0"};
  return set(*state_, arguments, options.deadline);
}

Reply<bool> EventLog::turn_off() const { return set(*state_, std::array<string_view, 1>{"off"}, {}); }

Reply<bool> EventLog::forget() const { return set(*state_, std::array<string_view, 1>{"forget"}, {}); }

Reply<LogPage> EventLog::read(const LogCursor& from, LogReadOptions options) const {
  ECHOMQ_CHECK(check_deadline(options.deadline));
  if (options.count < 1 || options.count > kLargestPage)
    return fail(Errc::invalid_argument, fmt::format("count must be 1 to {}, got {}", kLargestPage, options.count));
  const std::int64_t until = options.until ? options.until->time_since_epoch().count() : 0;
  if (until < 0)
    return fail(Errc::invalid_argument, fmt::format("until must not be before 1970, got {}ms", until));
  const std::string first = fmt::format("({}-{}", from.milliseconds, from.number);
  const std::string last = options.until ? std::to_string(until) : std::string("+");
  return ask<LogPage>(
      *state_, first, last, options.count, options.deadline,
      [from, count = options.count, to_the_end = !options.until](const wire::Answer& answer) -> Result<LogPage> {
        const resp::View raw = answer.view.at(4);
        if (!raw.is_aggregate())
          return strange(answer.view);
        const Facts facts = facts_of(answer.view);
        LogPage page;
        page.entries.reserve(raw.size());
        for (const resp::View& one : raw.elements()) {
          ECHOMQ_TRY(LogEntry entry, entry_of(one));
          page.entries.push_back(std::move(entry));
        }
        page.more = page.entries.size() >= count;
        page.gap = gap_of(from, facts);
        if (page.gap && page.gap->begun_anew) {
          // Its first entries may have lower ids than the cursor, when the server's clock was set back.
          page.entries.clear();
          page.next = {.milliseconds = 0, .number = 0, .passed = facts.gone()};
          page.more = facts.length > 0;
          return page;
        }
        page.next = cursor_behind(from, facts, page, to_the_end);
        return page;
      });
}

Reply<LogInfo> EventLog::info() const {
  return ask<LogInfo>(*state_, "+", "+", 1, {}, [](const wire::Answer& answer) -> Result<LogInfo> {
    if (!answer.view.is_aggregate() || answer.view.size() < 10)
      return strange(answer.view);
    const Facts facts = facts_of(answer.view);
    LogInfo info;
    info.added = facts.added;
    info.length = facts.length;
    info.first = answer.view.at(2).copy_text().value_or("");
    info.end = {.milliseconds = facts.top.ms, .number = facts.top.number, .passed = facts.added};
    info.on = count_at(answer.view, 5) == 1;
    info.most = count_at(answer.view, 6);
    if (const std::uint64_t age = count_at(answer.view, 7); age > 0)
      info.age = milliseconds(age);
    info.claims = count_at(answer.view, 8) == 1;
    info.lost = count_at(answer.view, 9);
    return info;
  });
}

}  // namespace v1
}  // namespace echomq
