// Notices that this process is a forked child, in which the client's threads do not exist.
#pragma once

#include <cstdint>

namespace echomq {
inline namespace v1 {
namespace client {

/// Rises with every fork, in the child. Cheap to read.
[[nodiscard]] std::uint32_t fork_generation() noexcept;

}  // namespace client
}  // namespace v1
}  // namespace echomq
