// What the bench does when something fails: it ends, with the reason.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include "echomq/error.hpp"

namespace echomq_bench {

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "bench: %s\n", why.c_str());
  std::exit(1);
}

template <typename T>
T must(echomq::Result<T> result) {
  if (!result)
    give_up(result.error().message());
  if constexpr (!std::is_void_v<T>)
    return *std::move(result);
}

}  // namespace echomq_bench
