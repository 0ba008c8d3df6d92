// How a run ended, from whatever its handler did.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <variant>

#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

using AnyHandler = std::variant<Handler, AsyncHandler>;

/// What an exception that leaves a handler comes to: `Dead` for an `Unrecoverable`, else a `Retry`, with its message.
[[nodiscard]] Outcome outcome_of(const std::exception_ptr& exception) noexcept;

/// Runs the handler. An exception that leaves it becomes its outcome.
[[nodiscard]] Outcome run_handler(const Handler& handler, Job& job) noexcept;

/// The last `limit` bytes, or a few less: a UTF-8 sequence is not cut in two.
[[nodiscard]] std::string last_bytes(std::string text, std::size_t limit);

}  // namespace worker
}  // namespace v1
}  // namespace echomq
