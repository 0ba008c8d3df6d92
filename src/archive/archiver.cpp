// Folding a stream into its archive.
//
// The order of things is what makes a crash harmless at every step: records are written, made durable, then counted as
// archived (the watermark), then trimmed. Who opens the files cuts off what was half written and counts what was
// written and not counted.
#include "echomq/archiver.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "archive/catalog.hpp"
#include "archive/errors.hpp"
#include "archive/owner.hpp"
#include "bus/checks.hpp"
#include "bus/retention.hpp"
#include "bus/state.hpp"
#include "identity/quoted.hpp"
#include "result/try.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace archive;
using bus::EntryNumber;
using bus::parts;
using bus::settings;
using std::string_view;
using Clock = detail::Clock;

/// Entries of a read: as many as make about so many bytes, by what the last read was like.
constexpr std::size_t kPageBytes = std::size_t{4} << 20;
constexpr std::size_t kMostPage = 1000;
/// Files that do not fit may be mended without a change of their size.
constexpr std::chrono::minutes kLookAgain{5};

[[nodiscard]] Result<std::vector<Entry>> read_entries(const wire::Answer& answer) {
  std::vector<Entry> out;
  if (!answer.view.is_aggregate())
    return bus::unexpected_reply("archive", answer.view);
  out.reserve(answer.view.size());
  for (const resp::View& row : answer.view.elements()) {
    Entry entry;
    auto id = row.at(0).copy_text();
    const auto number = id ? bus::parse_entry(*id) : std::nullopt;
    const resp::View fields = row.at(1);
    if (!number || !fields.is_aggregate())
      return bus::unexpected_reply("archive", row);
    entry.number = *number;
    entry.id = *std::move(id);
    entry.fields.reserve(fields.size() / 2);
    resp::Elements texts = fields.elements();
    while (!texts.done()) {
      auto name = texts.next().copy_text();
      auto value = texts.done() ? std::nullopt : texts.next().copy_text();
      if (!name || !value)
        return bus::unexpected_reply("archive", row);
      entry.fields.emplace_back(*std::move(name), *std::move(value));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

/// `[number, text or number]` of the archive's scripts.
struct Verdict {
  std::int64_t code = 0;
  std::string text;
};
[[nodiscard]] Result<Verdict> read_verdict(const wire::Answer& answer) {
  const auto code = answer.view.at(0).as_integer();
  const resp::View second = answer.view.at(1);
  if (!code)
    return bus::unexpected_reply("archive", answer.view);
  if (const auto number = second.as_integer())
    return Verdict{*code, std::to_string(*number)};
  return Verdict{*code, second.copy_text().value_or("")};
}

[[nodiscard]] std::string make_owner() {
  std::random_device dice;
  return fmt::format("{}-{:08x}{:08x}", ::getpid(), dice(), dice());
}

}  // namespace

class Archiver::Work {
 public:
  Work(Stream stream, std::shared_ptr<SegmentStore> store, ArchiverOptions options)
      : stream_(std::move(stream)),
        store_(std::move(store)),
        options_(std::move(options)),
        lease_key_(keyspace::QueueKeys(stream_.queue()).archive(stream_.name()).str()) {
    if (options_.retention)
      options_.retention->archived_only = true;
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() { stop(); }

  enum class Asked : std::uint8_t { by_hand, by_period };

  [[nodiscard]] Result<FoldReport> fold(Asked asked) {
    const std::lock_guard lock(fold_mutex_);
    FoldReport report;
    stuck_.reset();
    if (asked == Asked::by_hand)
      refused_.reset();
    auto done = pass(report);
    if (!done)
      close_files();  // whatever is in doubt is looked at again
    // An entry that cannot be archived leaves no doubt about the files.
    if (done && stuck_)
      done = std::unexpected(*stuck_);
    const std::lock_guard stats_lock(stats_mutex_);
    ++stats_.folds;
    stats_.total.folded += report.folded;
    stats_.total.trimmed += report.trimmed;
    stats_.total.bytes += report.bytes;
    stats_.total.cut += report.cut;
    stats_.failure.reset();
    if (done)
      return report;
    const bool held = done.error().code == ArchiveErrc::held;
    stats_.held += held ? 1 : 0;
    if (!held)
      count(done.error());
    return std::unexpected(done.error());
  }

  /// With stats_mutex_ held.
  void count(const Error& error) {
    ++stats_.errors;
    stats_.failure = error;
  }

  void start() {
    const std::lock_guard join_lock(join_mutex_);
    if (thread_.joinable())
      return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = false;
    }
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    const std::lock_guard join_lock(join_mutex_);
    if (thread_.joinable())
      thread_.join();
    const std::lock_guard lock(fold_mutex_);
    if (open_) {
      // What cannot be sealed now is looked at by whoever opens the archive next.
      if (const auto settled = settle_tail(true); !settled) {
        const std::lock_guard stats_lock(stats_mutex_);
        count(settled.error());
      }
    }
    close_files();
    if (!fence_.empty()) {
      // Unanswered, the lease ends by its own time.
      if (const auto given_up = ask("archive_lease", parts(lease_key_), parts(owner_, string_view("0"))).get();
          !given_up) {
        const std::lock_guard stats_lock(stats_mutex_);
        ++stats_.errors;
      }
      fence_.clear();
    }
  }
  [[nodiscard]] ArchiverStats stats() const {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  /// The segment that is written to.
  struct Tail {
    EventId behind;
    std::uint64_t size = 0;
    std::uint64_t index_size = 0;
    std::uint64_t records = 0;

    [[nodiscard]] Segment named() const { return {.behind = behind, .size = size, .index_size = index_size}; }
  };

  /// What the newest segment and the watermark were like when they were found not to fit.
  struct Refused {
    std::optional<EventId> mark;
    Segment segment;
    Clock::time_point at;
    Error why;

    [[nodiscard]] bool same(const Refused& now) const {
      return mark == now.mark && segment.behind == now.segment.behind && segment.size == now.segment.size &&
             segment.index_size == now.segment.index_size && now.at - at < kLookAgain;
    }
  };

  template <std::size_t kKeys, std::size_t kArguments>
  [[nodiscard]] Reply<Verdict> ask(string_view name, const std::array<string_view, kKeys>& keys,
                                   const std::array<string_view, kArguments>& arguments) {
    return core().eval<Verdict>(*script::find_script(name), keys, arguments, settings(Repeat::safe), read_verdict);
  }
  [[nodiscard]] client::Core& core() const { return *stream_.internal().core; }
  void step(string_view name) const {
    if (options_.on_step)
      options_.on_step(name);
  }

  [[nodiscard]] Result<void> pass(FoldReport& report) {
    ECHOMQ_CHECK(hold_lease());
    if (!open_)
      ECHOMQ_CHECK(open_files(report));
    for (;;) {
      ECHOMQ_TRY(const std::vector<Entry> entries, read_page());
      step("read");
      if (entries.empty())
        break;
      std::span<const Entry> sound = entries;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (auto id = id_of(entries[i].number); !id) {
          stuck_ = std::move(id).error();
          sound = sound.first(i);
          break;
        }
      }
      if (!sound.empty())
        ECHOMQ_CHECK(write(sound, report));
      if (stuck_)
        break;
      ECHOMQ_CHECK(hold_lease());
      if (!open_)
        return archive::failed(ArchiveErrc::held, "the lease of the archive was lost meanwhile");
    }
    ECHOMQ_CHECK(settle_tail(false));
    ECHOMQ_CHECK(check_tip());
    if (options_.retention) {
      ECHOMQ_TRY(const Retained trimmed, retain(stream_, *options_.retention).get());
      report.trimmed += trimmed.removed;
      step("trimmed");
    }
    return {};
  }

  [[nodiscard]] Result<void> hold_lease() {
    const auto now = Clock::now();
    if (!fence_.empty() && now - leased_ < options_.lease / 3)
      return {};
    const bus::Decimal lease(options_.lease.count());
    ECHOMQ_TRY(const Verdict verdict, ask("archive_lease", parts(lease_key_), parts(owner_, lease)).get());
    if (verdict.code != 1) {
      fence_.clear();
      return archive::failed(ArchiveErrc::held, fmt::format("another archiver has the stream {} for at most {}ms",
                                                            stream_.name(), verdict.text));
    }
    if (verdict.text != fence_)
      close_files();  // somebody else may have written
    fence_ = verdict.text;
    leased_ = now;
    return {};
  }

  void close_files() {
    open_ = false;
    files_lock_.reset();
  }

  // Opening: what is in the files, what of it counts, and what has to be cut off.

  [[nodiscard]] Result<void> open_files(FoldReport& report) {
    ECHOMQ_TRY(files_lock_, store_->lock());
    ECHOMQ_TRY(mark_, stream_.archived().get());
    ECHOMQ_TRY(const auto objects, store_->list());
    ECHOMQ_TRY(const bool named, check_owner(*store_, objects, whose_));
    const std::vector<Segment> segments = segments_of(objects);
    tip_.reset();
    digest_.reset();
    tail_ = {};
    unsettled_ = false;
    if (segments.empty()) {
      if (mark_ && !options_.continue_at_watermark)
        return beyond("is empty");
      tip_ = mark_;
      if (!named)
        ECHOMQ_CHECK(claim(*store_, whose_));
      ECHOMQ_CHECK(begin_segment());
      open_ = true;
      return {};
    }
    // Files that were found not to fit are not read again before they, or the watermark, have changed.
    Refused now{.mark = mark_, .segment = segments.back(), .at = Clock::now(), .why = {}};
    if (refused_ && refused_->same(now))
      return std::unexpected(refused_->why);
    refused_.reset();
    if (const auto opened = open_tail(segments.back(), report); !opened) {
      if (opened.error().code == ArchiveErrc::broken) {
        now.why = opened.error();
        refused_ = std::move(now);
      }
      return opened;
    }
    if (!named)
      ECHOMQ_CHECK(claim(*store_, whose_));
    // What was written and not counted, because its archiver ended in between, counts from now on.
    unsettled_ = mark_ != tip_;
    ECHOMQ_CHECK(settle_tail(true));
    open_ = true;
    return {};
  }

  [[nodiscard]] Result<void> open_tail(const Segment& segment, FoldReport& report) {
    ECHOMQ_TRY(SegmentFrames loaded, load_frames(*store_, segment, Trust::index));
    const bool grows = store_->appends() && !loaded.seal;
    if (grows) {
      ECHOMQ_TRY(loaded, load_frames(*store_, segment, Trust::nothing, &digest_));
    }
    if (!loaded.frames.empty()) {
      ECHOMQ_TRY(tip_, id_of(loaded.frames.back().last));
    } else if (segment.behind != EventId()) {
      tip_ = segment.behind;
    }
    if (mark_ && (!tip_ || *tip_ < *mark_))
      return beyond(tip_ ? fmt::format("ends at {}", tip_->text()) : std::string("is empty"));
    if (loaded.end != segment.size) {
      if (!grows) {
        return archive::failed(ArchiveErrc::broken, fmt::format("{} has {} bytes at its end that are no frame",
                                                                segment.data_name(), segment.size - loaded.end));
      }
      ECHOMQ_CHECK(store_->cut(segment.data_name(), loaded.end));
      report.cut += segment.size - loaded.end;
    }
    std::string index;
    std::uint64_t records = 0;
    for (const Frame& frame : loaded.frames) {
      index += index_line(frame);
      records += frame.records;
    }
    const bool whole = loaded.indexed == loaded.frames.size() && loaded.index_sound == segment.index_size;
    if (!grows) {
      // A store that takes whole objects only: each is sealed when it is made.
      if (!loaded.seal || !whole)
        ECHOMQ_CHECK(put_index(segment, std::move(index), records));
      return begin_segment();
    }
    if (!whole) {
      ECHOMQ_TRY(const bool made, store_->put(segment.index_name(), index, SegmentStore::Put::replace));
      (void)made;
    }
    tail_ = {.behind = segment.behind, .size = loaded.end, .index_size = index.size(), .records = records};
    if (options_.durability != Durability::never)
      ECHOMQ_CHECK(store_->sync(segment.data_name()));
    return {};
  }

  /// The index of a whole object, seal and all.
  [[nodiscard]] Result<void> put_index(const Segment& segment, std::string index, std::uint64_t records) {
    ECHOMQ_TRY(const std::string bytes, store_->get(segment.data_name(), 0, segment.size));
    index += seal_line({.size = bytes.size(), .records = records, .xxh64 = digest_of(bytes)});
    ECHOMQ_TRY(const bool made, store_->put(segment.index_name(), index, SegmentStore::Put::replace));
    (void)made;
    return {};
  }

  [[nodiscard]] std::unexpected<Error> beyond(string_view what) const {
    return archive::failed(
        ArchiveErrc::broken,
        fmt::format("the watermark of {} is {}, and this archive {}: what lies between is in no file here",
                    stream_.name(), mark_->text(), what));
  }

  [[nodiscard]] Result<void> begin_segment() {
    tail_ = {.behind = tip_.value_or(EventId()), .size = 0, .index_size = 0, .records = 0};
    digest_.reset();
    // Of a segment that was begun and came to nothing.
    return store_->appends() ? store_->remove(tail_.named().index_name()) : Result<void>();
  }

  // Folding.

  [[nodiscard]] Result<std::vector<Entry>> read_page() {
    const Stream::State& state = stream_.internal();
    const std::string from = tip_ ? fmt::format("({}", tip_->entry_id().text()) : "-";
    std::string to = "+";
    if (options_.settle.count() > 0) {
      const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
      to = std::to_string(std::max<std::int64_t>(0, (now - options_.settle).time_since_epoch().count()));
    }
    const bus::Decimal count(page_);
    ECHOMQ_TRY(
        std::vector<Entry> entries,
        core()
            .command<std::vector<Entry>>(parts(string_view("XRANGE"), state.key, from, to, string_view("COUNT"), count),
                                         settings(Repeat::safe), read_entries)
            .get());
    std::size_t bytes = 1;
    for (const Entry& entry : entries) {
      for (const auto& [name, value] : entry.fields)
        bytes += name.size() + value.size();
    }
    if (!entries.empty())
      page_ = std::clamp<std::size_t>(kPageBytes * entries.size() / bytes, 1, kMostPage);
    return entries;
  }

  [[nodiscard]] Result<void> write(std::span<const Entry> entries, FoldReport& report) {
    std::string bytes;
    std::vector<Frame> frames;
    std::string lines;
    for (std::size_t i = 0, first = 0; i < entries.size(); ++i) {
      append_line(lines, entries[i]);
      const std::size_t count = i + 1 - first;
      if (i + 1 < entries.size() && count < options_.frame_records && lines.size() < options_.frame_bytes)
        continue;
      const std::string frame = compress(lines, options_.level);
      frames.push_back({.at = tail_.size + bytes.size(),
                        .size = frame.size(),
                        .raw = lines.size(),
                        .records = count,
                        .first = entries[first].number,
                        .last = entries[i].number,
                        .xxh64 = digest_of(frame)});
      bytes += frame;
      lines.clear();
      first = i + 1;
    }
    ECHOMQ_TRY(const EventId tip, id_of(entries.back().number));
    std::string index;
    for (const Frame& frame : frames)
      index += index_line(frame);
    if (store_->appends()) {
      ECHOMQ_CHECK(store_->append(tail_.named().data_name(), tail_.size, bytes));
      step("written");
      ECHOMQ_CHECK(store_->append(tail_.named().index_name(), tail_.index_size, index));
      step("indexed");
      digest_.add(bytes);
      tail_.size += bytes.size();
      tail_.index_size += index.size();
      tail_.records += entries.size();
    } else {
      const Segment segment{.behind = tail_.behind, .size = bytes.size(), .index_size = 0};
      ECHOMQ_TRY(const bool made, store_->put(segment.data_name(), bytes, SegmentStore::Put::if_absent));
      if (!made)
        return archive::failed(ArchiveErrc::held, "another archiver has written " + segment.data_name());
      step("written");
      index += seal_line({.size = bytes.size(), .records = entries.size(), .xxh64 = digest_of(bytes)});
      ECHOMQ_TRY(const bool indexed, store_->put(segment.index_name(), index, SegmentStore::Put::replace));
      (void)indexed;
      step("indexed");
    }
    report.folded += entries.size();
    report.bytes += bytes.size();
    tip_ = tip;
    unsettled_ = true;
    if (!store_->appends())
      return begin_segment();
    if (tail_.size < options_.segment_bytes)
      return {};
    ECHOMQ_CHECK(settle_tail(true));
    const std::string seal = seal_line({.size = tail_.size, .records = tail_.records, .xxh64 = digest_.value()});
    ECHOMQ_CHECK(store_->append(tail_.named().index_name(), tail_.index_size, seal));
    if (options_.durability != Durability::never)
      ECHOMQ_CHECK(store_->sync(tail_.named().index_name()));
    return begin_segment();
  }

  /// What comes to a stream below what is in the files is read by nobody here, and would count as archived.
  [[nodiscard]] Result<void> check_tip() const { return tip_ ? check_top(stream_, number_of(*tip_)) : Result<void>(); }

  /// Makes durable what was written, as was chosen, and then counts it as archived.
  [[nodiscard]] Result<void> settle_tail(bool now) {
    if (!unsettled_ || !tip_)
      return {};
    if (store_->appends() && options_.durability != Durability::never && tail_.size > 0) {
      const bool due = options_.durability == Durability::each_fold || now || !synced_ ||
                       Clock::now() - *synced_ >= options_.sync_interval;
      if (!due)
        return {};
      ECHOMQ_CHECK(store_->sync(tail_.named().data_name()));
      synced_ = Clock::now();
      step("synced");
    }
    ECHOMQ_CHECK(check_tip());
    const Stream::State& state = stream_.internal();
    const string_view from = mark_ ? mark_->text() : string_view();
    ECHOMQ_TRY(
        const Verdict verdict,
        ask("archive_mark", parts(lease_key_, state.archived_key), parts(owner_, fence_, from, tip_->text())).get());
    if (verdict.code == -1)
      return archive::failed(ArchiveErrc::held, "the lease of the archive was lost");
    if (verdict.code != 1) {
      return archive::failed(ArchiveErrc::broken, fmt::format("the watermark of {} was moved by somebody else, to {}",
                                                              stream_.name(), identity::quoted(verdict.text)));
    }
    mark_ = tip_;
    unsettled_ = false;
    step("marked");
    return {};
  }

  void run() {
    std::string last_error;
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      const auto begin = Clock::now();
      const auto done = fold(Asked::by_period);
      std::string text = done || done.error().code == ArchiveErrc::held ? std::string() : done.error().message();
      if (!text.empty() && text != last_error && options_.log) {
        const LogField fields[] = {{"stream", stream_.name()}, {"text", text}};
        options_.log(LogLevel::warning, "stream.archive_failed", fields);
      }
      last_error = std::move(text);
      lock.lock();
      changed_.wait_until(lock, begin + options_.period, [this] { return stopping_; });
    }
  }

  const Stream stream_;
  const std::shared_ptr<SegmentStore> store_;
  ArchiverOptions options_;
  const std::string lease_key_;
  const std::string owner_ = make_owner();
  const std::string whose_ = owner_text(stream_.queue().text(), stream_.name());

  std::mutex fold_mutex_;
  // Guarded by fold_mutex_.
  std::string fence_;  ///< empty while the lease is not held
  Clock::time_point leased_{};
  bool open_ = false;
  std::shared_ptr<void> files_lock_;
  Tail tail_;
  Digest digest_;                ///< of the tail
  std::optional<EventId> tip_;   ///< the newest record in the files
  std::optional<EventId> mark_;  ///< the watermark, as it was last seen
  bool unsettled_ = false;       ///< the tip is beyond the watermark
  std::optional<Clock::time_point> synced_;
  std::size_t page_ = 100;
  std::optional<Error> stuck_;      ///< of this fold: an entry that cannot be archived
  std::optional<Refused> refused_;  ///< the files do not fit

  mutable std::mutex stats_mutex_;
  ArchiverStats stats_;  // guarded by stats_mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::mutex join_mutex_;
  std::thread thread_;
};

Archiver::Archiver(std::unique_ptr<Work> work) noexcept : work_(std::move(work)) {}
Archiver::Archiver(Archiver&&) noexcept = default;
Archiver& Archiver::operator=(Archiver&&) noexcept = default;
Archiver::~Archiver() = default;

Result<Archiver> Archiver::make(const Stream& stream, std::shared_ptr<SegmentStore> store, ArchiverOptions options) {
  if (!store)
    return fail(Errc::invalid_argument, "store must not be null");
  if (options.retention)
    ECHOMQ_CHECK(bus::check_policy(*options.retention));
  const auto at_least = [](string_view name, Milliseconds value, Milliseconds least) -> Result<void> {
    if (value >= least)
      return {};
    return fail(Errc::invalid_argument,
                fmt::format("{} must be {}ms or more, got {}ms", name, least.count(), value.count()));
  };
  ECHOMQ_CHECK(at_least("period", options.period, Milliseconds(10)));
  ECHOMQ_CHECK(at_least("settle", options.settle, Milliseconds(0)));
  ECHOMQ_CHECK(at_least("sync_interval", options.sync_interval, Milliseconds(1)));
  ECHOMQ_CHECK(at_least("lease", options.lease, Milliseconds(1000)));
  // Who stands by takes a lease that ends later for a mistake of the clock.
  if (options.lease > std::chrono::hours(1)) {
    return fail(Errc::invalid_argument,
                fmt::format("lease must be 3600000ms or less, got {}ms", options.lease.count()));
  }
  ECHOMQ_CHECK(bus::check_count("frame_records", options.frame_records));
  ECHOMQ_CHECK(bus::check_count("frame_bytes", options.frame_bytes));
  ECHOMQ_CHECK(bus::check_count("segment_bytes", options.segment_bytes));
  if (options.level < 1 || options.level > 19)
    return fail(Errc::invalid_argument, fmt::format("level must be 1 to 19, got {}", options.level));
  return Archiver(std::make_unique<Work>(stream, std::move(store), std::move(options)));
}

Result<FoldReport> Archiver::fold() { return work_->fold(Work::Asked::by_hand); }
void Archiver::start() { work_->start(); }
void Archiver::stop() { work_->stop(); }
ArchiverStats Archiver::stats() const { return work_->stats(); }

}  // namespace v1
}  // namespace echomq
