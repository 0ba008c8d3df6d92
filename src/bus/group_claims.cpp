// Claims, and waiting for new entries.
#include "bus/group_claims.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "bus/checks.hpp"
#include "bus/records.hpp"
#include "bus/state.hpp"
#include "result/try.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

using std::string_view;

/// How long the answer of a command that waits on the server may be late.
constexpr Milliseconds kGrace{5000};

[[nodiscard]] Result<KeptEntries> read_kept(const wire::Answer& answer) {
  KeptEntries out;
  const resp::View lists[] = {answer.view.at(0), answer.view.at(1)};
  std::vector<std::string>* const into[] = {&out.lost, &out.gone};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!lists[i].is_aggregate())
      return unexpected_reply("keep_entries", answer.view);
    for (const resp::View& entry : lists[i].elements()) {
      auto text = entry.copy_text();
      if (!text)
        return unexpected_reply("keep_entries", answer.view);
      into[i]->push_back(*std::move(text));
    }
  }
  return out;
}

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

Reply<HandedOut> hand_out(const StreamGroup& group, string_view consumer, string_view entry) {
  const Stream::State& state = group.stream().internal();
  const auto decode = [](const wire::Answer& answer) -> Result<HandedOut> {
    if (const auto why_not = answer.view.as_integer())
      return HandedOut{.delivery = std::nullopt, .lost = *why_not == 0};
    ECHOMQ_TRY(Delivery delivery, read_delivery("hand_out", answer.view));
    return HandedOut{.delivery = std::move(delivery), .lost = false};
  };
  const string_view keys[] = {state.key};
  const string_view arguments[] = {group.name(), consumer, entry};
  return state.core->eval<HandedOut>(*script::find_script("stream_group_hand_out"), keys, arguments,
                                     settings(Repeat::unsafe), decode);
}

Result<KeptEntries> keep_entries(const StreamGroup& group, string_view consumer, std::span<const string_view> entries,
                                 Milliseconds idle) {
  const Stream::State& state = group.stream().internal();
  const script::ScriptSource* const script = script::find_script("stream_group_keep");
  const string_view keys[] = {state.key};
  const Decimal wanted(idle.count());
  std::vector<Reply<KeptEntries>> asked;
  for (std::size_t at = 0; at < entries.size(); at += kKept) {
    const auto some = entries.subspan(at, std::min(kKept, entries.size() - at));
    std::vector<string_view> arguments = {group.name(), consumer, wanted};
    arguments.insert(arguments.end(), some.begin(), some.end());
    asked.push_back(state.core->eval<KeptEntries>(*script, keys, arguments, settings(Repeat::safe), read_kept));
  }
  KeptEntries all;
  for (Reply<KeptEntries>& one : asked) {
    ECHOMQ_TRY(KeptEntries kept, one.get());
    std::ranges::move(kept.lost, std::back_inserter(all.lost));
    std::ranges::move(kept.gone, std::back_inserter(all.gone));
  }
  return all;
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
