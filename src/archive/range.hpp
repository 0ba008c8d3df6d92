// Bounds of a history as numbers.
#pragma once

#include <optional>

#include "bus/checks.hpp"
#include "echomq/archive.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

/// Both ends belong to it.
struct Span {
  bus::EntryNumber low, high;
};

/// Empty when there is nothing between the bounds. Errors: invalid_argument.
[[nodiscard]] Result<std::optional<Span>> span_of(const HistoryRange& range);
[[nodiscard]] bus::EntryNumber next_entry(bus::EntryNumber entry);

}  // namespace archive
}  // namespace v1
}  // namespace echomq
