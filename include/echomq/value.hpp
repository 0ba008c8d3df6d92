// `Value`: a server's reply to an arbitrary command, as an owning tree.
//
// The library's own verbs decode replies without it; use it with `Client::command`, `pipeline` and `eval`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace echomq {
inline namespace v1 {

/// One reply. Copyable and movable; not thread-safe for writing.
///
/// The same question gets different shapes from RESP2 and RESP3 servers (a map or a flat array, a double or its text):
/// the `as_` accessors and `find` take either.
class Value {
 public:
  enum class Kind : std::uint8_t {
    null,
    boolean,
    integer,
    real,
    big_number,  ///< an integer that may not fit 64 bits, kept as its digits
    text,        ///< simple, bulk and verbatim strings; any bytes
    error,
    array,
    map,  ///< keys and values in turn, in the server's order
    set,
    push,
  };
  using Items = std::vector<Value>;

  /// Null.
  Value() noexcept = default;
  [[nodiscard]] static Value null() noexcept { return {}; }
  [[nodiscard]] static Value boolean(bool value) { return {Kind::boolean, value}; }
  [[nodiscard]] static Value integer(std::int64_t value) { return {Kind::integer, value}; }
  [[nodiscard]] static Value real(double value) { return {Kind::real, value}; }
  [[nodiscard]] static Value big_number(std::string digits) { return {Kind::big_number, std::move(digits)}; }
  [[nodiscard]] static Value text(std::string bytes) { return {Kind::text, std::move(bytes)}; }
  [[nodiscard]] static Value error(std::string message) { return {Kind::error, std::move(message)}; }
  [[nodiscard]] static Value array(Items items) { return {Kind::array, std::move(items)}; }
  /// `items` are keys and values in turn.
  [[nodiscard]] static Value map(Items items) { return {Kind::map, std::move(items)}; }
  [[nodiscard]] static Value set(Items items) { return {Kind::set, std::move(items)}; }
  [[nodiscard]] static Value push(Items items) { return {Kind::push, std::move(items)}; }

  Value(const Value&) = default;
  Value(Value&& other) noexcept
      : kind_(std::exchange(other.kind_, Kind::null)), data_(std::exchange(other.data_, Data{})) {}
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    Value taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Value() {
    if (const Items* items = std::get_if<Items>(&data_); items != nullptr && !items->empty())
      release();
  }
  void swap(Value& other) noexcept {
    std::swap(kind_, other.kind_);
    data_.swap(other.data_);
  }

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool is_null() const noexcept { return kind_ == Kind::null; }
  [[nodiscard]] bool is_error() const noexcept { return kind_ == Kind::error; }
  [[nodiscard]] bool is_text() const noexcept { return kind_ == Kind::text; }
  /// Whether there are items: array, map, set or push.
  [[nodiscard]] bool is_aggregate() const noexcept { return kind_ >= Kind::array; }

  /// The message of an error reply, without the leading `-`; empty for anything else.
  [[nodiscard]] std::string_view error_text() const noexcept;
  /// A boolean, or the integer 0 or 1.
  [[nodiscard]] std::optional<bool> as_bool() const noexcept;
  /// An integer, or a big number or text that is one and fits.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept;
  /// A double, an integer, or text that is a number.
  [[nodiscard]] std::optional<double> as_double() const noexcept;
  /// A string of any kind, or the digits of a big number; valid as long as this object is not changed.
  [[nodiscard]] std::optional<std::string_view> as_text() const noexcept;
  /// The items; those of a map are keys and values in turn. Empty for anything else.
  [[nodiscard]] std::span<const Value> items() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return items().size(); }
  [[nodiscard]] const Value& operator[](std::size_t index) const noexcept { return items()[index]; }
  /// The value of a text key in a map or in a flat array of keys and values; null pointer when there is none.
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;
  /// Takes the items out, for whoever wants to move them elsewhere. Leaves null.
  [[nodiscard]] Items take_items() noexcept;
  /// Takes the bytes of a string, big number or error out. Leaves null.
  [[nodiscard]] std::string take_text() noexcept;

  /// Same kind, same content; items of maps and sets in the same order. NaN equals NaN.
  friend bool operator==(const Value& a, const Value& b) noexcept { return equal(a, b); }

  /// For people: `["a", 1, {"k": null}]`. Control bytes are escaped; long strings are not cut.
  [[nodiscard]] std::string to_string() const;

 private:
  using Data = std::variant<std::monostate, bool, std::int64_t, double, std::string, Items>;
  template <typename T>
  Value(Kind kind, T&& data) : kind_(kind), data_(std::forward<T>(data)) {}
  /// Frees a tree without recursion, however deep it is.
  void release() noexcept;
  [[nodiscard]] static bool equal(const Value& a, const Value& b) noexcept;

  Kind kind_ = Kind::null;
  Data data_;
};

}  // namespace v1
}  // namespace echomq
