// Bytes of a server: cut anywhere they must give the frames that they give whole, and every frame must be readable.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/value.hpp"
#include "resp/scanner.hpp"
#include "resp/view.hpp"

namespace {

using namespace echomq::resp;
using echomq::Value;

void require(bool condition) {
  if (!condition)
    std::abort();
}

struct Outcome {
  std::vector<std::string> frames;
  std::vector<bool> pushes;
  Step last = Step::need_more;
  std::string error;
  bool operator==(const Outcome&) const = default;
};

/// The stream in chunks whose sizes a small generator draws; `seed` 0: in one.
Outcome feed(std::string_view stream, std::uint32_t seed) {
  Scanner scanner;
  Outcome outcome;
  std::size_t begin = 0;
  std::size_t end = 0;
  do {
    seed = seed * 1664525 + 1013904223;
    const std::size_t chunk =
        outcome.frames.empty() && end == 0 && seed == 1013904223 ? stream.size() : 1 + (seed >> 27);
    end = std::min(stream.size(), end + chunk);
    for (;;) {
      // A block of its own, so that a read past what is there is seen.
      const std::vector<char> block(stream.begin() + static_cast<std::ptrdiff_t>(begin),
                                    stream.begin() + static_cast<std::ptrdiff_t>(end));
      outcome.last = scanner.scan(block.data(), block.size());
      require(scanner.position() <= block.size());
      if (outcome.last != Step::frame)
        break;
      require(scanner.frame_size() > 0 && scanner.frame_size() <= block.size());
      outcome.frames.emplace_back(block.data(), scanner.frame_size());
      outcome.pushes.push_back(scanner.is_push());
      begin += scanner.frame_size();
    }
    if (outcome.last == Step::error) {
      outcome.error = scanner.error();
      require(!outcome.error.empty());
      break;
    }
    require(scanner.wanted() > end - begin);
  } while (end < stream.size());
  return outcome;
}

void walk(const View& view, const Value& value) {
  require(view.kind() == value.kind());
  require(view.is_null() == value.is_null());
  require(view.error_text() == value.error_text());
  require(view.as_bool() == value.as_bool());
  require(view.size() == value.size());
  if (view.is_text())
    require(view.copy_text() == value.as_text());
  if (const auto text = view.as_text()) {
    require(text == value.as_text());
    require(view.as_integer() == value.as_integer());
    (void)view.as_double();
  }
  std::size_t index = 0;
  for (const View& element : view.elements())
    walk(element, value[index++]);
  require(index == value.size());
  if (index > 0 && index < 16)
    require(view.at(index - 1).kind() == value[index - 1].kind());
  std::size_t pairs = 0;
  for (const auto& [key, item] : view.pairs()) {
    pairs += key.size() + item.size() + 1;
    if (pairs > 64)
      break;
  }
  (void)view.find("a");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1)
    return 0;
  const std::uint32_t seed = data[0];
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = feed(stream, 0);
  require(feed(stream, seed + 1) == whole);
  for (const std::string& frame : whole.frames) {
    const std::vector<char> block(frame.begin(), frame.end());
    const View view(block.data(), block.size());
    const Value value = to_value(view);
    walk(view, value);
    require(Value(value) == value);
    require(!value.to_string().empty());
  }
  return 0;
}
