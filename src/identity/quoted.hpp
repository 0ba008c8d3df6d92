// A refused value as it may stand in an error text: quoted, escaped, and cut.
#pragma once

#include <string>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace identity {

/// `"text"` with `"`, `\` and everything outside printable ASCII escaped; of more than 64 bytes only the first 64,
/// followed by `...` and the full size.
[[nodiscard]] std::string quoted(std::string_view value);

}  // namespace identity
}  // namespace v1
}  // namespace echomq
