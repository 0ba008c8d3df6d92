// The archive and the live stream, read as one.
#include <fmt/format.h>

#include <deque>
#include <limits>
#include <utility>

#include "archive/catalog.hpp"
#include "archive/errors.hpp"
#include "archive/owner.hpp"
#include "archive/range.hpp"
#include "bus/checks.hpp"
#include "echomq/archive.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace archive;
using bus::EntryNumber;

constexpr std::uint32_t kPage = 1000;

}  // namespace

struct HistoryReader::State {
  State(Stream of, std::shared_ptr<SegmentStore> in) : stream(std::move(of)), store(std::move(in)) {}

  Stream stream;
  std::shared_ptr<SegmentStore> store;
  Direction direction = Direction::oldest_first;
  /// What is still to be read.
  std::optional<Span> span;
  std::optional<ArchiveReader> archive;
  /// Forward: where the archive's part ends, and whether that very record was met.
  EntryNumber watermark;
  bool met = false;
  /// The newest record in the files when they were first looked at: a watermark may be missing, or older than they are.
  std::optional<EntryNumber> tip;
  bool looked = false;
  std::deque<Record> records;
  bool live_done = false;

  [[nodiscard]] Result<void> open_archive(Span part) {
    ECHOMQ_TRY(archive, ArchiveReader::open(store, {.from = bus::entry_text(part.low),
                                                    .to = bus::entry_text(part.high),
                                                    .direction = direction}));
    return {};
  }

  /// A page of the live stream, then the watermark. In this order: a record that the page lacks because it was trimmed
  /// was archived, and counted so, before the page was read.
  [[nodiscard]] Result<void> read_live() {
    ECHOMQ_TRY(
        Page page,
        stream.read(bus::entry_text(span->low), bus::entry_text(span->high), {.count = kPage, .direction = direction})
            .get());
    std::optional<EntryNumber> mark;
    if (store) {
      ECHOMQ_TRY(const std::optional<EventId> counted, stream.archived().get());
      if (counted)
        mark = number_of(*counted);
      if (!looked)
        ECHOMQ_CHECK(look(mark));
      mark = std::max(mark, tip);
    }
    return direction == Direction::oldest_first ? take_forward(std::move(page), mark)
                                                : take_backward(std::move(page), mark);
  }

  /// Whether the files and the stream belong together.
  [[nodiscard]] Result<void> look(std::optional<EntryNumber> mark) {
    ECHOMQ_TRY(const auto objects, store->list());
    ECHOMQ_TRY(const bool named, check_owner(*store, objects, owner_text(stream.queue().text(), stream.name())));
    (void)named;
    ECHOMQ_TRY(tip, newest_record(*store, segments_of(objects)));
    if (const auto newest = std::max(mark, tip))
      ECHOMQ_CHECK(check_top(stream, *newest));
    looked = true;
    return {};
  }

  [[nodiscard]] Result<void> take_forward(Page page, std::optional<EntryNumber> mark) {
    if (mark && *mark >= span->low) {
      watermark = *mark;
      met = watermark > span->high;
      return open_archive({span->low, std::min(span->high, watermark)});
    }
    live_done = !page.rest;
    keep(std::move(page.records), {0, 0});
    return {};
  }

  [[nodiscard]] Result<void> take_backward(Page page, std::optional<EntryNumber> mark) {
    if (!mark || *mark < span->low) {
      live_done = !page.rest;
      keep(std::move(page.records), {0, 0});
      return {};
    }
    watermark = *mark;
    const bool reaches = !page.rest || *bus::parse_entry(page.records.back().entry) <= watermark;
    keep(std::move(page.records), next_entry(watermark));
    if (!reaches)
      return {};
    live_done = true;
    const Span part{span->low, std::min(span->high, watermark)};
    met = watermark > span->high;
    return part.high < part.low ? Result<void>() : open_archive(part);
  }

  /// Keeps those that are not below `least`, and goes on behind them.
  void keep(std::vector<Record> page, EntryNumber least) {
    for (Record& record : page) {
      const EntryNumber number = *bus::parse_entry(record.entry);
      if (number < least)
        continue;
      move_past(number);
      records.push_back(std::move(record));
    }
  }
  void move_past(EntryNumber number) {
    if (direction == Direction::oldest_first) {
      span->low = next_entry(number);
    } else {
      span->high = number.tail > 0 ? EntryNumber{number.milliseconds, number.tail - 1}
                                   : EntryNumber{number.milliseconds - 1, std::numeric_limits<std::uint64_t>::max()};
    }
  }

  [[nodiscard]] Result<std::optional<Record>> next_archived() {
    ECHOMQ_TRY(std::optional<Record> record, archive->next());
    if (record) {
      const EntryNumber number = *bus::parse_entry(record->entry);
      met = met || number == watermark;
      move_past(number);
      return record;
    }
    archive.reset();
    if (!met) {
      return archive::failed(ArchiveErrc::broken,
                             fmt::format("records up to {} count as archived, and this archive does not have that one",
                                         bus::entry_text(watermark)));
    }
    if (direction == Direction::newest_first) {
      span.reset();
    } else if (watermark >= span->high) {
      span.reset();
    } else {
      span->low = std::max(span->low, next_entry(watermark));
    }
    return record;
  }
};

HistoryReader::HistoryReader(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
HistoryReader::HistoryReader(HistoryReader&&) noexcept = default;
HistoryReader& HistoryReader::operator=(HistoryReader&&) noexcept = default;
HistoryReader::~HistoryReader() = default;

Result<HistoryReader> HistoryReader::open(const Stream& stream, std::shared_ptr<SegmentStore> store,
                                          const HistoryRange& range) {
  auto state = std::make_unique<State>(stream, std::move(store));
  state->direction = range.direction;
  ECHOMQ_TRY(state->span, span_of(range));
  return HistoryReader(std::move(state));
}

Result<std::optional<Record>> HistoryReader::next() {
  State& state = *state_;
  for (;;) {
    if (!state.records.empty()) {
      std::optional<Record> out(std::move(state.records.front()));
      state.records.pop_front();
      return out;
    }
    if (!state.span || state.span->high < state.span->low)
      return std::optional<Record>();
    if (state.archive) {
      ECHOMQ_TRY(std::optional<Record> record, state.next_archived());
      if (record)
        return record;
      continue;
    }
    if (state.live_done)
      return std::optional<Record>();
    ECHOMQ_CHECK(state.read_live());
  }
}

}  // namespace v1
}  // namespace echomq
