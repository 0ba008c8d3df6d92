// How a run ended, from whatever its handler did.
#pragma once

#include <cstddef>
#include <string>

#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// Runs the handler. An exception becomes a `Retry` with its message.
[[nodiscard]] Outcome run_handler(const Handler& handler, Job& job) noexcept;

/// The last `limit` bytes, or a few less: a UTF-8 sequence is not cut in two.
[[nodiscard]] std::string last_bytes(std::string text, std::size_t limit);

}  // namespace worker
}  // namespace v1
}  // namespace echomq
