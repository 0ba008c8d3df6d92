// The private early return: `ECHOMQ_TRY(auto id, JobId::parse(text));` gives the value or returns its error.
#pragma once

#include <utility>

#include "echomq/error.hpp"

#define ECHOMQ_TRY_JOIN2(a, b) a##b
#define ECHOMQ_TRY_JOIN(a, b) ECHOMQ_TRY_JOIN2(a, b)
#define ECHOMQ_TRY_INTO(target, result, name)        \
  auto name = (result);                              \
  if (!name) {                                       \
    return std::unexpected(std::move(name).error()); \
  }                                                  \
  target = *std::move(name)
#define ECHOMQ_TRY(target, result) ECHOMQ_TRY_INTO(target, result, ECHOMQ_TRY_JOIN(echomq_try_, __LINE__))
/// The same for a result whose value is not needed.
#define ECHOMQ_CHECK(result)                                   \
  do {                                                         \
    if (auto echomq_check = (result); !echomq_check) {         \
      return std::unexpected(std::move(echomq_check).error()); \
    }                                                          \
  } while (false)
