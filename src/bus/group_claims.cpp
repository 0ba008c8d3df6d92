// Claims, and waiting for new entries.
#include "bus/group_claims.hpp"

#include <algorithm>
#include <utility>

#include "bus/checks.hpp"
#include "bus/records.hpp"
#include "bus/state.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

using std::string_view;

/// How long the answer of a command that waits on the server may be late.
constexpr Milliseconds kGrace{5000};

}  // namespace

Reply<IdleEntries> claim_idle(const StreamGroup& group, string_view consumer, Milliseconds min_idle, string_view cursor,
                              std::uint32_t count) {
  const Stream::State& state = group.stream().internal();
  const Decimal idle(min_idle.count());
  const Decimal most(count);
  const auto decode = [](const wire::Answer& answer) -> Result<IdleEntries> {
    auto next = answer.view.at(0).copy_text();
    if (!next || !answer.view.at(1).is_aggregate())
      return unexpected_reply("claim_idle", answer.view);
    IdleEntries out{.next = *std::move(next), .entries = {}, .deleted = {}};
    for (const resp::View& entry : answer.view.at(1).elements()) {
      if (auto text = entry.copy_text())
        out.entries.push_back(*std::move(text));
    }
    // Servers before 7.0 do not tell what was removed.
    if (const resp::View deleted = answer.view.at(2); deleted.is_aggregate()) {
      for (const resp::View& entry : deleted.elements()) {
        if (auto text = entry.copy_text())
          out.deleted.push_back(*std::move(text));
      }
    }
    return out;
  };
  return state.core->command<IdleEntries>(parts(string_view("XAUTOCLAIM"), state.key, group.name(), consumer, idle,
                                                cursor, string_view("COUNT"), most, string_view("JUSTID")),
                                          settings(Repeat::safe), decode);
}

Reply<std::optional<Delivery>> hand_out(const StreamGroup& group, string_view consumer, string_view entry) {
  const Stream::State& state = group.stream().internal();
  const auto decode = [](const wire::Answer& answer) -> Result<std::optional<Delivery>> {
    if (!answer.view.is_aggregate())
      return unexpected_reply("hand_out", answer.view);
    const resp::View only = answer.view.at(0);
    if (answer.view.size() == 0 || only.is_null())
      return std::optional<Delivery>();
    ECHOMQ_TRY(Delivery delivery, read_delivery("hand_out", only));
    return std::optional<Delivery>(std::move(delivery));
  };
  return state.core->command<std::optional<Delivery>>(
      parts(string_view("XCLAIM"), state.key, group.name(), consumer, string_view("0"), entry),
      settings(Repeat::unsafe), decode);
}

Reply<void> refresh_within(const StreamGroup& group, string_view consumer, std::span<const string_view> entries,
                           Milliseconds within) {
  if (entries.empty())
    return Result<void>();
  const Stream::State& state = group.stream().internal();
  std::vector<string_view> words = {"XCLAIM", state.key, group.name(), consumer, "0"};
  words.insert(words.end(), entries.begin(), entries.end());
  words.push_back("JUSTID");
  return state.core->command<void>(words, settings(Repeat::safe, std::max(within, Milliseconds(1))),
                                   [](const wire::Answer&) -> Result<void> { return {}; });
}

Reply<void> make_idle(const StreamGroup& group, string_view consumer, std::span<const string_view> entries,
                      Milliseconds min_idle) {
  const Stream::State& state = group.stream().internal();
  const Decimal idle(min_idle.count());
  std::vector<string_view> words = {"XCLAIM", state.key, group.name(), consumer, "0"};
  words.insert(words.end(), entries.begin(), entries.end());
  words.insert(words.end(), {"IDLE", idle, "JUSTID"});
  return state.core->command<void>(words, settings(Repeat::safe),
                                   [](const wire::Answer&) -> Result<void> { return {}; });
}

Reply<std::vector<Delivery>> wait_new(client::Line& line, const StreamGroup& group, string_view consumer,
                                      Milliseconds block, std::uint32_t count) {
  const Stream::State& state = group.stream().internal();
  auto decode = [](const wire::Answer& answer) { return read_stream_reply("read_new", answer.view); };
  auto* call = wire::BoundCall<std::vector<Delivery>, decltype(decode)>::make(
      parts(string_view("XREADGROUP"), string_view("GROUP"), group.name(), consumer, string_view("BLOCK"),
            Decimal(block.count()), string_view("COUNT"), Decimal(count), string_view("STREAMS"), state.key,
            string_view(">")),
      decode);
  call->slot = state.slot;
  call->retain();
  detail::CallPointer<detail::CallOf<std::vector<Delivery>>> mine(call);
  line.submit(call, settings(Repeat::unsafe, block + kGrace));
  return Reply<std::vector<Delivery>>(std::move(mine));
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
