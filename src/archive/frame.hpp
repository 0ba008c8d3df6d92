// Frames: some lines compressed together, each a zstd frame of its own with zstd's checksum of what is in it; and the
// lines of the index that say where each frame is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "archive/errors.hpp"
#include "archive/line.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

struct Frame {
  std::uint64_t at = 0;    ///< where it begins in its segment
  std::uint64_t size = 0;  ///< compressed
  std::uint64_t raw = 0;   ///< of its lines
  std::uint64_t records = 0;
  bus::EntryNumber first, last;
  std::uint64_t xxh64 = 0;  ///< of the compressed bytes

  [[nodiscard]] std::uint64_t end() const noexcept { return at + size; }
  friend bool operator==(const Frame&, const Frame&) = default;
};

/// The last line of the index of a segment that will not grow any more.
struct Seal {
  std::uint64_t size = 0;
  std::uint64_t records = 0;
  std::uint64_t xxh64 = 0;  ///< of the whole segment
};

/// Of several pieces, as if they were one.
class Digest {
 public:
  Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  ~Digest();
  void add(std::string_view bytes);
  void reset();
  [[nodiscard]] std::uint64_t value() const;

 private:
  void* state_;
};
[[nodiscard]] std::uint64_t digest_of(std::string_view bytes);

[[nodiscard]] std::string compress(std::string_view lines, int level);
/// The first whole frame of the bytes, and its lines; empty when there is none, such as when it is torn.
[[nodiscard]] std::optional<std::string> decompress(std::string_view bytes, std::size_t& size);

[[nodiscard]] std::string index_line(const Frame& frame);
[[nodiscard]] std::string seal_line(const Seal& seal);

/// An index as far as it is whole and fits the segment's size: frames that follow one another without a gap.
struct Index {
  std::vector<Frame> frames;
  std::optional<Seal> seal;
  std::uint64_t sound = 0;  ///< bytes of the index up to the last line that counts
};
[[nodiscard]] Index read_index(std::string_view text, std::uint64_t segment_size);

/// The lines of a frame as records. Errors: broken.
[[nodiscard]] Result<std::vector<std::pair<bus::EntryNumber, Record>>> read_lines(std::string_view lines);
/// Describes a frame whose lines are known but for its place. Errors: broken.
[[nodiscard]] Result<Frame> describe(std::string_view lines);

}  // namespace archive
}  // namespace v1
}  // namespace echomq
