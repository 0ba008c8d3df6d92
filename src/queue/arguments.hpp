// Arguments of requests on the caller's stack: numbers as decimal text, and the parts of a script call.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "echomq/names.hpp"
#include "echomq/queue.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// A number as scripts take it. Views end with the object.
class Decimal {
 public:
  template <std::integral Number>
  explicit Decimal(Number number) noexcept {
    char* const end = std::to_chars(digits_.data(), digits_.data() + digits_.size(), number).ptr;
    size_ = static_cast<std::size_t>(end - digits_.data());
  }
  explicit Decimal(Milliseconds time) noexcept : Decimal(time.count()) {}
  explicit Decimal(Instant time) noexcept : Decimal(time.time_since_epoch().count()) {}
  explicit Decimal(Token token) noexcept : Decimal(token.value()) {}

  operator std::string_view() const noexcept { return {digits_.data(), size_}; }  // NOLINT(google-explicit-constructor)

 private:
  std::array<char, 20> digits_;
  std::size_t size_ = 0;
};

/// `EVALSHA <sha1> <number of keys> <keys> <arguments>`. What the views point to must outlive the object.
class ScriptParts {
 public:
  /// Where the keys begin.
  static constexpr std::size_t kFirstKey = 3;

  ScriptParts(const script::ScriptSource& script, std::span<const std::string_view> keys,
              std::span<const std::string_view> arguments)
      : count_(keys.size()), size_(kFirstKey + keys.size() + arguments.size()) {
    std::string_view* parts = small_.data();
    if (size_ > small_.size()) {
      large_.resize(size_);
      parts = large_.data();
    }
    parts[0] = "EVALSHA";
    parts[1] = script.sha1;
    parts[2] = count_;
    std::copy(arguments.begin(), arguments.end(), std::copy(keys.begin(), keys.end(), parts + kFirstKey));
  }
  ScriptParts(const ScriptParts&) = delete;
  ScriptParts& operator=(const ScriptParts&) = delete;

  [[nodiscard]] std::span<const std::string_view> parts() const noexcept {
    return {large_.empty() ? small_.data() : large_.data(), size_};
  }

 private:
  Decimal count_;
  std::size_t size_;
  std::array<std::string_view, 24> small_;
  std::vector<std::string_view> large_;
};

/// Part `index` of a request that the library itself encoded; for the rare second look at it.
[[nodiscard]] inline std::string_view request_part(std::string_view request, std::size_t index) noexcept {
  std::size_t at = request.find('\n') + 1;
  for (;; --index) {
    std::size_t size = 0;
    const char* const digits = request.data() + at + 1;
    const char* const end = std::from_chars(digits, request.data() + request.size(), size).ptr;
    const std::size_t text = static_cast<std::size_t>(end - request.data()) + 2;
    if (index == 0)
      return request.substr(text, size);
    at = text + size + 2;
  }
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
