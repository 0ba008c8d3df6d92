// A record as a line of JSON, and back.
#include "archive/line.hpp"
#include "archive/errors.hpp"

#include <array>
#include <boost/json.hpp>
#include <cstdint>

#include "events/json_text.hpp"
#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {
namespace {

namespace json = boost::json;
using std::string_view;

constexpr string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

[[nodiscard]] bool read_text(const json::value& value, std::string& text) {
  if (value.is_string()) {
    text = value.get_string();
    return true;
  }
  const json::object* const object = value.if_object();
  const json::value* const encoded = object != nullptr && object->size() == 1 ? object->if_contains("base64") : nullptr;
  return encoded != nullptr && encoded->is_string() && base64_decode(encoded->get_string(), text);
}

[[nodiscard]] std::unexpected<Error> no_record(string_view line) {
  return archive::failed(ArchiveErrc::broken, "no record of an archive: " + identity::quoted(line.substr(0, 100)));
}

}  // namespace

bool is_utf8(string_view bytes) noexcept {
  const auto tail = [&](std::size_t at) {
    return at < bytes.size() && (static_cast<unsigned char>(bytes[at]) & 0xC0U) == 0x80U;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[at]);
    const auto second = at + 1 < bytes.size() ? static_cast<unsigned char>(bytes[at + 1]) : 0U;
    if (first < 0x80) {
      at += 1;
    } else if (first >= 0xC2 && first <= 0xDF && tail(at + 1)) {
      at += 2;
    } else if (first >= 0xE0 && first <= 0xEF && tail(at + 1) && tail(at + 2) && (first != 0xE0 || second >= 0xA0) &&
               (first != 0xED || second < 0xA0)) {
      at += 3;
    } else if (first >= 0xF0 && first <= 0xF4 && tail(at + 1) && tail(at + 2) && tail(at + 3) &&
               (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90)) {
      at += 4;
    } else {
      return false;
    }
  }
  return true;
}

std::string base64(string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t left = bytes.size() - at;
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i)
      three = three << 8U | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i)
      out += i <= left ? kDigits[three >> (18 - 6 * i) & 0x3FU] : '=';
  }
  return out;
}

bool base64_decode(string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 != 0)
    return false;
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t three = 0;
    std::size_t digits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = kDigits.find(text[at + i]);
      if (digit != string_view::npos && digits == i) {
        three |= static_cast<std::uint32_t>(digit) << (18 - 6 * i);
        ++digits;
      } else if (text[at + i] != '=' || at + 4 != text.size() || i < 2) {
        return false;
      }
    }
    for (std::size_t i = 0; i + 1 < digits; ++i)
      bytes += static_cast<char>(three >> (16 - 8 * i) & 0xFFU);
  }
  return true;
}

void append_text(std::string& out, string_view text) {
  if (is_utf8(text)) {
    events::append_json_string(out, text);
    return;
  }
  out += R"({"base64":")";
  out += base64(text);
  out += "\"}";
}

void append_line(std::string& out, const Entry& entry) {
  // The receipt is the first field named `id` that is an EVT id.
  std::size_t receipt = entry.fields.size();
  for (std::size_t i = 0; i < entry.fields.size() && receipt == entry.fields.size(); ++i) {
    if (entry.fields[i].first == "id" && EventId::parse(entry.fields[i].second))
      receipt = i;
  }
  out += R"({"id":)";
  if (receipt == entry.fields.size()) {
    out += "null";
  } else {
    events::append_json_string(out, entry.fields[receipt].second);
  }
  out += R"(,"entry":)";
  events::append_json_string(out, entry.id);
  out += R"(,"ms":)";
  out += std::to_string(entry.number.milliseconds);
  out += R"(,"fields":[)";
  bool first = true;
  for (std::size_t i = 0; i < entry.fields.size(); ++i) {
    if (i == receipt)
      continue;
    out += first ? "[" : ",[";
    first = false;
    append_text(out, entry.fields[i].first);
    out += ',';
    append_text(out, entry.fields[i].second);
    out += ']';
  }
  out += "]}\n";
}

Result<std::pair<bus::EntryNumber, Record>> read_line(string_view line) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  if (error || !value.is_object())
    return no_record(line);
  const json::object& object = value.get_object();
  const json::value* const id = object.if_contains("id");
  const json::value* const entry = object.if_contains("entry");
  const json::value* const fields = object.if_contains("fields");
  if (id == nullptr || entry == nullptr || !entry->is_string() || fields == nullptr || !fields->is_array())
    return no_record(line);
  Record record;
  record.entry = entry->get_string();
  const auto number = bus::parse_entry(record.entry);
  if (!number)
    return no_record(line);
  if (!id->is_null()) {
    const auto receipt = id->is_string() ? EventId::parse(id->get_string()) : Result<EventId>(no_record(line));
    if (!receipt)
      return no_record(line);
    record.id = *receipt;
  }
  for (const json::value& field : fields->get_array()) {
    const json::array* const pair = field.if_array();
    std::pair<std::string, std::string> texts;
    if (pair == nullptr || pair->size() != 2 || !read_text((*pair)[0], texts.first) ||
        !read_text((*pair)[1], texts.second)) {
      return no_record(line);
    }
    if (record.id && texts.first == "id")
      continue;
    record.fields.push_back(std::move(texts));
  }
  return std::pair{*number, std::move(record)};
}

}  // namespace archive
}  // namespace v1
}  // namespace echomq
