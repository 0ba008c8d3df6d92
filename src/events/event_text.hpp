// One event as it is published: a JSON object of texts, `event` and `job` always among them (protocol document 2, section 15).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/id.hpp"

namespace echomq {
inline namespace v1 {
namespace events {

/// A field beside `event` and `job`.
using Extra = std::pair<std::string_view, std::string_view>;

/// Texts of events beyond so many bytes are cut.
inline constexpr std::size_t kMostText = 1024;
/// At most `kMostText` bytes, no UTF-8 sequence cut in two.
[[nodiscard]] std::string_view cut_text(std::string_view text) noexcept;

/// Appends `{"event":"<name>","job":"<id>","<name>":"<value>",...}`, without blanks, the extras in their order. Any bytes
/// make valid JSON.
void append_event(std::string& out, std::string_view name, const JobId& job, std::span<const Extra> extra);

/// What a payload says.
struct EventText {
  std::string name;
  JobId job;
  /// The other fields in their order: texts as they are, anything else as its JSON text.
  std::vector<std::pair<std::string, std::string>> extra;
};

/// False for what is no event: not one JSON object, no text `event` of at least one byte, no text `job` that is an id.
/// Bytes of a text that are no UTF-8 are taken as they come, for the server's own writer lets them pass. Of a field given twice the
/// last counts.
[[nodiscard]] bool read_event(std::string_view payload, EventText& into);

}  // namespace events
}  // namespace v1
}  // namespace echomq
