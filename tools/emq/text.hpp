// Bytes of others made fit to print: on a terminal, and inside JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace emq {

/// The bytes as printable text: valid UTF-8 stays, everything that could move a terminal (control bytes, invalid
/// bytes, direction overrides) becomes a backslash escape, a backslash is doubled. Cut after `limit` bytes of input
/// with an ellipsis.
[[nodiscard]] std::string printable(std::string_view bytes, std::size_t limit = std::string_view::npos);

[[nodiscard]] bool is_utf8(std::string_view bytes) noexcept;
[[nodiscard]] std::string base64(std::string_view bytes);

/// The text with the credentials of every URL in it replaced by dots.
[[nodiscard]] std::string without_credentials(std::string_view text);

/// The last `limit` bytes, trailing line ends removed.
[[nodiscard]] std::string_view tail(std::string_view bytes, std::size_t limit) noexcept;

}  // namespace emq
