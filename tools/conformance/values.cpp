#include "conformance/values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "echomq/id.hpp"

namespace echomq::conformance {
namespace {

[[nodiscard]] bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return byte >= 0x20 && byte < 0x7F; });
}

/// The list of a matcher `{"<name>": ...}`, null when the value is something else.
[[nodiscard]] const json::value* matcher(const json::value& value, std::string_view name) {
  const json::object* object = value.if_object();
  if (object == nullptr || object->size() != 1 || object->begin()->key() != name)
    return nullptr;
  return &object->begin()->value();
}

/// Fields and values of an object or of a flat list.
[[nodiscard]] std::optional<std::vector<std::pair<std::string, json::value>>> fields_of(const json::value& value) {
  std::vector<std::pair<std::string, json::value>> fields;
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, field] : *object)
      fields.emplace_back(key, field);
    return fields;
  }
  const json::array* list = value.if_array();
  if (list == nullptr || list->size() % 2 != 0)
    return std::nullopt;
  for (std::size_t i = 0; i < list->size(); i += 2)
    fields.emplace_back(text_of((*list)[i]), (*list)[i + 1]);
  return fields;
}

using Equal = bool (*)(const json::value&, const json::value&);

/// Every element of `expected` has one of its own in `actual`.
[[nodiscard]] bool has_all(const json::array& expected, const json::array& actual, Equal equal) {
  std::vector<bool> taken(actual.size());
  for (const json::value& wanted : expected) {
    std::size_t i = 0;
    while (i < actual.size() && (taken[i] || !equal(wanted, actual[i])))
      ++i;
    if (i == actual.size())
      return false;
    taken[i] = true;
  }
  return true;
}

[[nodiscard]] bool has_fields(const json::object& expected, const json::value& actual, Equal equal, bool exactly) {
  const auto fields = fields_of(actual);
  if (!fields || (exactly && fields->size() != expected.size()))
    return false;
  for (const auto& [key, wanted] : expected) {
    const std::string_view name = key;
    const json::value& value = wanted;
    const auto found = std::find_if(fields->begin(), fields->end(), [&](const auto& field) {
      return std::string_view(field.first) == name && equal(value, field.second);
    });
    if (found == fields->end())
      return false;
  }
  return true;
}

[[nodiscard]] bool equal_by(const json::value& expected, const json::value& actual, Equal equal) {
  if (expected.is_null() || actual.is_null())
    return expected.is_null() && actual.is_null();
  if (expected.is_bool() || actual.is_bool())
    return expected == actual;
  if (const json::array* list = expected.if_array()) {
    const json::array* other = actual.if_array();
    return other != nullptr && std::equal(list->begin(), list->end(), other->begin(), other->end(), equal);
  }
  if (const json::object* object = expected.if_object(); object != nullptr && matcher(expected, "hex") == nullptr) {
    return actual.is_object() && has_fields(*object, actual, equal, true);
  }
  if (actual.is_array())
    return false;
  if (expected.is_number() || actual.is_number()) {
    const auto a = number_of(expected);
    const auto b = number_of(actual);
    return a && b && *a == *b;
  }
  if (actual.is_object() && matcher(actual, "hex") == nullptr)
    return false;
  return text_of(expected) == text_of(actual);
}

}  // namespace

json::value text_to_json(std::string_view text) {
  if (is_printable(text))
    return json::string(text);
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char byte : text) {
    hex += kDigits[static_cast<unsigned char>(byte) >> 4U];
    hex += kDigits[static_cast<unsigned char>(byte) & 0xFU];
  }
  return json::object{{"hex", hex}};
}

std::string text_of(const json::value& value) {
  if (const json::value* repeat = matcher(value, "repeat")) {
    const std::string_view unit = repeat->at(0).as_string();
    std::string bytes;
    for (auto left = repeat->at(1).to_number<std::size_t>(); left > 0; --left)
      bytes += unit;
    return bytes;
  }
  if (const json::value* hex = matcher(value, "hex")) {
    const std::string_view digits = hex->as_string();
    std::string bytes;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
      unsigned byte = 0;
      std::from_chars(digits.data() + i, digits.data() + i + 2, byte, 16);
      bytes += static_cast<char>(byte);
    }
    return bytes;
  }
  if (const json::string* text = value.if_string())
    return std::string(*text);
  return json::serialize(value);
}

std::optional<double> number_of(const json::value& value) {
  if (value.is_number())
    return value.to_number<double>();
  const json::string* text = value.if_string();
  if (text == nullptr)
    return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc{} || end != text->data() + text->size())
    return std::nullopt;
  return number;
}

std::int64_t integer_of(const json::value& value) {
  if (value.is_number())
    return value.to_number<std::int64_t>();
  return std::stoll(text_of(value));
}

json::value to_json(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null: return nullptr;
    case Value::Kind::boolean: return *value.as_bool();
    case Value::Kind::integer: return *value.as_integer();
    case Value::Kind::real: return *value.as_double();
    case Value::Kind::big_number:
    case Value::Kind::text: return text_to_json(*value.as_text());
    case Value::Kind::error: return json::object{{"error", value.error_text()}};
    default: break;
  }
  json::array list;
  for (const Value& item : value.items())
    list.push_back(to_json(item));
  return list;
}

bool same(const json::value& expected, const json::value& actual) { return equal_by(expected, actual, &same); }

bool matches(const json::value& expected, const json::value& actual) {
  if (matcher(expected, "any") != nullptr)
    return true;
  if (matcher(expected, "repeat") != nullptr)
    return actual.is_string() && text_of(expected) == actual.as_string();
  if (const json::value* other = matcher(expected, "not"))
    return !matches(*other, actual);
  if (const json::value* bound = matcher(expected, "gt")) {
    const auto number = number_of(actual);
    return number && *number > *number_of(*bound);
  }
  if (const json::value* brand = matcher(expected, "id_of")) {
    const auto id = BrandedId::parse(text_of(actual));
    return id && id->brand() == text_of(*brand);
  }
  if (matcher(expected, "entry_id") != nullptr) {
    const std::string text = text_of(actual);
    const std::size_t dash = text.find('-');
    const auto is_number = [](std::string_view part) {
      return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    };
    return dash != std::string::npos && is_number(std::string_view(text).substr(0, dash)) &&
           is_number(std::string_view(text).substr(dash + 1));
  }
  if (const json::value* set = matcher(expected, "set")) {
    const json::array* list = actual.if_array();
    return list != nullptr && list->size() == set->as_array().size() && has_all(set->as_array(), *list, &matches);
  }
  if (const json::value* map = matcher(expected, "map")) {
    return has_fields(map->as_object(), actual, &matches, true);
  }
  if (const json::value* part = matcher(expected, "contains")) {
    if (part->is_object())
      return has_fields(part->as_object(), actual, &matches, false);
    return actual.is_array() && has_all(part->as_array(), actual.as_array(), &matches);
  }
  return equal_by(expected, actual, &matches);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

json::value read_json(const std::string& path) { return json::parse(read_file(path)); }

}  // namespace echomq::conformance
