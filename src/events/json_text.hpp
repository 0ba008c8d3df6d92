// Strings as JSON writes them.
#pragma once

#include <string>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace events {

/// Appends `"<text>"`: quotes, backslashes and control bytes escaped, UTF-8 as it is, and a replacement character
/// (`\ufffd`) for every byte that is no UTF-8, so that any bytes at all make valid JSON.
void append_json_string(std::string& out, std::string_view text);

}  // namespace events
}  // namespace v1
}  // namespace echomq
