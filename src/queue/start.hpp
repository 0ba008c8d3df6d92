// How a verb of this room becomes a call: keys and arguments in arrays on the stack, the answer by a decoder.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "client/core.hpp"
#include "queue/arguments.hpp"
#include "queue/checks.hpp"
#include "queue/state.hpp"
#include "result/try.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Up to a few keys or arguments, all of them views.
template <std::size_t N>
using Views = std::array<std::string_view, N>;
template <typename... Parts>
[[nodiscard]] Views<sizeof...(Parts)> views(const Parts&... parts) {
  return {std::string_view(parts)...};
}

/// Hands a call to the core: one reference stays with the reply, the other goes to the wire.
template <typename T, typename C>
[[nodiscard]] Reply<T> start(client::Core& core, C* call, wire::CallSettings settings,
                             const script::ScriptSource* script) {
  call->script = script;
  call->retain();
  detail::CallPointer<detail::CallOf<T>> mine(call);
  core.submit(call, settings);
  return Reply<T>(std::move(mine));
}

/// As `Core::eval`, but the decoder gets error replies too.
template <typename T, typename Decode>
[[nodiscard]] Reply<T> eval_with_errors(client::Core& core, const script::ScriptSource& script,
                                        std::span<const std::string_view> keys,
                                        std::span<const std::string_view> arguments, wire::CallSettings settings,
                                        Decode decode) {
  const ScriptParts parts(script, keys, arguments);
  return start<T>(core, wire::BoundCall<T, Decode, true>::make(parts.parts(), std::move(decode)), settings, &script);
}

/// A reply that no case of the protocol fits.
[[nodiscard]] inline std::unexpected<Error> unexpected_reply(std::string_view verb, const resp::View& reply) {
  return fail(Errc::protocol_error, fmt::format("{}: unexpected reply {}", verb, resp::to_value(reply).to_string()));
}

/// The error of a row that does not exist.
[[nodiscard]] inline std::unexpected<Error> job_gone(std::string_view verb) {
  return fail(Errc::job_gone, fmt::format("{}: there is no such job (any more)", verb));
}

// Decoders for the common shapes. `verb` has static storage.

/// An integer.
[[nodiscard]] inline auto decode_integer(std::string_view verb) {
  return [verb](const wire::Answer& answer) -> Result<std::int64_t> {
    if (const auto number = answer.view.as_integer())
      return *number;
    return unexpected_reply(verb, answer.view);
  };
}

/// 1 is done; 0 and -1 are a row that is gone, which after a lost answer means done when `kGoneIsDone`.
enum class Gone : std::uint8_t { refused, done_when_resent };
[[nodiscard]] inline auto decode_done(std::string_view verb, Gone gone) {
  return [verb, gone](const wire::Answer& answer) -> Result<void> {
    const auto number = answer.view.as_integer();
    if (!number)
      return unexpected_reply(verb, answer.view);
    if (*number == 1)
      return {};
    if (*number != 0 && *number != -1)
      return unexpected_reply(verb, answer.view);
    if (answer.resent && gone == Gone::done_when_resent)
      return {};
    return job_gone(verb);
  };
}

/// A list of job ids.
[[nodiscard]] inline Result<std::vector<JobId>> read_ids(std::string_view verb, const resp::View& list) {
  if (!list.is_aggregate())
    return unexpected_reply(verb, list);
  std::vector<JobId> ids;
  ids.reserve(list.size());
  for (const resp::View& item : list.elements()) {
    const auto text = item.as_text();
    if (!text)
      return unexpected_reply(verb, item);
    auto id = JobId::parse(*text);
    if (!id)
      return fail(Errc::protocol_error, fmt::format("{}: {}", verb, id.error().text));
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
