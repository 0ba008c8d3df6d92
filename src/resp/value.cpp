// `Value`: the owning tree of a reply.
#include "echomq/value.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "resp/number.hpp"

namespace echomq {
inline namespace v1 {
namespace {

void write_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += byte;
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (code < 0x20 || code > 0x7E) {
      out += "\\x";
      out += kHex[code >> 4];
      out += kHex[code & 15U];
    } else {
      out += byte;
    }
  }
  out += '"';
}

template <typename Number>
void write_number(std::string& out, Number number) {
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

/// Everything but items.
void write_scalar(std::string& out, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::boolean: out += value.as_bool() == true ? "true" : "false"; break;
    case Value::Kind::integer: write_number(out, value.as_integer().value_or(0)); break;
    case Value::Kind::real: write_number(out, value.as_double().value_or(0)); break;
    case Value::Kind::big_number: out += value.as_text().value_or(""); break;
    case Value::Kind::text: write_quoted(out, value.as_text().value_or("")); break;
    case Value::Kind::error:
      out += "error ";
      write_quoted(out, value.error_text());
      break;
    default: out += "null"; break;
  }
}

}  // namespace

std::string_view Value::error_text() const noexcept {
  const auto* bytes = std::get_if<std::string>(&data_);
  return kind_ == Kind::error && bytes != nullptr ? std::string_view(*bytes) : std::string_view();
}

std::optional<bool> Value::as_bool() const noexcept {
  if (const auto* flag = std::get_if<bool>(&data_))
    return *flag;
  const auto* number = std::get_if<std::int64_t>(&data_);
  if (number == nullptr || *number < 0 || *number > 1)
    return std::nullopt;
  return *number == 1;
}

std::optional<std::int64_t> Value::as_integer() const noexcept {
  if (const auto* number = std::get_if<std::int64_t>(&data_))
    return *number;
  const auto text = as_text();
  return text ? resp::parse_integer(*text) : std::nullopt;
}

std::optional<double> Value::as_double() const noexcept {
  if (const auto* number = std::get_if<double>(&data_))
    return *number;
  if (const auto* number = std::get_if<std::int64_t>(&data_))
    return static_cast<double>(*number);
  const auto text = as_text();
  return text ? resp::parse_double(*text) : std::nullopt;
}

std::optional<std::string_view> Value::as_text() const noexcept {
  const auto* bytes = std::get_if<std::string>(&data_);
  if (bytes == nullptr || kind_ == Kind::error)
    return std::nullopt;
  return std::string_view(*bytes);
}

std::span<const Value> Value::items() const noexcept {
  const auto* items = std::get_if<Items>(&data_);
  return items != nullptr ? std::span<const Value>(*items) : std::span<const Value>();
}

const Value* Value::find(std::string_view key) const noexcept {
  const auto all = items();
  if (kind_ != Kind::map && kind_ != Kind::array)
    return nullptr;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    if (all[i].as_text() == key)
      return &all[i + 1];
  }
  return nullptr;
}

Value::Items Value::take_items() noexcept {
  Items taken;
  if (auto* items = std::get_if<Items>(&data_)) {
    taken.swap(*items);
    *this = Value();
  }
  return taken;
}

std::string Value::take_text() noexcept {
  std::string taken;
  if (auto* bytes = std::get_if<std::string>(&data_)) {
    taken.swap(*bytes);
    *this = Value();
  }
  return taken;
}

void Value::release() noexcept {
  Items& items = std::get<Items>(data_);
  const auto nested = [](const Value& item) { return std::holds_alternative<Items>(item.data_); };
  if (std::ranges::none_of(items, nested))
    return;
  // Lifts grandchildren up before their parents go, so that no destructor below finds anything nested.
  while (!items.empty()) {
    Value last = std::move(items.back());
    items.pop_back();
    auto* below = std::get_if<Items>(&last.data_);
    if (below == nullptr)
      continue;
    if (items.empty()) {
      items.swap(*below);
      continue;
    }
    for (Value& item : *below) {
      if (nested(item))
        items.push_back(std::move(item));
    }
    below->clear();
  }
}

bool Value::equal(const Value& a, const Value& b) noexcept {
  if (a.kind_ != b.kind_)
    return false;
  if (a.kind_ == Kind::real) {
    const double x = std::get<double>(a.data_);
    const double y = std::get<double>(b.data_);
    return x == y || (std::isnan(x) && std::isnan(y));
  }
  return a.data_ == b.data_;
}

std::string Value::to_string() const {
  std::string out;
  if (!is_aggregate()) {
    write_scalar(out, *this);
    return out;
  }
  const bool braces = kind_ == Kind::map;
  out += kind_ == Kind::set ? "set [" : kind_ == Kind::push ? "push [" : braces ? "{" : "[";
  const auto all = items();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0)
      out += braces && i % 2 == 1 ? ": " : ", ";
    out += all[i].to_string();
  }
  out += braces ? '}' : ']';
  return out;
}

}  // namespace v1
}  // namespace echomq
