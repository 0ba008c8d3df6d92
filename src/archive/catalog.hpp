// Which segments an archive has, and where their frames are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "archive/frame.hpp"
#include "echomq/archive.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

/// A file of frames. Its name is the record id behind which it begins: so names sort as records do, each segment
/// follows from the last record of the one before it, and two archivers that would write the same records want the same
/// name.
struct Segment {
  EventId behind;
  std::uint64_t size = 0;
  std::uint64_t index_size = 0;  ///< 0: it has none

  [[nodiscard]] std::string data_name() const { return std::string(behind.text()) + ".jsonl.zst"; }
  [[nodiscard]] std::string index_name() const { return std::string(behind.text()) + ".index"; }
};

/// In order. Objects of other names are passed over.
[[nodiscard]] std::vector<Segment> segments_of(std::span<const SegmentStore::Object> objects);
[[nodiscard]] Result<std::vector<Segment>> list_segments(SegmentStore& store);

struct SegmentFrames {
  std::vector<Frame> frames;
  std::optional<Seal> seal;
  std::uint64_t indexed = 0;      ///< frames that the index has; the rest was found by looking
  std::uint64_t index_sound = 0;  ///< bytes of the index that count; 0 when frames of it did not fit
  std::uint64_t end = 0;          ///< of the last whole frame; what is behind it is torn
};

enum class Trust : std::uint8_t {
  index,    ///< what the index says is believed; frames behind it are looked for
  nothing,  ///< every frame is read and compared with its checksum; the first that does not fit ends the segment
};
/// `digest`, when not null, is given all bytes of the frames that count.
[[nodiscard]] Result<SegmentFrames> load_frames(SegmentStore& store, const Segment& segment, Trust trust,
                                                Digest* digest = nullptr);

/// The newest record that stands in whole frames; empty when there is none.
[[nodiscard]] Result<std::optional<bus::EntryNumber>> newest_record(SegmentStore& store,
                                                                    std::span<const Segment> segments);

/// The lines of one frame. Errors: broken when they do not fit the checksum.
[[nodiscard]] Result<std::string> frame_lines(SegmentStore& store, const Segment& segment, const Frame& frame);

/// Entry id of a record.
[[nodiscard]] bus::EntryNumber number_of(const EventId& id);
/// The record id of an entry. Errors: broken_state when it has none.
[[nodiscard]] Result<EventId> id_of(const bus::EntryNumber& entry);

}  // namespace archive
}  // namespace v1
}  // namespace echomq
