// The zero-copy reader.
#include "resp/view.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "resp/number.hpp"

namespace echomq {
inline namespace v1 {
namespace resp {
namespace {

// Everything here trusts the scanner for the meaning of the bytes, and `limit` for memory: bytes that no scanner has
// let through give wrong values, never a read outside the frame.

/// The number behind a lead byte.
struct ViewHeader {
  std::uint64_t number = 0;
  const char* end = nullptr;  // behind the line
  bool minus = false;
  bool streamed = false;
};

[[nodiscard]] ViewHeader read_header(const char* at, const char* limit) noexcept {
  ViewHeader header;
  ++at;
  if (at < limit && (*at == '-' || *at == '+' || *at == '?')) {
    header.minus = *at == '-';
    header.streamed = *at == '?';
    ++at;
  }
  while (at < limit && is_digit(*at))
    header.number = header.number * 10 + static_cast<std::uint64_t>(*at++ - '0');
  header.end = limit - at < 2 ? limit : at + 2;
  return header;
}

/// The CR that ends the line.
[[nodiscard]] const char* line_end(const char* at, const char* limit) noexcept {
  const void* const found = std::memchr(at, '\r', static_cast<std::size_t>(limit - at));
  return found == nullptr ? limit : static_cast<const char*>(found);
}
[[nodiscard]] const char* advance(const char* at, std::uint64_t bytes, const char* limit) noexcept {
  return static_cast<std::uint64_t>(limit - at) < bytes ? limit : at + bytes;
}

/// Behind the value at `at`, its attributes included.
[[nodiscard]] const char* skip(const char* at, const char* limit) noexcept {
  // What is to come, of all aggregates that are open; and how many of those were open around each streamed one.
  std::uint64_t left = 1;
  std::uint64_t outer[64];
  std::size_t streams = 0;
  constexpr std::uint64_t kUntilEnd = std::numeric_limits<std::uint64_t>::max() / 2;
  while (left > 0 && at < limit) {
    const char lead = *at;
    switch (lead) {
      case '$':
      case '!':
      case '=':
      case ';': {
        const ViewHeader header = read_header(at, limit);
        at = header.end;
        if (header.streamed || (lead == ';' && header.number > 0)) {
          // The chunks stand for the value, which ends with the chunk of size 0.
          if (lead == ';')
            at = advance(at, header.number + 2, limit);
          break;
        }
        if (lead != ';' && !header.minus)
          at = advance(at, header.number + 2, limit);
        --left;
        break;
      }
      case '*':
      case '~':
      case '>':
      case '%':
      case '|': {
        const ViewHeader header = read_header(at, limit);
        at = header.end;
        if (header.streamed) {
          if (streams == std::size(outer))
            return limit;
          outer[streams++] = left - 1;
          left = kUntilEnd;
          break;
        }
        if (lead != '|')
          --left;
        if (!header.minus)
          left += (lead == '%' || lead == '|') ? header.number * 2 : header.number;
        break;
      }
      case '.':
        at = advance(at, 3, limit);
        if (streams == 0)
          return limit;
        left = outer[--streams];
        break;
      default:
        at = advance(line_end(at, limit), 2, limit);
        --left;
        break;
    }
  }
  return at;
}

}  // namespace

View::View(const char* data, std::size_t size) noexcept : limit_(data + size) {
  const char* at = data;
  while (at < limit_ && *at == '|') {
    const ViewHeader header = read_header(at, limit_);
    at = header.end;
    for (std::uint64_t left = header.number * 2; left > 0 && at < limit_; --left)
      at = skip(at, limit_);
  }
  if (at >= limit_) {
    after_ = limit_;
    return;
  }
  const char lead = *at;
  switch (lead) {
    case ':': {
      const ViewHeader header = read_header(at, limit_);
      kind_ = Kind::integer;
      number_ = header.minus ? 0 - header.number : header.number;
      after_ = header.end;
      return;
    }
    case '$':
    case '!':
    case '=': {
      const ViewHeader header = read_header(at, limit_);
      body_ = after_ = header.end;
      if (header.minus)
        return;  // null
      kind_ = lead == '!' ? Kind::error : Kind::text;
      if (header.streamed) {
        streamed_ = true;
        after_ = nullptr;
        return;
      }
      number_ = std::min<std::uint64_t>(header.number, static_cast<std::uint64_t>(limit_ - body_));
      after_ = advance(body_, number_ + 2, limit_);
      if (lead == '=' && number_ >= 4 && body_[3] == ':') {
        body_ += 4;
        number_ -= 4;
      }
      return;
    }
    case '*':
    case '~':
    case '>':
    case '%': {
      const ViewHeader header = read_header(at, limit_);
      body_ = header.end;
      if (header.minus) {
        after_ = header.end;  // null
        return;
      }
      kind_ = lead == '*' ? Kind::array : lead == '~' ? Kind::set : lead == '>' ? Kind::push : Kind::map;
      streamed_ = header.streamed;
      number_ = lead == '%' ? header.number * 2 : header.number;
      if (number_ == 0 && !streamed_)
        after_ = body_;
      return;
    }
    case '#':
      kind_ = Kind::boolean;
      number_ = limit_ - at > 1 && at[1] == 't' ? 1 : 0;
      after_ = advance(at, 4, limit_);
      return;
    case '+':
    case '-':
    case ',':
    case '(': {
      body_ = at + 1;
      const char* const end = line_end(body_, limit_);
      number_ = static_cast<std::uint64_t>(end - body_);
      after_ = advance(end, 2, limit_);
      kind_ = lead == '+' ? Kind::text : lead == '-' ? Kind::error : lead == ',' ? Kind::real : Kind::big_number;
      return;
    }
    default: after_ = advance(at, 3, limit_); return;  // `_`
  }
}

std::optional<bool> View::as_bool() const noexcept {
  if (kind_ != Kind::boolean && kind_ != Kind::integer)
    return std::nullopt;
  if (number_ > 1)
    return std::nullopt;
  return number_ == 1;
}

std::optional<std::int64_t> View::integer_from_text() const noexcept {
  if (kind_ != Kind::text && kind_ != Kind::big_number)
    return std::nullopt;
  const auto text = as_text();
  return text ? parse_integer(*text) : std::nullopt;
}

std::optional<double> View::as_double() const noexcept {
  if (kind_ == Kind::integer)
    return static_cast<double>(static_cast<std::int64_t>(number_));
  if (kind_ == Kind::real)
    return parse_double({body_, number_});
  const auto text = as_text();
  return text ? parse_double(*text) : std::nullopt;
}

std::optional<std::string_view> View::other_text() const noexcept {
  if (kind_ == Kind::big_number)
    return std::string_view(body_, number_);
  if (kind_ != Kind::text)
    return std::nullopt;
  // Streamed: the first chunk is all of it when the second is the end.
  const ViewHeader first = read_header(body_, limit_);
  if (first.number == 0)
    return std::string_view(body_, 0);
  const char* const end = advance(first.end, first.number, limit_);
  const char* const second = advance(end, 2, limit_);
  if (second >= limit_ || read_header(second, limit_).number != 0)
    return std::nullopt;
  return std::string_view(first.end, static_cast<std::size_t>(end - first.end));
}

std::optional<std::string> View::copy_text() const {
  if (const auto text = as_text())
    return std::string(*text);
  if (kind_ != Kind::text)
    return std::nullopt;
  std::string joined;
  for (const char* at = body_; at < limit_ && *at == ';';) {
    const ViewHeader chunk = read_header(at, limit_);
    if (chunk.number == 0)
      break;
    const char* const end = advance(chunk.end, chunk.number, limit_);
    joined.append(chunk.end, end);
    at = advance(end, 2, limit_);
  }
  return joined;
}

std::size_t View::size() const noexcept {
  if (!is_aggregate())
    return 0;
  if (!streamed_)
    return static_cast<std::size_t>(number_);
  std::size_t count = 0;
  for (const char* at = body_; at < limit_ && *at != '.'; at = skip(at, limit_))
    ++count;
  return count;
}

View View::at(std::size_t index) const noexcept {
  Elements all = elements();
  for (std::size_t i = 0; i < index; ++i) {
    if (all.done())
      return {};
    (void)all.next();
  }
  return all.next();
}

Elements View::elements() const noexcept { return Elements(*this); }
Pairs View::pairs() const noexcept { return Pairs(*this); }

View View::find(std::string_view key) const noexcept {
  for (const auto& [name, value] : pairs()) {
    const auto text = name.as_text();
    if (text && *text == key)
      return value;
  }
  return {};
}

Elements::Elements(const View& aggregate) noexcept
    : at_(aggregate.body_), limit_(aggregate.limit_), streamed_(aggregate.streamed_) {
  if (aggregate.is_aggregate()) {
    left_ = aggregate.number_;
  } else {
    streamed_ = false;
  }
}

bool Elements::done() noexcept {
  if (left_ == 0 && !streamed_)
    return true;
  if (inside_) {
    at_ = skip(at_, limit_);
    inside_ = false;
  }
  return at_ >= limit_ || (streamed_ && *at_ == '.');
}

View Elements::next() noexcept {
  if (done())
    return {};
  if (!streamed_)
    --left_;
  const View view(at_, static_cast<std::size_t>(limit_ - at_));
  if (view.after_ != nullptr) {
    at_ = view.after_;
  } else {
    inside_ = true;
  }
  return view;
}

Pairs::Pairs(const View& aggregate) noexcept : elements_(aggregate.elements()) {
  if (aggregate.kind() == View::Kind::map)
    return;
  const View first = aggregate.elements().next();
  nested_ = first.kind() == View::Kind::array;
}

Pairs::Pair Pairs::next() noexcept {
  if (!nested_) {
    const View key = elements_.next();
    return {key, elements_.next()};
  }
  Elements pair = elements_.next().elements();
  const View key = pair.next();
  return {key, pair.next()};
}

Value to_value(const View& view) {
  switch (view.kind()) {
    case Value::Kind::null: return Value::null();
    case Value::Kind::boolean: return Value::boolean(view.as_bool().value_or(false));
    case Value::Kind::integer: return Value::integer(view.as_integer().value_or(0));
    case Value::Kind::real: return Value::real(view.as_double().value_or(0));
    case Value::Kind::big_number: return Value::big_number(view.copy_text().value_or(std::string()));
    case Value::Kind::text: return Value::text(view.copy_text().value_or(std::string()));
    case Value::Kind::error: return Value::error(std::string(view.error_text()));
    case Value::Kind::array:
    case Value::Kind::map:
    case Value::Kind::set:
    case Value::Kind::push: break;
  }
  Value::Items items;
  items.reserve(view.size());
  for (const View& element : view.elements())
    items.push_back(to_value(element));
  switch (view.kind()) {
    case Value::Kind::map: return Value::map(std::move(items));
    case Value::Kind::set: return Value::set(std::move(items));
    case Value::Kind::push: return Value::push(std::move(items));
    default: return Value::array(std::move(items));
  }
}

}  // namespace resp
}  // namespace v1
}  // namespace echomq
