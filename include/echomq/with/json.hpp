// Payloads, results and cached values as JSON, for every type that Boost.JSON converts: `echomq::Codec<T>` through
// `value_from` and `value_to`.
//
// Needs Boost.JSON (1.81 or later) of the including program: link it, or include <boost/json/src.hpp> in one file. The
// library itself exports none. A type takes part when Boost.JSON can convert it: numbers, strings, containers, maps,
// optionals, variants, `boost::json::value`, types described by BOOST_DESCRIBE_STRUCT, and those with `tag_invoke`
// overloads of their own. Types with a codec of their own keep it, and so does text: `std::string`, and whatever converts to
// it or to `std::string_view`, is its bytes and not a JSON string. `boost::json::string` and `boost::json::value` are JSON.
//
// What is sent is compact UTF-8 text. What is received is one JSON text (RFC 8259) with white space around it or without,
// at most 32 levels deep; anything else is `codec_failed`, which names the fault and never the text.
#pragma once

#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_from.hpp>
#include <boost/json/value_to.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "echomq/codec.hpp"
#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {

template <typename T>
  requires(!detail::TextLike<T> && (boost::json::has_value_from<T>::value || boost::json::has_value_to<T>::value))
struct Codec<T> {
  [[nodiscard]] static std::string encode(const T& value)
    requires(boost::json::has_value_from<T>::value)
  {
    return boost::json::serialize(boost::json::value_from(value));
  }

  /// Errors: codec_failed.
  [[nodiscard]] static Result<T> decode(std::string_view bytes)
    requires(boost::json::has_value_to<T>::value)
  {
    boost::json::parser parser;
    boost::system::error_code error;
    const std::size_t read = parser.write(bytes.data(), bytes.size(), error);
    if (error)
      return fail(Errc::codec_failed, "no JSON, at byte " + std::to_string(read) + ": " + error.message());
    const boost::json::value value = parser.release();
    auto out = boost::json::try_value_to<T>(value);
    if (out.has_error())
      return fail(Errc::codec_failed, "JSON of another shape: " + out.error().message());
    return std::move(*out);
  }
};

/// A JSON string, though it converts to text.
template <>
struct Codec<boost::json::string> {
  [[nodiscard]] static std::string encode(const boost::json::string& value) {
    return boost::json::serialize(boost::json::value(value));
  }
  /// Errors: codec_failed.
  [[nodiscard]] static Result<boost::json::string> decode(std::string_view bytes) {
    Result<boost::json::value> value = Codec<boost::json::value>::decode(bytes);
    if (!value)
      return fail(std::move(value).error());
    if (!value->is_string())
      return fail(Errc::codec_failed, "JSON of another shape: no string");
    return std::move(value->as_string());
  }
};

}  // namespace v1
}  // namespace echomq
