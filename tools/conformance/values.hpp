// Replies and results as JSON, and the two ways of comparing them: as histories do, and as scenarios do.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/value.hpp"

namespace echomq::conformance {

namespace json = boost::json;

/// Printable ASCII as it is, any other text as `{"hex": "..."}`.
[[nodiscard]] json::value text_to_json(std::string_view text);
/// The bytes of either form, or of `{"repeat": [text, times]}`; numbers as their decimal text.
[[nodiscard]] std::string text_of(const json::value& value);
/// A number, or text that is one.
[[nodiscard]] std::optional<double> number_of(const json::value& value);
/// Integers as numbers, also those that came as text.
[[nodiscard]] std::int64_t integer_of(const json::value& value);

/// A reply. Maps become flat lists of fields and values.
[[nodiscard]] json::value to_json(const Value& value);

/// Equal as JSON, where a number also equals the text of the same number.
[[nodiscard]] bool same(const json::value& expected, const json::value& actual);
/// As `same`, with the matchers of the scenarios.
[[nodiscard]] bool matches(const json::value& expected, const json::value& actual);

[[nodiscard]] std::string read_file(const std::string& path);
/// Throws on a file that is no JSON.
[[nodiscard]] json::value read_json(const std::string& path);

}  // namespace echomq::conformance
