// Reading records, and what the server says about a stream.
#include <utility>

#include "bus/checks.hpp"
#include "bus/records.hpp"
#include "bus/state.hpp"
#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;

constexpr std::uint64_t kLastTail = 0x3FFFFF;

[[nodiscard]] Result<Page> read_page(const resp::View& reply, std::uint32_t count, Direction direction,
                                     string_view other_bound) {
  if (!reply.is_aggregate())
    return unexpected_reply("read", reply);
  Page page;
  page.records.reserve(reply.size());
  for (const resp::View& entry : reply.elements()) {
    ECHOMQ_TRY(Record record, read_record("read", entry));
    page.records.push_back(std::move(record));
  }
  if (page.records.size() >= count) {
    std::string behind = "(" + page.records.back().entry;
    page.rest = direction == Direction::oldest_first ? std::pair{std::move(behind), std::string(other_bound)}
                                                     : std::pair{std::string(other_bound), std::move(behind)};
  }
  return page;
}

[[nodiscard]] Result<StreamInfo> read_info(const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply("info", reply);
  StreamInfo info;
  info.exists = true;
  const auto number = [&](string_view name) {
    return static_cast<std::uint64_t>(reply.find(name).as_integer().value_or(0));
  };
  info.length = number("length");
  info.groups = number("groups");
  info.appended = number("entries-added");
  info.top = reply.find("last-generated-id").copy_text().value_or("0-0");
  info.max_deleted = reply.find("max-deleted-entry-id").copy_text().value_or("0-0");
  info.first = reply.find("first-entry").at(0).copy_text().value_or("");
  return info;
}

[[nodiscard]] Result<std::vector<GroupInfo>> read_groups(const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply("groups", reply);
  std::vector<GroupInfo> groups;
  for (const resp::View& row : reply.elements()) {
    GroupInfo group;
    auto name = row.find("name").copy_text();
    if (!name)
      return unexpected_reply("groups", row);
    group.name = *std::move(name);
    group.consumers = static_cast<std::uint64_t>(row.find("consumers").as_integer().value_or(0));
    group.pending = static_cast<std::uint64_t>(row.find("pending").as_integer().value_or(0));
    group.last_delivered = row.find("last-delivered-id").copy_text().value_or("0-0");
    if (const auto lag = row.find("lag").as_integer())
      group.lag = static_cast<std::uint64_t>(*lag);
    groups.push_back(std::move(group));
  }
  return groups;
}

/// An answer of XINFO, which is an error for a stream that does not exist: nothing, then.
template <typename T>
[[nodiscard]] Reply<T> ask_about(const Stream::State& state, string_view what, Result<T> (*read)(const resp::View&)) {
  auto decode = [read](const wire::Answer& answer) -> Result<T> {
    if (!answer.view.is_error())
      return read(answer.view);
    if (answer.view.error_text() == "ERR no such key")
      return T();
    return std::unexpected<Error>(wire::to_error(answer.view.error_text()));
  };
  auto* call = wire::BoundCall<T, decltype(decode), true>::make(parts(string_view("XINFO"), what, state.key), decode);
  call->slot = state.slot;
  call->retain();
  detail::CallPointer<detail::CallOf<T>> mine(call);
  state.core->submit(call, settings(Repeat::safe));
  return Reply<T>(std::move(mine));
}

}  // namespace

Result<std::string> minid_floor(Instant instant) {
  ECHOMQ_CHECK(check_instant("instant", instant));
  return fmt::format("{}-0", instant.time_since_epoch().count());
}

Result<std::string> maxid_ceil(Instant instant) {
  ECHOMQ_CHECK(check_instant("instant", instant));
  return fmt::format("{}-{}", instant.time_since_epoch().count(), kLastTail);
}

Result<std::string> position_before(Instant instant) {
  ECHOMQ_CHECK(check_instant("instant", instant));
  const std::int64_t since = instant.time_since_epoch().count();
  // The server's own largest tail: entries of others than us may have it.
  return since == 0 ? std::string("0-0") : fmt::format("{}-{}", since - 1, UINT64_MAX);
}

Reply<Page> Stream::read(string_view from, string_view to, ReadOptions options) const {
  ECHOMQ_CHECK(check_bound("from", from));
  ECHOMQ_CHECK(check_bound("to", to));
  ECHOMQ_CHECK(check_count("count", options.count));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const bool forward = options.direction == Direction::oldest_first;
  const Decimal count(options.count);
  const string_view verb = forward ? "XRANGE" : "XREVRANGE";
  const string_view first = forward ? from : to;
  const string_view second = forward ? to : from;
  return state_->core->command<Page>(
      parts(verb, state_->key, first, second, string_view("COUNT"), count), settings(Repeat::safe, options.deadline),
      [limit = options.count, direction = options.direction, other = std::string(second)](const wire::Answer& answer) {
        return read_page(answer.view, limit, direction, other);
      });
}

Reply<Page> Stream::read_window(Instant begin, Instant end, ReadOptions options) const {
  if (end < begin) {
    return fail(Errc::invalid_argument, fmt::format("a window begins before it ends, got begin {}ms and end {}ms",
                                                    begin.time_since_epoch().count(), end.time_since_epoch().count()));
  }
  ECHOMQ_CHECK(check_instant("begin", begin));
  ECHOMQ_TRY(const std::string from, minid_floor(begin));
  ECHOMQ_TRY(const std::string to, maxid_ceil(end));
  return read(from, to, options);
}

Reply<Page> Stream::read_since(Instant begin, ReadOptions options) const {
  ECHOMQ_CHECK(check_instant("begin", begin));
  ECHOMQ_TRY(const std::string from, minid_floor(begin));
  return read(from, "+", options);
}

Reply<Page> Stream::read_after(EventId id, ReadOptions options) const {
  return read(fmt::format("({}", id.entry_id().text()), "+", options);
}

Reply<std::uint64_t> Stream::length() const {
  return state_->core->command<std::uint64_t>(parts(string_view("XLEN"), state_->key), settings(Repeat::safe),
                                              decode_count("length"));
}

Reply<StreamInfo> Stream::info() const { return ask_about<StreamInfo>(*state_, "STREAM", read_info); }

Reply<std::vector<GroupInfo>> Stream::groups() const {
  return ask_about<std::vector<GroupInfo>>(*state_, "GROUPS", read_groups);
}

Reply<void> Stream::put_archived(EventId id) const {
  return state_->core->command<void>(parts(string_view("SET"), state_->archived_key, id.text()), settings(Repeat::safe),
                                     [](const wire::Answer& answer) -> Result<void> {
                                       if (answer.view.as_text() != "OK")
                                         return unexpected_reply("put_archived", answer.view);
                                       return {};
                                     });
}

Reply<std::optional<EventId>> Stream::archived() const {
  return state_->core->command<std::optional<EventId>>(
      parts(string_view("GET"), state_->archived_key), settings(Repeat::safe),
      [](const wire::Answer& answer) -> Result<std::optional<EventId>> {
        if (answer.view.is_null())
          return std::nullopt;
        const auto text = answer.view.copy_text();
        if (!text)
          return unexpected_reply("archived", answer.view);
        const auto id = EventId::parse(*text);
        if (!id)
          return fail(Errc::broken_state, "the archive's watermark is no EVT id: " + identity::quoted(*text));
        return *id;
      });
}

Reply<bool> Stream::clear_archived() const {
  return state_->core->command<bool>(parts(string_view("DEL"), state_->archived_key), settings(Repeat::safe),
                                     [](const wire::Answer& answer) -> Result<bool> {
                                       const auto number = answer.view.as_integer();
                                       if (!number)
                                         return unexpected_reply("clear_archived", answer.view);
                                       return *number > 0 ||
                                              answer.resent;  // after a lost answer the first attempt has deleted it
                                     });
}

}  // namespace v1
}  // namespace echomq
