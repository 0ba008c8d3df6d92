// What the named orders of the cache's events share: two rows, and who reads them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "cache/push.hpp"
#include "model/cache_server.hpp"

namespace echomq::model {

inline constexpr std::array<BrandedId, 2> kBoth = {BrandedId{"USR0NgWEfAE00A"}, BrandedId{"USR0NgWEfAE00B"}};

[[nodiscard]] inline std::string named_key(const BrandedId& id) { return "ecc:{t}:" + std::string(id.text()); }
[[nodiscard]] inline std::string named_version(std::uint64_t number) {
  return std::string(BrandedId::encode("EVT", number).value().text());
}

struct NamedReader final : detail::CacheWaiter {
  void answer(Result<CachedBytes> got) noexcept override { answered.emplace(std::move(got)); }
  std::optional<Result<CachedBytes>> answered;
};

}  // namespace echomq::model
