// Reading an archive, frame by frame, and checking all of it.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "archive/catalog.hpp"
#include "archive/errors.hpp"
#include "archive/range.hpp"
#include "bus/checks.hpp"
#include "echomq/archive.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace archive;
using bus::EntryNumber;
using std::string_view;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
/// Bytes of a segment that are read at once when all of it is checked.
constexpr std::uint64_t kCheckedPiece = std::uint64_t{4} << 20;

}  // namespace

namespace archive {

EntryNumber next_entry(EntryNumber entry) {
  if (entry.tail != kMax)
    return {entry.milliseconds, entry.tail + 1};
  return {entry.milliseconds + 1, 0};
}

Result<std::optional<Span>> span_of(const HistoryRange& range) {
  ECHOMQ_CHECK(bus::check_bound("from", range.from));
  ECHOMQ_CHECK(bus::check_bound("to", range.to));
  const auto read = [](string_view text, bool low) -> std::optional<EntryNumber> {
    const bool exclusive = text.starts_with("(");
    if (exclusive)
      text.remove_prefix(1);
    if (text == "-")
      return EntryNumber{0, 0};
    if (text == "+")
      return EntryNumber{kMax, kMax};
    EntryNumber entry = *bus::parse_entry(text);
    // As the server reads it: a bare millisecond is its first entry as a lower bound, its last as an upper one.
    if (!low && text.find('-') == string_view::npos)
      entry.tail = kMax;
    if (!exclusive)
      return entry;
    if (low)
      return entry == EntryNumber{kMax, kMax} ? std::nullopt : std::optional(next_entry(entry));
    if (entry == EntryNumber{0, 0})
      return std::nullopt;
    return entry.tail > 0 ? EntryNumber{entry.milliseconds, entry.tail - 1} : EntryNumber{entry.milliseconds - 1, kMax};
  };
  const auto low = read(range.from, true);
  const auto high = read(range.to, false);
  if (!low || !high || *high < *low)
    return std::optional<Span>();
  return std::optional<Span>(Span{*low, *high});
}

}  // namespace archive

Result<HistoryRange> HistoryRange::between(std::optional<Instant> begin, std::optional<Instant> end) {
  HistoryRange range;
  if (begin) {
    ECHOMQ_TRY(range.from, minid_floor(*begin));
  }
  if (end) {
    ECHOMQ_CHECK(bus::check_instant("end", *end));
    range.to = fmt::format("{}", end->time_since_epoch().count());
  }
  return range;
}

struct ArchiveReader::State {
  std::shared_ptr<SegmentStore> store;
  std::optional<Span> span;
  Direction direction = Direction::oldest_first;
  std::vector<Segment> segments;
  /// What is still to be read of them: [begin, end).
  std::size_t begin = 0;
  std::size_t end = 0;
  std::optional<EventId> doubted;   ///< the segment for whose sake all were listed again
  std::optional<std::string> hole;  ///< behind what was read
  std::optional<Segment> segment;
  std::deque<Frame> frames;  ///< of `segment`, those still to be read
  std::deque<std::pair<EntryNumber, Record>> records;

  [[nodiscard]] bool forward() const noexcept { return direction == Direction::oldest_first; }

  /// Chooses the segments that the span can touch by their names alone.
  [[nodiscard]] Result<void> choose() {
    ECHOMQ_TRY(segments, list_segments(*store));
    begin = end = 0;
    if (!span)
      return {};
    const auto begins_behind = [](const EntryNumber& entry, const Segment& one) {
      return entry < number_of(one.behind);
    };
    const auto first = std::upper_bound(segments.begin(), segments.end(), span->low, begins_behind);
    const auto last = std::upper_bound(segments.begin(), segments.end(), span->high, begins_behind);
    begin = static_cast<std::size_t>(first - segments.begin());
    // A record may be the last one of the segment before: the one that begins at `low` begins behind it.
    begin -= std::min<std::size_t>(begin, 2);
    end = static_cast<std::size_t>(last - segments.begin());
    return {};
  }

  [[nodiscard]] Result<bool> next_segment() {
    if (hole)
      return archive::failed(ArchiveErrc::broken, *hole);
    while (begin < end) {
      const std::size_t at = forward() ? begin : end - 1;
      ECHOMQ_TRY(const SegmentFrames loaded, load_frames(*store, segments[at], Trust::index));
      hole = hole_behind(at, loaded);
      if (hole && doubted != segments[at].behind) {
        // A list is not of one moment: the file may have grown, and the next one begun, while it was made.
        doubted = segments[at].behind;
        hole.reset();
        if (!forward())
          span->high = std::min(span->high, number_of(segments[at + 1].behind));
        ECHOMQ_CHECK(choose());
        continue;
      }
      if (hole && !forward())
        return archive::failed(ArchiveErrc::broken, *hole);
      segment = segments[at];
      forward() ? ++begin : --end;
      for (const Frame& frame : loaded.frames) {
        if (span->low <= frame.last && frame.first <= span->high)
          frames.push_back(frame);
      }
      return true;
    }
    return false;
  }
  /// What is missing between a segment and the next one, where the span wants it.
  [[nodiscard]] std::optional<std::string> hole_behind(std::size_t at, const SegmentFrames& loaded) const {
    if (at + 1 == segments.size())
      return std::nullopt;
    const Segment& one = segments[at];
    const EntryNumber next = number_of(segments[at + 1].behind);
    const EntryNumber last = loaded.frames.empty() ? number_of(one.behind) : loaded.frames.back().last;
    if (next < span->low || span->high <= last || (last == next && loaded.end == one.size))
      return std::nullopt;
    return fmt::format("{} ends at {}, and the next file begins behind {}: what lies between is missing or damaged",
                       one.data_name(), bus::entry_text(last), bus::entry_text(next));
  }
  [[nodiscard]] Result<void> next_frame() {
    const Frame frame = forward() ? frames.front() : frames.back();
    forward() ? frames.pop_front() : frames.pop_back();
    ECHOMQ_TRY(const std::string lines, frame_lines(*store, *segment, frame));
    ECHOMQ_TRY(auto all, read_lines(lines));
    for (auto& one : all) {
      if (span->low <= one.first && one.first <= span->high)
        records.push_back(std::move(one));
    }
    return {};
  }
};

ArchiveReader::ArchiveReader(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ArchiveReader::ArchiveReader(ArchiveReader&&) noexcept = default;
ArchiveReader& ArchiveReader::operator=(ArchiveReader&&) noexcept = default;
ArchiveReader::~ArchiveReader() = default;

Result<ArchiveReader> ArchiveReader::open(std::shared_ptr<SegmentStore> store, const HistoryRange& range) {
  if (!store)
    return fail(Errc::invalid_argument, "store must not be null");
  auto state = std::make_unique<State>();
  state->store = std::move(store);
  state->direction = range.direction;
  ECHOMQ_TRY(state->span, span_of(range));
  ECHOMQ_CHECK(state->choose());
  return ArchiveReader(std::move(state));
}

Result<std::optional<Record>> ArchiveReader::next() {
  State& state = *state_;
  while (state.records.empty()) {
    if (state.frames.empty()) {
      ECHOMQ_TRY(const bool more, state.next_segment());
      if (!more)
        return std::optional<Record>();
      continue;
    }
    ECHOMQ_CHECK(state.next_frame());
  }
  const bool forward = state.forward();
  auto& [number, record] = forward ? state.records.front() : state.records.back();
  std::optional<Record> out(std::move(record));
  // What was read is behind the reader, whatever the archive should say twice.
  if (forward) {
    state.span->low = next_entry(number);
    state.records.pop_front();
  } else {
    state.records.pop_back();
  }
  return out;
}

Result<ArchiveReport> verify_archive(SegmentStore& store) {
  ArchiveReport report;
  ECHOMQ_TRY(const auto segments, list_segments(store));
  std::optional<EntryNumber> last;
  for (const Segment& segment : segments) {
    const std::string name = segment.data_name();
    const auto fault = [&](string_view what) { report.faults.push_back(fmt::format("{}: {}", name, what)); };
    if (last && number_of(segment.behind) != *last) {
      fault(fmt::format("begins behind {}, where {} is the last record before it",
                        bus::entry_text(number_of(segment.behind)), bus::entry_text(*last)));
    }
    ECHOMQ_TRY(const SegmentFrames loaded, load_frames(store, segment, Trust::index));
    ++report.segments;
    report.bytes += segment.size;
    std::uint64_t records = 0;
    for (const Frame& frame : loaded.frames) {
      const auto lines = frame_lines(store, segment, frame);
      if (!lines) {
        report.faults.push_back(lines.error().text);
        continue;
      }
      const auto described = describe(*lines);
      if (!described || described->first != frame.first || described->last != frame.last ||
          described->records != frame.records) {
        fault(fmt::format("what is in the frame at byte {} is not what the index says", frame.at));
        continue;
      }
      if (last && frame.first <= *last)
        fault(fmt::format("the frame at byte {} repeats records", frame.at));
      if (report.first.empty())
        report.first = bus::entry_text(frame.first);
      report.last = bus::entry_text(frame.last);
      last = frame.last;
      ++report.frames;
      records += frame.records;
      report.raw_bytes += frame.raw;
    }
    report.records += records;
    if (loaded.end != segment.size)
      fault(fmt::format("{} bytes at its end are no frame", segment.size - loaded.end));
    if (!loaded.seal)
      continue;
    if (loaded.seal->records != records)
      fault(fmt::format("has {} records, sealed with {}", records, loaded.seal->records));
    Digest digest;
    for (std::uint64_t at = 0; at < segment.size; at += kCheckedPiece) {
      ECHOMQ_TRY(const std::string bytes, store.get(name, at, std::min(kCheckedPiece, segment.size - at)));
      digest.add(bytes);
    }
    if (digest.value() != loaded.seal->xxh64)
      fault("does not fit the checksum that it was sealed with");
  }
  return report;
}

}  // namespace v1
}  // namespace echomq
