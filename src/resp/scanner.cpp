// The frame-boundary finder.
#include "resp/scanner.hpp"

#include <algorithm>
#include <cstring>

#include "resp/number.hpp"

namespace echomq {
inline namespace v1 {
namespace resp {
namespace {

constexpr std::size_t kCrLf = 2;
/// So many always fit 64 bits; no length or count that passes the limits needs more.
constexpr std::size_t kMaxDigits = 19;

/// What stands behind a lead byte that is followed by a number and CR LF.
struct Header {
  std::uint64_t number = 0;
  std::size_t end = 0;  // behind the line
  bool minus = false;
  bool streamed = false;
};

}  // namespace

Scanner::Scanner(const Limits& limits) noexcept : limits_(limits) {
  limits_.depth = std::min(limits_.depth, kMaxDepth);
}

void Scanner::reset() noexcept {
  at_ = 0;
  line_seen_ = 0;
  wanted_ = 1;
  depth_ = 0;
  error_ = "";
  push_ = false;
  between_ = true;
  attributed_ = false;
}

Step Scanner::fail(const char* why) noexcept {
  error_ = why;
  return Step::error;
}

Step Scanner::wait_for(std::size_t bytes) noexcept {
  if (bytes > limits_.frame)
    return fail("a frame is too long");
  wanted_ = bytes;
  return Step::need_more;
}

bool Scanner::open(Form form, std::uint64_t elements) noexcept {
  if (depth_ == limits_.depth)
    return false;
  levels_[depth_++] = {elements, form};
  return true;
}

bool Scanner::close_value() noexcept {
  while (depth_ > 0) {
    Level& top = levels_[depth_ - 1];
    if (top.form == Form::streamed || top.form == Form::streamed_map) {
      ++top.left;
      return false;
    }
    if (--top.left > 0)
      return false;
    --depth_;
    if (top.form == Form::attribute) {
      attributed_ = true;
      return false;
    }
  }
  return true;
}

Scanner::Found Scanner::find_line(const char* data, std::size_t size, std::size_t& end) noexcept {
  const std::size_t begin = at_ + 1;
  const std::size_t from = begin + line_seen_;
  const void* const found = from < size ? std::memchr(data + from, '\r', size - from) : nullptr;
  if (found == nullptr) {
    line_seen_ = size > begin ? size - begin : 0;
    if (line_seen_ > limits_.line)
      return Found::broken;
    return Found::not_yet;
  }
  const auto at = static_cast<std::size_t>(static_cast<const char*>(found) - data);
  line_seen_ = at - begin;
  if (line_seen_ > limits_.line)
    return Found::broken;
  if (at + 1 == size)
    return Found::not_yet;
  if (data[at + 1] != '\n')
    return Found::broken;
  end = at;
  return Found::yes;
}

Step Scanner::scan(const char* data, std::size_t size) noexcept {
  if (*error_ != '\0')
    return Step::error;
  if (between_) {
    at_ = 0;
    line_seen_ = 0;
    wanted_ = 1;
    push_ = false;
    between_ = false;
  }
  if (size < wanted_)
    return Step::need_more;
  const Step step = scan_on(data, size);
  if (step == Step::frame) {
    if (at_ > limits_.frame)
      return fail("a frame is too long");
    between_ = true;
  }
  return step;
}

Step Scanner::scan_on(const char* data, std::size_t size) noexcept {
  // Whether `data` goes on with CR LF at `at`, as far as there is any.
  const auto line_ends_at = [&](std::size_t at) {
    if (at + kCrLf <= size)
      return data[at] == '\r' && data[at + 1] == '\n' ? Found::yes : Found::broken;
    return at >= size || data[at] == '\r' ? Found::not_yet : Found::broken;
  };
  // Reads `[-]<digits>CRLF` or `?CRLF` behind the lead byte.
  const auto read_header = [&](Header& header) {
    std::size_t at = at_ + 1;
    if (at < size && (data[at] == '-' || data[at] == '?')) {
      header.minus = data[at] == '-';
      header.streamed = data[at] == '?';
      ++at;
    }
    const std::size_t first = at;
    while (at < size && is_digit(data[at])) {
      header.number = header.number * 10 + static_cast<std::uint64_t>(data[at] - '0');
      ++at;
    }
    if (at - first > kMaxDigits)
      return Found::broken;
    if (at == size)
      return Found::not_yet;
    if ((at == first) != header.streamed)
      return Found::broken;
    header.end = at + kCrLf;
    return line_ends_at(at);
  };

  for (;;) {
    if (at_ >= size)
      return wait_for(at_ + 1);
    const char lead = data[at_];
    const Form form = depth_ > 0 ? levels_[depth_ - 1].form : Form::counted;
    if ((form == Form::chunks) != (lead == ';')) {
      return fail(lead == ';' ? "a chunk outside a streamed string" : "a streamed string is cut off by another value");
    }
    const bool attributed = attributed_;
    bool complete = false;  // a value that ends with this header
    switch (lead) {
      case ':': {
        std::size_t at = at_ + 1;
        if (at < size && (data[at] == '-' || data[at] == '+'))
          ++at;
        const std::size_t first = at;
        while (at < size && is_digit(data[at]) && at - first <= kMaxDigits)
          ++at;
        if (at == first && at < size)
          return fail("an integer without digits");
        if (at - first > kMaxDigits)
          return fail("an integer beyond 64 bits");
        if (at == size)
          return wait_for(size + 1);
        const Found line = line_ends_at(at);
        if (line == Found::broken)
          return fail("an integer that is not one");
        if (line == Found::not_yet)
          return wait_for(size + 1);
        // Eighteen digits always fit.
        if (at - first > 18 && !parse_integer({data + at_ + 1, at - at_ - 1}))
          return fail("an integer beyond 64 bits");
        at_ = at + kCrLf;
        complete = true;
        break;
      }

      case '$':
      case '!':
      case '=':
      case ';': {
        Header header;
        const Found line = read_header(header);
        if (line == Found::broken)
          return fail("a string whose length is not one");
        if (line == Found::not_yet)
          return wait_for(size + 1);
        if (header.streamed) {
          if (lead != '$')
            return fail("a streamed value of a type that cannot be");
          if (!open(Form::chunks, 0))
            return fail("a reply is nested too deeply");
          at_ = header.end;
          break;
        }
        if (header.minus) {
          if (lead != '$' || header.number != 1)
            return fail("a string of negative length");
          at_ = header.end;
          complete = true;
          break;
        }
        if (header.number > limits_.bulk)
          return fail("a string is too long");
        if (lead == ';' && header.number == 0) {
          --depth_;
          at_ = header.end;
          complete = true;
          break;
        }
        const std::size_t end = header.end + static_cast<std::size_t>(header.number);
        if (size < end + kCrLf)
          return wait_for(end + kCrLf);
        if (line_ends_at(end) != Found::yes)
          return fail("a string that does not end where it says");
        at_ = end + kCrLf;
        complete = lead != ';';
        break;
      }

      case '*':
      case '~':
      case '%':
      case '>':
      case '|': {
        if (lead == '>' && depth_ > 0)
          return fail("a push inside a reply");
        Header header;
        const Found line = read_header(header);
        if (line == Found::broken)
          return fail("an aggregate whose count is not one");
        if (line == Found::not_yet)
          return wait_for(size + 1);
        if (header.streamed && (lead == '>' || lead == '|'))
          return fail("a streamed value of a type that cannot be");
        if (header.minus && (lead != '*' || header.number != 1))
          return fail("an aggregate of negative count");
        if (!header.minus && header.number > limits_.elements)
          return fail("an aggregate has too many elements");
        push_ = push_ || lead == '>';
        at_ = header.end;
        attributed_ = false;
        if (header.minus) {
          complete = true;
        } else if (header.streamed) {
          if (!open(lead == '%' ? Form::streamed_map : Form::streamed, 0))
            return fail("a reply is nested too deeply");
        } else if (header.number == 0) {
          complete = lead != '|';
          attributed_ = lead == '|';
        } else {
          const bool doubled = lead == '%' || lead == '|';
          if (!open(lead == '|' ? Form::attribute : Form::counted, doubled ? header.number * 2 : header.number)) {
            return fail("a reply is nested too deeply");
          }
        }
        if (!complete)
          continue;
        break;
      }

      case '+':
      case '-':
      case '(':
      case ',': {
        std::size_t end = 0;
        switch (find_line(data, size, end)) {
          case Found::broken:
            return fail(line_seen_ > limits_.line ? "a line is too long" : "a carriage return inside a line");
          case Found::not_yet: return wait_for(size + 1);
          case Found::yes: break;
        }
        const std::string_view line(data + at_ + 1, end - at_ - 1);
        if (lead == '(' && !is_integer_text(line))
          return fail("a big number that is not one");
        if (lead == ',' && !parse_double(line))
          return fail("a double that is not one");
        line_seen_ = 0;
        at_ = end + kCrLf;
        complete = true;
        break;
      }

      case '_':
      case '#':
      case '.': {
        std::size_t at = at_ + 1;
        if (lead == '#') {
          if (at == size)
            return wait_for(size + 1);
          if (data[at] != 't' && data[at] != 'f')
            return fail("a boolean that is neither true nor false");
          ++at;
        }
        if (lead == '.') {
          if (form != Form::streamed && form != Form::streamed_map)
            return fail("an end where nothing is streamed");
          if (attributed)
            return fail("an attribute without a value");
          if (form == Form::streamed_map && levels_[depth_ - 1].left % 2 != 0)
            return fail("a map key without a value");
        }
        const Found line = line_ends_at(at);
        if (line == Found::broken)
          return fail("a line that does not end where it should");
        if (line == Found::not_yet)
          return wait_for(size + 1);
        if (lead == '.')
          --depth_;
        at_ = at + kCrLf;
        complete = true;
        break;
      }

      default: return fail("a byte that begins no RESP type");
    }
    attributed_ = false;
    if (complete && close_value())
      return Step::frame;
  }
}

}  // namespace resp
}  // namespace v1
}  // namespace echomq
