// Names that become part of keys, checked before anything is sent: `QueueName`, `DedupId`; and `Token`, what a claim
// is held with.
//
// Literals are checked by the compiler (`QueueName{"orders"}`), everything else by `parse()`. All are trivially
// copyable and own their bytes.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {

namespace detail {

[[nodiscard]] constexpr bool is_name_byte(char byte) noexcept {
  return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '.' ||
         byte == '_' || byte == '-';
}

/// `[A-Za-z0-9._-]{1,limit}`.
[[nodiscard]] constexpr bool is_name(std::string_view text, std::size_t limit) noexcept {
  if (text.empty() || text.size() > limit) {
    return false;
  }
  for (const char byte : text) {
    if (!is_name_byte(byte)) {
      return false;
    }
  }
  return true;
}

/// Up to `Limit` bytes held inline; the unused rest is zero.
template <std::size_t Limit>
class InlineName {
 public:
  static constexpr std::size_t kMaxSize = Limit;

  [[nodiscard]] constexpr std::string_view text() const noexcept { return {bytes_.data(), size_}; }

  friend constexpr bool operator==(const InlineName& a, const InlineName& b) noexcept { return a.text() == b.text(); }
  friend constexpr std::strong_ordering operator<=>(const InlineName& a, const InlineName& b) noexcept {
    return a.text() <=> b.text();
  }

 protected:
  constexpr explicit InlineName(std::string_view text) noexcept : size_(static_cast<std::uint8_t>(text.size())) {
    for (std::size_t i = 0; i < text.size(); ++i)
      bytes_[i] = text[i];
  }

 private:
  static_assert(Limit <= 255);
  std::array<char, Limit> bytes_{};
  std::uint8_t size_;
};

}  // namespace detail

/// The name of a queue: 1 to 128 of `A-Z a-z 0-9 . _ -`, and not `emq`, which is the deployment's own.
class QueueName : public detail::InlineName<128> {
 public:
  [[nodiscard]] static constexpr bool is_valid(std::string_view text) noexcept {
    return detail::is_name(text, kMaxSize) && text != "emq";
  }
  /// A literal, checked by the compiler.
  template <std::size_t N>
  consteval QueueName(const char (&literal)[N]) : InlineName(checked({literal, N - 1})) {}  // NOLINT
  /// Errors: invalid_queue_name; the text names the value.
  [[nodiscard]] static Result<QueueName> parse(std::string_view text);

 private:
  constexpr explicit QueueName(std::string_view text) noexcept : InlineName(text) {}
  static consteval std::string_view checked(std::string_view text) {
    if (!is_valid(text))
      throw "not a queue name: 1 to 128 of A-Z a-z 0-9 . _ - and not `emq`";
    return text;
  }
};

/// A caller's idempotency key: 1 to 255 of `A-Z a-z 0-9 . _ -`.
class DedupId : public detail::InlineName<255> {
 public:
  [[nodiscard]] static constexpr bool is_valid(std::string_view text) noexcept {
    return detail::is_name(text, kMaxSize);
  }
  /// A literal, checked by the compiler.
  template <std::size_t N>
  consteval DedupId(const char (&literal)[N]) : InlineName(checked({literal, N - 1})) {}  // NOLINT
  /// Errors: invalid_dedup_id; the text names the value.
  [[nodiscard]] static Result<DedupId> parse(std::string_view text);

 private:
  constexpr explicit DedupId(std::string_view text) noexcept : InlineName(text) {}
  static consteval std::string_view checked(std::string_view text) {
    if (!is_valid(text))
      throw "not a deduplication id: 1 to 255 of A-Z a-z 0-9 . _ -";
    return text;
  }
};

/// The fencing token of a claim: the row's `attempts` at that moment. Every settle presents it.
class Token {
 public:
  constexpr Token() noexcept = default;
  constexpr explicit Token(std::uint64_t value) noexcept : value_(value) {}
  /// Decimal, no sign, no leading zeros. Errors: invalid_argument.
  [[nodiscard]] static Result<Token> parse(std::string_view text);

  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  /// Decimal, as scripts take it.
  [[nodiscard]] std::string text() const { return std::to_string(value_); }

  friend constexpr auto operator<=>(const Token&, const Token&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

static_assert(std::is_trivially_copyable_v<QueueName> && std::is_trivially_copyable_v<DedupId> &&
              std::is_trivially_copyable_v<Token>);

}  // namespace v1
}  // namespace echomq

template <>
struct std::hash<echomq::QueueName> {
  [[nodiscard]] std::size_t operator()(const echomq::QueueName& name) const noexcept {
    return std::hash<std::string_view>{}(name.text());
  }
};
template <>
struct std::hash<echomq::DedupId> {
  [[nodiscard]] std::size_t operator()(const echomq::DedupId& id) const noexcept {
    return std::hash<std::string_view>{}(id.text());
  }
};
