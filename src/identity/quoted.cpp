// A refused value as it may stand in an error text.
#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {
namespace identity {

std::string quoted(std::string_view value) {
  constexpr std::size_t kShown = 64;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char byte : value.substr(0, kShown)) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x20 || code > 0x7E) {
      out += "\\x";
      out += kHex[code >> 4];
      out += kHex[code & 15U];
      continue;
    }
    if (byte == '"' || byte == '\\')
      out += '\\';
    out += byte;
  }
  out += '"';
  if (value.size() > kShown) {
    out += "... (";
    out += std::to_string(value.size());
    out += " bytes)";
  }
  return out;
}

}  // namespace identity
}  // namespace v1
}  // namespace echomq
