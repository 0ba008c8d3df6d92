// Which cluster slot a request belongs to, read from its encoded bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "echomq/detail/call.hpp"
#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// The slot of all keys of a request of one or several commands; `Call::kAnySlot` when it has none.
///
/// A command that no table names is taken to have one key, its first argument, as most have.
/// Errors: cross_slot, naming two keys that no node serves together.
[[nodiscard]] Result<std::uint32_t> slot_of_request(std::string_view request);

/// How many commands, so replies, a request has.
[[nodiscard]] std::uint32_t commands_of_request(std::string_view request) noexcept;

/// What of a request stands behind its first `commands`.
[[nodiscard]] std::string_view request_behind(std::string_view request, std::uint32_t commands) noexcept;

/// Whether it is a MULTI ... EXEC.
[[nodiscard]] bool is_transaction(std::string_view request) noexcept;

}  // namespace wire
}  // namespace v1
}  // namespace echomq
