// Which segments an archive has, and where their frames are.
#include "archive/catalog.hpp"
#include "archive/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {
namespace {

using std::string_view;

constexpr string_view kData = ".jsonl.zst";
constexpr string_view kIndex = ".index";
/// Behind the index frames are looked for in pieces; one that is larger makes the piece grow.
constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

/// The next frame of a segment that no index has, empty at a torn end. `at` is moved on.
[[nodiscard]] Result<std::optional<Frame>> look_for_frame(SegmentStore& store, const Segment& segment,
                                                          std::uint64_t& at, std::string& bytes) {
  const std::uint64_t left = segment.size - at;
  for (std::uint64_t piece = kPiece; left > 0; piece *= 4) {
    const std::uint64_t wanted = std::min(piece, left);
    ECHOMQ_TRY(bytes, store.get(segment.data_name(), at, wanted));
    std::size_t size = 0;
    const auto lines = decompress(bytes, size);
    if (lines) {
      auto frame = describe(*lines);
      if (!frame)
        return std::optional<Frame>();
      bytes.resize(size);
      frame->at = at;
      frame->size = size;
      frame->xxh64 = digest_of(bytes);
      at += size;
      return std::optional<Frame>(*frame);
    }
    if (wanted == left)
      break;
  }
  return std::optional<Frame>();
}

}  // namespace

bus::EntryNumber number_of(const EventId& id) {
  return {static_cast<std::uint64_t>(id.minted_at().time_since_epoch().count()), id.value() & 0x3FFFFF};
}

Result<EventId> id_of(const bus::EntryNumber& entry) {
  const std::string text = fmt::format("{}-{}", entry.milliseconds, entry.tail);
  auto id = EventId::from_entry_id(text);
  if (!id)
    return fail(Errc::broken_state, "the entry " + text + " has no record id: it cannot be archived");
  return *id;
}

std::vector<Segment> segments_of(std::span<const SegmentStore::Object> objects) {
  std::map<EventId, Segment> segments;
  for (const auto& [name, size] : objects) {
    const string_view text = name;
    const bool data = text.ends_with(kData);
    if (!data && !text.ends_with(kIndex))
      continue;
    const auto id = EventId::parse(text.substr(0, text.size() - (data ? kData : kIndex).size()));
    if (!id)
      continue;
    Segment& segment = segments[*id];
    segment.behind = *id;
    (data ? segment.size : segment.index_size) = size;
  }
  std::vector<Segment> out;
  for (auto& [id, segment] : segments) {
    // An index alone is what a crash may leave of a segment that was begun: it says nothing.
    if (segment.size > 0)
      out.push_back(segment);
  }
  return out;
}

Result<std::vector<Segment>> list_segments(SegmentStore& store) {
  ECHOMQ_TRY(const auto objects, store.list());
  return segments_of(objects);
}

Result<SegmentFrames> load_frames(SegmentStore& store, const Segment& segment, Trust trust, Digest* digest) {
  Index index;
  if (segment.index_size > 0) {
    ECHOMQ_TRY(const std::string text, store.get(segment.index_name(), 0, segment.index_size));
    index = read_index(text, segment.size);
  }
  SegmentFrames out{
      .frames = std::move(index.frames), .seal = index.seal, .indexed = 0, .index_sound = index.sound, .end = 0};
  if (trust == Trust::nothing) {
    for (std::size_t i = 0; i < out.frames.size(); ++i) {
      const Frame& frame = out.frames[i];
      ECHOMQ_TRY(const std::string bytes, store.get(segment.data_name(), frame.at, frame.size));
      if (bytes.size() != frame.size || digest_of(bytes) != frame.xxh64) {
        out.frames.resize(i);
        out.seal.reset();
        out.index_sound = 0;
        break;
      }
      if (digest != nullptr)
        digest->add(bytes);
    }
  }
  out.indexed = out.frames.size();
  out.end = out.frames.empty() ? 0 : out.frames.back().end();
  while (!out.seal && out.end < segment.size) {
    std::string bytes;
    ECHOMQ_TRY(const auto frame, look_for_frame(store, segment, out.end, bytes));
    if (!frame || (!out.frames.empty() && frame->first <= out.frames.back().last))
      break;
    if (digest != nullptr)
      digest->add(bytes);
    out.frames.push_back(*frame);
  }
  out.end = out.frames.empty() ? 0 : out.frames.back().end();
  return out;
}

Result<std::optional<bus::EntryNumber>> newest_record(SegmentStore& store, std::span<const Segment> segments) {
  for (std::size_t i = segments.size(); i > 0; --i) {
    ECHOMQ_TRY(const SegmentFrames loaded, load_frames(store, segments[i - 1], Trust::index));
    if (!loaded.frames.empty())
      return std::optional(loaded.frames.back().last);
  }
  return std::optional<bus::EntryNumber>();
}

Result<std::string> frame_lines(SegmentStore& store, const Segment& segment, const Frame& frame) {
  ECHOMQ_TRY(const std::string bytes, store.get(segment.data_name(), frame.at, frame.size));
  std::size_t size = 0;
  auto lines = bytes.size() == frame.size && digest_of(bytes) == frame.xxh64 ? decompress(bytes, size) : std::nullopt;
  if (!lines || size != frame.size || lines->size() != frame.raw) {
    return archive::failed(ArchiveErrc::broken, fmt::format("{} does not fit its checksum from byte {} to {}",
                                                            segment.data_name(), frame.at, frame.end()));
  }
  return *std::move(lines);
}

}  // namespace archive
}  // namespace v1
}  // namespace echomq
