// Progress of a running job: stored, and announced or not.
#pragma once

#include <cstdint>
#include <string_view>

#include "echomq/id.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

enum class Announced : std::uint8_t { no, yes };

/// `Queue::update_progress`, which always announces it.
[[nodiscard]] Reply<void> update_progress(const Queue& queue, JobId id, std::string_view progress, Announced announced);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
