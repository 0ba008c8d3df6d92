// Reads one complete frame in place, without a copy and without an allocation.
//
// A view points into the connection's buffer: it lives no longer than the call that it is handed to. It takes RESP2 and
// RESP3 shapes alike: pairs come from maps, flat arrays and arrays of pairs; doubles from doubles, integers and text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "echomq/value.hpp"

namespace echomq {
inline namespace v1 {
namespace resp {

class Elements;
class Pairs;

/// One value of a frame that `Scanner` found complete; no other bytes may be viewed. Attributes are skipped.
class View {
 public:
  using Kind = Value::Kind;

  /// Null.
  View() noexcept = default;
  /// `frame` is exactly one frame.
  explicit View(std::string_view frame) noexcept : View(frame.data(), frame.size()) {}
  View(const char* data, std::size_t size) noexcept;

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool is_null() const noexcept { return kind_ == Kind::null; }
  [[nodiscard]] bool is_error() const noexcept { return kind_ == Kind::error; }
  [[nodiscard]] bool is_text() const noexcept { return kind_ == Kind::text; }
  [[nodiscard]] bool is_integer() const noexcept { return kind_ == Kind::integer; }
  [[nodiscard]] bool is_aggregate() const noexcept { return kind_ >= Kind::array; }

  /// The message of an error reply, without the leading `-`; empty for anything else.
  [[nodiscard]] std::string_view error_text() const noexcept {
    return kind_ == Kind::error ? std::string_view(body_, number_) : std::string_view();
  }
  /// A boolean, or the integer 0 or 1.
  [[nodiscard]] std::optional<bool> as_bool() const noexcept;
  /// An integer, or a big number or text that is one and fits.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept {
    if (kind_ == Kind::integer)
      return static_cast<std::int64_t>(number_);
    return integer_from_text();
  }
  /// A double, an integer, or text that is a number.
  [[nodiscard]] std::optional<double> as_double() const noexcept;
  /// A string of any kind, or the digits of a big number. Empty for a streamed string of several chunks, which no
  /// server sends so far: `copy_text` joins it.
  [[nodiscard]] std::optional<std::string_view> as_text() const noexcept {
    if (kind_ == Kind::text && !streamed_)
      return std::string_view(body_, number_);
    return other_text();
  }
  /// As `as_text`, also of streamed strings.
  [[nodiscard]] std::optional<std::string> copy_text() const;

  /// The number of elements; a map has two for each pair. 0 for anything but an aggregate. Walks a streamed one.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Element `index`, found by walking; null beyond the last.
  [[nodiscard]] View at(std::size_t index) const noexcept;
  /// The elements in order; none for anything but an aggregate.
  [[nodiscard]] Elements elements() const noexcept;
  /// Keys and values of a map, of a flat array, or of an array of two-element arrays.
  [[nodiscard]] Pairs pairs() const noexcept;
  /// The value of a text key in `pairs()`; null when there is none.
  [[nodiscard]] View find(std::string_view key) const noexcept;

 private:
  friend class Elements;
  [[nodiscard]] std::optional<std::int64_t> integer_from_text() const noexcept;
  [[nodiscard]] std::optional<std::string_view> other_text() const noexcept;

  const char* body_ = nullptr;   // the text, or the first element
  const char* limit_ = nullptr;  // of the frame
  const char* after_ = nullptr;  // behind the value; null when that must be walked for
  std::uint64_t number_ = 0;     // integer, length or count
  Kind kind_ = Kind::null;
  bool streamed_ = false;
};

/// A cursor over the elements of an aggregate: `next()` by `next()`, or a range-for.
class Elements {
 public:
  /// The next element; null when there is none.
  [[nodiscard]] View next() noexcept;
  [[nodiscard]] bool done() noexcept;

  struct End {};
  class Iterator {
   public:
    explicit Iterator(Elements& elements) noexcept : elements_(elements) { ++*this; }
    [[nodiscard]] const View& operator*() const noexcept { return view_; }
    [[nodiscard]] const View* operator->() const noexcept { return &view_; }
    Iterator& operator++() noexcept {
      at_end_ = elements_.done();
      if (!at_end_)
        view_ = elements_.next();
      return *this;
    }
    [[nodiscard]] bool operator==(End) const noexcept { return at_end_; }

   private:
    Elements& elements_;
    View view_;
    bool at_end_ = false;
  };
  [[nodiscard]] Iterator begin() noexcept { return Iterator(*this); }
  [[nodiscard]] End end() const noexcept { return {}; }

 private:
  friend class View;
  explicit Elements(const View& aggregate) noexcept;

  const char* at_ = nullptr;  // the next element, or the one given out last when `inside_`
  const char* limit_ = nullptr;
  std::uint64_t left_ = 0;
  bool streamed_ = false;
  bool inside_ = false;
};

/// A cursor over keys and values.
class Pairs {
 public:
  using Pair = std::pair<View, View>;
  /// The next pair; nulls when there is none.
  [[nodiscard]] Pair next() noexcept;
  [[nodiscard]] bool done() noexcept { return elements_.done(); }

  struct End {};
  class Iterator {
   public:
    explicit Iterator(Pairs& pairs) noexcept : pairs_(pairs) { ++*this; }
    [[nodiscard]] const Pair& operator*() const noexcept { return pair_; }
    [[nodiscard]] const Pair* operator->() const noexcept { return &pair_; }
    Iterator& operator++() noexcept {
      at_end_ = pairs_.done();
      if (!at_end_)
        pair_ = pairs_.next();
      return *this;
    }
    [[nodiscard]] bool operator==(End) const noexcept { return at_end_; }

   private:
    Pairs& pairs_;
    Pair pair_;
    bool at_end_ = false;
  };
  [[nodiscard]] Iterator begin() noexcept { return Iterator(*this); }
  [[nodiscard]] End end() const noexcept { return {}; }

 private:
  friend class View;
  explicit Pairs(const View& aggregate) noexcept;
  Elements elements_;
  bool nested_ = false;
};

/// An owning copy.
[[nodiscard]] Value to_value(const View& view);

}  // namespace resp
}  // namespace v1
}  // namespace echomq
