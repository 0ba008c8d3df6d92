// The commands of a consumer group.
#include <utility>

#include "bus/checks.hpp"
#include "bus/records.hpp"
#include "bus/state.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;

[[nodiscard]] Result<std::vector<std::string>> read_entry_ids(string_view verb, const resp::View& list) {
  std::vector<std::string> ids;
  if (list.is_null())
    return ids;
  if (!list.is_aggregate())
    return unexpected_reply(verb, list);
  for (const resp::View& item : list.elements()) {
    auto text = item.copy_text();
    if (!text)
      return unexpected_reply(verb, item);
    ids.push_back(*std::move(text));
  }
  return ids;
}

[[nodiscard]] Result<IdleClaim> read_claim(const resp::View& reply) {
  const auto next = reply.at(0).copy_text();
  const resp::View entries = reply.at(1);
  if (!next || !entries.is_aggregate())
    return unexpected_reply("claim_idle", reply);
  IdleClaim claim;
  claim.next = *next;
  for (const resp::View& entry : entries.elements()) {
    // Servers before 7.0 hand out removed entries as nulls, without their ids.
    if (entry.is_null())
      continue;
    ECHOMQ_TRY(Delivery delivery, read_delivery("claim_idle", entry));
    claim.entries.push_back(std::move(delivery));
  }
  ECHOMQ_TRY(claim.deleted, read_entry_ids("claim_idle", reply.at(2)));
  return claim;
}

[[nodiscard]] Result<std::vector<PendingEntry>> read_pending(const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply("pending", reply);
  std::vector<PendingEntry> rows;
  for (const resp::View& row : reply.elements()) {
    auto entry = row.at(0).copy_text();
    auto consumer = row.at(1).copy_text();
    const auto idle = row.at(2).as_integer();
    const auto deliveries = row.at(3).as_integer();
    if (!entry || !consumer || !idle || !deliveries)
      return unexpected_reply("pending", row);
    rows.push_back(
        {*std::move(entry), *std::move(consumer), Milliseconds(*idle), static_cast<std::uint64_t>(*deliveries)});
  }
  return rows;
}

[[nodiscard]] Result<void> check_read(string_view consumer, const GroupReadOptions& options) {
  ECHOMQ_CHECK(check_name("consumer", consumer));
  ECHOMQ_CHECK(check_count("count", options.count));
  return check_deadline(options.deadline);
}

[[nodiscard]] Result<void> check_entries(std::span<const string_view> entries) {
  for (const string_view entry : entries)
    ECHOMQ_CHECK(check_entry("entry", entry));
  return {};
}

[[nodiscard]] Reply<bool> make_group(const Stream::State& state, string_view name, string_view from) {
  auto decode = [](const wire::Answer& answer) -> Result<bool> {
    const string_view error = answer.view.error_text();
    // After a lost answer the first attempt has made it.
    if (error.starts_with("BUSYGROUP"))
      return answer.resent;
    if (answer.view.is_error())
      return std::unexpected<Error>(wire::to_error(error));
    return true;
  };
  auto* call = wire::BoundCall<bool, decltype(decode), true>::make(
      parts(string_view("XGROUP"), string_view("CREATE"), state.key, name, from, string_view("MKSTREAM")), decode);
  call->slot = state.slot;
  call->retain();
  detail::CallPointer<detail::CallOf<bool>> mine(call);
  state.core->submit(call, settings(Repeat::safe));
  return Reply<bool>(std::move(mine));
}

[[nodiscard]] Result<std::vector<ConsumerInfo>> read_consumers(const resp::View& reply) {
  if (!reply.is_aggregate())
    return unexpected_reply("consumers", reply);
  std::vector<ConsumerInfo> rows;
  for (const resp::View& row : reply.elements()) {
    auto name = row.find("name").copy_text();
    if (!name)
      return unexpected_reply("consumers", row);
    ConsumerInfo consumer{.name = *std::move(name), .inactive = std::nullopt};
    consumer.pending = static_cast<std::uint64_t>(row.find("pending").as_integer().value_or(0));
    consumer.idle = Milliseconds(row.find("idle").as_integer().value_or(0));
    if (const auto inactive = row.find("inactive").as_integer(); inactive && *inactive >= 0)
      consumer.inactive = Milliseconds(*inactive);
    rows.push_back(std::move(consumer));
  }
  return rows;
}

/// The server's error for a subcommand on a key that is not there: there is no group either.
[[nodiscard]] Error group_error(string_view text) {
  if (text.starts_with("ERR no such key") || text.starts_with("ERR The XGROUP subcommand requires the key to exist"))
    return Error(Errc::no_group, std::string(text), Repeat::safe);
  return wire::to_error(text);
}

/// A command whose error replies mean `no_group` where the key is missing.
template <typename T, typename Read>
[[nodiscard]] Reply<T> ask_group(const Stream::State& state, std::span<const string_view> words, Read read) {
  auto decode = [read](const wire::Answer& answer) -> Result<T> {
    if (answer.view.is_error())
      return std::unexpected<Error>(group_error(answer.view.error_text()));
    return read(answer.view);
  };
  auto* call = wire::BoundCall<T, decltype(decode), true>::make(words, decode);
  call->slot = state.slot;
  call->retain();
  detail::CallPointer<detail::CallOf<T>> mine(call);
  state.core->submit(call, settings(Repeat::safe));
  return Reply<T>(std::move(mine));
}

[[nodiscard]] Reply<void> set_position(const Stream::State& state, string_view group, string_view position) {
  return ask_group<void>(state, parts(string_view("XGROUP"), string_view("SETID"), state.key, group, position),
                         [](const resp::View& reply) -> Result<void> {
                           if (reply.as_text() != "OK")
                             return unexpected_reply("reset", reply);
                           return {};
                         });
}

[[nodiscard]] Reply<GroupRemoval> remove_from(const Stream::State& state, string_view group, string_view consumer,
                                              Removal how) {
  const script::ScriptSource* const script = script::find_script("stream_group_remove");
  const string_view keys[] = {state.key};
  const string_view arguments[] = {group, consumer, how == Removal::forced ? "1" : "0"};
  // A repeated removal finds nothing: that is its success.
  return state.core->eval<GroupRemoval>(
      *script, keys, arguments, settings(Repeat::safe), [](const wire::Answer& answer) -> Result<GroupRemoval> {
        const auto removed = answer.view.at(0).as_integer();
        const auto pending = answer.view.at(1).as_integer();
        if (!removed || !pending || *pending < 0)
          return unexpected_reply("remove", answer.view);
        const auto count = static_cast<std::uint64_t>(*pending);
        return GroupRemoval{.removed = *removed == 1 || (answer.resent && count == 0), .pending = count};
      });
}

}  // namespace

Reply<void> StreamGroup::reset(GroupStart start) const {
  return set_position(stream_.internal(), name_, start == GroupStart::head ? "0" : "$");
}

Reply<void> StreamGroup::reset_behind(string_view entry) const {
  ECHOMQ_CHECK(check_entry("entry", entry));
  return set_position(stream_.internal(), name_, entry);
}

Reply<void> StreamGroup::reset_since(Instant begin) const {
  ECHOMQ_TRY(const std::string position, position_before(begin));
  return set_position(stream_.internal(), name_, position);
}

Reply<std::vector<ConsumerInfo>> StreamGroup::consumers() const {
  const Stream::State& state = stream_.internal();
  return ask_group<std::vector<ConsumerInfo>>(
      state, parts(string_view("XINFO"), string_view("CONSUMERS"), state.key, name_), read_consumers);
}

Reply<GroupRemoval> StreamGroup::remove(Removal how) const { return remove_from(stream_.internal(), name_, "", how); }

Reply<GroupRemoval> StreamGroup::remove_consumer(string_view consumer, Removal how) const {
  ECHOMQ_CHECK(check_name("consumer", consumer));
  return remove_from(stream_.internal(), name_, consumer, how);
}

Reply<bool> StreamGroup::create(GroupStart start) const {
  return make_group(stream_.internal(), name_, start == GroupStart::head ? "0" : "$");
}

Reply<bool> StreamGroup::create_behind(string_view entry) const {
  ECHOMQ_CHECK(check_entry("entry", entry));
  return make_group(stream_.internal(), name_, entry);
}

Reply<std::vector<Delivery>> StreamGroup::read_new(string_view consumer, GroupReadOptions options) const {
  ECHOMQ_CHECK(check_read(consumer, options));
  const Stream::State& state = stream_.internal();
  const Decimal count(options.count);
  return state.core->command<std::vector<Delivery>>(
      parts(string_view("XREADGROUP"), string_view("GROUP"), name_, consumer, string_view("COUNT"), count,
            string_view("STREAMS"), state.key, string_view(">")),
      settings(Repeat::unsafe, options.deadline),
      [](const wire::Answer& answer) { return read_stream_reply("read_new", answer.view); });
}

Reply<std::vector<Delivery>> StreamGroup::read_own(string_view consumer, string_view after,
                                                   GroupReadOptions options) const {
  ECHOMQ_CHECK(check_read(consumer, options));
  ECHOMQ_CHECK(check_entry("after", after));
  const Stream::State& state = stream_.internal();
  const Decimal count(options.count);
  return state.core->command<std::vector<Delivery>>(
      parts(string_view("XREADGROUP"), string_view("GROUP"), name_, consumer, string_view("COUNT"), count,
            string_view("STREAMS"), state.key, after),
      settings(Repeat::safe, options.deadline),
      [](const wire::Answer& answer) { return read_stream_reply("read_own", answer.view); });
}

Reply<IdleClaim> StreamGroup::claim_idle(string_view consumer, Milliseconds min_idle, string_view from,
                                         GroupReadOptions options) const {
  ECHOMQ_CHECK(check_read(consumer, options));
  ECHOMQ_CHECK(check_span("min_idle", min_idle));
  ECHOMQ_CHECK(check_entry("from", from));
  const Stream::State& state = stream_.internal();
  const Decimal idle(min_idle.count());
  const Decimal count(options.count);
  // Not sent again: what the first attempt took over is not idle any more, and would be missing in the answer.
  return state.core->command<IdleClaim>(
      parts(string_view("XAUTOCLAIM"), state.key, name_, consumer, idle, from, string_view("COUNT"), count),
      settings(Repeat::unsafe, options.deadline), [](const wire::Answer& answer) { return read_claim(answer.view); });
}

Reply<std::uint64_t> StreamGroup::acknowledge(std::span<const string_view> entries) const {
  ECHOMQ_CHECK(check_entries(entries));
  if (entries.empty())
    return Result<std::uint64_t>(0);
  const Stream::State& state = stream_.internal();
  std::vector<string_view> words = {"XACK", state.key, name_};
  words.insert(words.end(), entries.begin(), entries.end());
  return state.core->command<std::uint64_t>(words, settings(Repeat::safe), decode_count("acknowledge"));
}

Reply<std::vector<std::string>> StreamGroup::refresh(string_view consumer, std::span<const string_view> entries) const {
  ECHOMQ_CHECK(check_name("consumer", consumer));
  ECHOMQ_CHECK(check_entries(entries));
  if (entries.empty())
    return Result<std::vector<std::string>>(std::vector<std::string>());
  const Stream::State& state = stream_.internal();
  std::vector<string_view> words = {"XCLAIM", state.key, name_, consumer, "0"};
  words.insert(words.end(), entries.begin(), entries.end());
  words.push_back("JUSTID");
  return state.core->command<std::vector<std::string>>(
      words, settings(Repeat::safe), [](const wire::Answer& answer) { return read_entry_ids("refresh", answer.view); });
}

Reply<std::vector<PendingEntry>> StreamGroup::pending(PendingOptions options) const {
  ECHOMQ_CHECK(check_bound("from", options.from));
  ECHOMQ_CHECK(check_bound("to", options.to));
  ECHOMQ_CHECK(check_count("count", options.count));
  ECHOMQ_CHECK(check_span("min_idle", options.min_idle));
  if (!options.consumer.empty())
    ECHOMQ_CHECK(check_name("consumer", options.consumer));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const Stream::State& state = stream_.internal();
  const Decimal idle(options.min_idle.count());
  const Decimal count(options.count);
  std::vector<string_view> words = {"XPENDING", state.key, name_};
  if (options.min_idle.count() > 0) {
    words.push_back("IDLE");
    words.push_back(idle);
  }
  words.insert(words.end(), {options.from, options.to, count});
  if (!options.consumer.empty())
    words.push_back(options.consumer);
  return state.core->command<std::vector<PendingEntry>>(
      words, settings(Repeat::safe, options.deadline),
      [](const wire::Answer& answer) { return read_pending(answer.view); });
}

}  // namespace v1
}  // namespace echomq
