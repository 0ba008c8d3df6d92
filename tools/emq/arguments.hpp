// Command line texts turned into the library's types, each refusal naming the argument.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"

namespace emq {

/// `T::parse` of an argument that may be absent (empty `text`: none).
template <typename T>
[[nodiscard]] echomq::Result<std::optional<T>> parse_optional(const std::optional<std::string>& text) {
  if (!text) {
    return std::optional<T>();
  }
  auto parsed = T::parse(*text);
  if (!parsed) {
    return echomq::fail(std::move(parsed).error());
  }
  return std::optional<T>(*std::move(parsed));
}

}  // namespace emq

/// The private early return of the tool: an error is reported and its exit code returned.
#define ECHOMQ_OR_REPORT_JOIN2(a, b) a##b
#define ECHOMQ_OR_REPORT_JOIN(a, b) ECHOMQ_OR_REPORT_JOIN2(a, b)
#define ECHOMQ_OR_REPORT_INTO(target, result, name) \
  auto name = (result);                             \
  if (!name)                                        \
    return session.report(std::move(name).error()); \
  target = *std::move(name)
#define ECHOMQ_OR_REPORT(target, result) \
  ECHOMQ_OR_REPORT_INTO(target, result, ECHOMQ_OR_REPORT_JOIN(emq_try_, __LINE__))
