// A record as a line of JSON, and back.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

/// An entry as it stands on the stream, every field.
struct Entry {
  bus::EntryNumber number;
  std::string id;
  std::vector<std::pair<std::string, std::string>> fields;
};

[[nodiscard]] bool is_utf8(std::string_view bytes) noexcept;
[[nodiscard]] std::string base64(std::string_view bytes);
/// False for what is no base64 with padding.
[[nodiscard]] bool base64_decode(std::string_view text, std::string& bytes);

/// Appends a JSON string, or `{"base64":"..."}` for bytes that are no UTF-8.
void append_text(std::string& out, std::string_view text);
/// Appends the line, with its end.
void append_line(std::string& out, const Entry& entry);
/// The record of a line without its end; what it hides is left out, as on reading the stream. Errors: broken.
[[nodiscard]] Result<std::pair<bus::EntryNumber, Record>> read_line(std::string_view line);

}  // namespace archive
}  // namespace v1
}  // namespace echomq
