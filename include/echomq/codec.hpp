// `Codec<T>`: how a value becomes the bytes of a payload, a result or a cached value, and a value again.
//
// Specialise it for a type of one's own:
//
//   template <>
//   struct echomq::Codec<Point> {
//     static std::string encode(const Point& point);                     // or Result<std::string>
//     static echomq::Result<Point> decode(std::string_view bytes);       // or Point
//   };
//
// Either of the two is enough for a program that only sends or only receives. `echomq/with/json.hpp` has one for every
// type that Boost.JSON converts. Built in: `std::string`, other text and `std::vector<std::byte>`, the bytes as they are;
// `std::string_view` and literals can be sent only.
#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {

namespace detail {

/// Text, or what passes for it. No JSON, whatever else is included: a text is its bytes.
template <typename T>
concept TextLike = std::convertible_to<const T&, std::string_view> || std::convertible_to<const T&, std::string>;

}  // namespace detail

/// Specialisations have `encode`, `decode`, or both. `decode` takes any bytes, also those that no `encode` made. What
/// they throw becomes `codec_failed` with its message, but for `std::bad_alloc`, which goes on. Thread-safe.
template <typename T>
struct Codec {};

/// What converts to text, such as a literal or a type of one's own that is a `std::string`, is sent as that text; and read
/// where it can be made of one.
template <detail::TextLike T>
struct Codec<T> {
  [[nodiscard]] static std::string encode(const T& value) {
    if constexpr (std::convertible_to<const T&, std::string_view>) {
      const std::string_view text = value;
      return std::string(text);
    } else {
      return value;
    }
  }
  [[nodiscard]] static auto decode(std::string_view bytes)
    requires(std::is_class_v<T> && std::constructible_from<T, std::string>)
  {
    return T(std::string(bytes));
  }
};

template <>
struct Codec<std::string> {
  [[nodiscard]] static std::string encode(const std::string& value) { return value; }
  [[nodiscard]] static std::string decode(std::string_view bytes) { return std::string(bytes); }
};

template <>
struct Codec<std::string_view> {
  [[nodiscard]] static std::string encode(std::string_view value) { return std::string(value); }
};

template <>
struct Codec<std::vector<std::byte>> {
  [[nodiscard]] static std::string encode(const std::vector<std::byte>& value) {
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  [[nodiscard]] static std::vector<std::byte> decode(std::string_view bytes) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    return {first, first + bytes.size()};
  }
};

/// A type that becomes bytes.
template <typename T>
concept Encodable = requires(const T& value) {
  { Codec<T>::encode(value) } -> std::convertible_to<Result<std::string>>;
};
/// A type that is made of bytes.
template <typename T>
concept Decodable = requires(std::string_view bytes) {
  { Codec<T>::decode(bytes) } -> std::convertible_to<Result<T>>;
};

/// The bytes of `value`. Errors: codec_failed, or whatever error the codec gives.
template <typename T>
[[nodiscard]] Result<std::string> encode_payload(const T& value) {
  static_assert(Encodable<T>, "no echomq::Codec<T> with an encode: specialise it, or include echomq/with/json.hpp");
  try {
    return Codec<T>::encode(value);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return fail(Errc::codec_failed, error.what());
  } catch (...) {
    return fail(Errc::codec_failed, "an exception that is not a std::exception");
  }
}

/// The value of `bytes`. Errors: codec_failed, or whatever error the codec gives.
template <typename T>
[[nodiscard]] Result<T> decode_payload(std::string_view bytes) {
  static_assert(Decodable<T>, "no echomq::Codec<T> with a decode: specialise it, or include echomq/with/json.hpp");
  try {
    return Codec<T>::decode(bytes);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return fail(Errc::codec_failed, error.what());
  } catch (...) {
    return fail(Errc::codec_failed, "an exception that is not a std::exception");
  }
}

}  // namespace v1
}  // namespace echomq
