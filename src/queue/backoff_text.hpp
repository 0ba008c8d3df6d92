// The text of a backoff, as the row field `backoff` and command lines have it.
//
//   fixed:MS                 the same wait after each failure
//   exponential:BASE:CAP     min(BASE * 2^(failures - 1), CAP)
//
// each with `:jitter` at its end or without: then the wait is uniform in 0 to that. Numbers are decimal milliseconds
// without sign or leading zeros, at most 2^53 - 1; BASE and CAP are 1 or more.
#pragma once

#include <string>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/queue.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

struct BackoffText {
  bool exponential = false;
  Milliseconds base{0};  ///< of `fixed` the wait
  Milliseconds cap{0};   ///< of `exponential`
  bool jitter = false;

  [[nodiscard]] std::string text() const;
};

/// Errors: invalid_argument naming the text.
[[nodiscard]] Result<BackoffText> parse_backoff(std::string_view text);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
