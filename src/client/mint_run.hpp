// Ids in stretches, for whoever appends many records.
#pragma once

#include <cstdint>

#include "client/core.hpp"
#include "identity/minter.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// Up to `most` values of `EVT` ids that follow one another, at least one; from a core that is not a client's own, one. Errors as
/// `Core::mint`.
[[nodiscard]] Result<identity::Minter::Run> mint_run(Core& core, std::uint32_t most);

}  // namespace client
}  // namespace v1
}  // namespace echomq
