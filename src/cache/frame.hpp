// The bytes of the cache: the L2 frame, keys and names of a table (protocol document 4, sections 9 and 11).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "echomq/cache.hpp"
#include "keyspace/keys.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

/// The most a value may have: the server's bound of a string (512 MiB), less the version.
inline constexpr std::size_t kMaxValue = (std::size_t{512} << 20) - BrandedId::kSize;

/// A frame read: 14 bytes of version, then the value. A view into the frame.
struct Frame {
  BrandedId version;
  std::string_view value;
};
/// Nothing when the bytes are no frame: shorter than 14, or a version that is no branded id (it would look newest for
/// ever). An empty value is legal.
[[nodiscard]] std::optional<Frame> read_frame(std::string_view bytes) noexcept;
[[nodiscard]] std::string make_frame(const BrandedId& version, std::string_view value);

/// The smallest version that is newer, of the same namespace; the version itself when there is none.
[[nodiscard]] BrandedId just_newer(const BrandedId& version) noexcept;

/// The names of one table.
struct TableKeys {
  explicit TableKeys(const CacheName& table)
      : prefix("ecc:{" + std::string(table.text()) + "}:"),
        extension("eccx:{" + std::string(table.text()) + "}:"),
        channel(prefix + "coh"),
        queue("ecc.coh." + std::string(table.text())) {}

  [[nodiscard]] keyspace::KeyText row(const BrandedId& id) const { return keyspace::KeyText::of(prefix, id.text()); }
  /// Who loads the row: `eccx:{table}:load:<id>`.
  [[nodiscard]] keyspace::KeyText lease(const BrandedId& id) const {
    return keyspace::KeyText::of(extension, "load:", id.text());
  }
  /// By tag: ids of its rows, those that are being dropped, its last drop; and how many drops there were.
  [[nodiscard]] keyspace::KeyText tag(std::string_view tag) const {
    return keyspace::KeyText::of(extension, "tag:", tag);
  }
  [[nodiscard]] keyspace::KeyText tag_apart(std::string_view tag) const {
    return keyspace::KeyText::of(extension, "tagdrop:", tag);
  }
  [[nodiscard]] keyspace::KeyText tag_floor(std::string_view tag) const {
    return keyspace::KeyText::of(extension, "tagfloor:", tag);
  }
  [[nodiscard]] keyspace::KeyText tag_drops() const { return keyspace::KeyText::of(extension, "tagdrops"); }
  /// On which those are told who wait for another process's load.
  [[nodiscard]] keyspace::KeyText loads() const { return keyspace::KeyText::of(extension, "loads"); }

  std::string prefix;     ///< `ecc:{table}:`, also what tracking watches
  std::string extension;  ///< `eccx:{table}:`, of what peers do not know: nothing else may stand below `prefix`
  std::string channel;    ///< `ecc:{table}:coh`
  std::string queue;      ///< `ecc.coh.<table>`
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
