// Errors of archives.
#pragma once

#include <string>
#include <utility>

#include "echomq/archive.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

[[nodiscard]] inline std::unexpected<Error> failed(ArchiveErrc code, std::string why) {
  Error error;
  error.code = make_error_code(code);
  error.text = std::move(why);
  return std::unexpected<Error>(std::move(error));
}

}  // namespace archive
}  // namespace v1
}  // namespace echomq
