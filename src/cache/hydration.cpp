// Filling a cache table from a stream.
#include "echomq/hydration.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using std::chrono::milliseconds;

/// An entry id as two numbers; {0, 0} for the empty text.
[[nodiscard]] std::pair<std::uint64_t, std::uint64_t> parts_of(std::string_view entry) {
  std::pair<std::uint64_t, std::uint64_t> out;
  const char* const end = entry.data() + entry.size();
  const char* const dash = std::from_chars(entry.data(), end, out.first).ptr;
  if (dash != end)
    std::from_chars(dash + 1, end, out.second);
  return out;
}

[[nodiscard]] bool is_entry(std::string_view text) {
  const auto [ms, tail] = parts_of(text);
  return text == fmt::format("{}-{}", ms, tail);
}

}  // namespace

struct CacheHydration::State {
  State(const ByteCache& its_cache, Stream its_stream, HydrationOptions its_options)
      : cache(its_cache), stream(std::move(its_stream)), options(std::move(its_options)) {
    stats.position = options.behind;
  }

  void run() {
    (void)pthread_setname_np(pthread_self(), "echomq-hydrate");
    const std::string first = options.since ? minid_floor(*options.since).value_or("-") : std::string("-");
    std::string position = options.behind;
    for (;;) {
      // From the last one on, itself included: whether it is still there tells whether those behind it are.
      auto asked = stream.info();
      Result<Page> page = stream.read(position.empty() ? first : position, "+", {.count = options.page + 1}).get();
      const Result<StreamInfo> info = asked.get();
      Result<void> placed;
      if (!page || !info) {
        placed = std::unexpected<Error>(page ? info.error() : page.error());
      } else {
        std::vector<Record>& records = page->records;
        const bool there = !records.empty() && records.front().entry == position;
        if (there) {
          records.erase(records.begin());
        } else if (!position.empty()) {
          look_for_gap(*info, position);
        }
        look_for_holes(*info, position);
        const std::size_t good = sound(records);
        placed = good < records.size() ? stop_at(records, good) : place(records);
        if (placed && !records.empty())
          position = records.back().entry;
        read_in_all = info->top == position ? std::optional(info->appended) : std::nullopt;
      }
      const bool all = placed && !page->rest;
      std::unique_lock lock(mutex);
      if (placed) {
        stats.position = position;
        note_top(*info, all);
      } else {
        if (!bad) {
          ++stats.failures;
          stats.last_failure = placed.error().message();
        }
        if (bad || placed.error().is(Errc::client_closed))
          ended = placed;
      }
      if (all) {
        ++rounds;
        if (options.ends == HydrationEnds::at_top)
          ended = Result<void>();
      }
      changed.notify_all();
      if (ended)
        return;
      if (stopping || ((all || !placed) && changed.wait_for(lock, options.poll, [&] { return stopping; }))) {
        ended = Result<void>();
        changed.notify_all();
        return;
      }
    }
  }

  /// Why a record is no row of this table; empty when it is.
  [[nodiscard]] std::string fault(const Record& record) const {
    const std::string* key = record.find(options.key_field);
    if (key == nullptr)
      return fmt::format("no field '{}'", options.key_field);
    if (record.find(options.value_field) == nullptr)
      return fmt::format("no field '{}'", options.value_field);
    if (!record.id)
      return "no record id";
    const auto id = BrandedId::parse(*key);
    if (!id)
      return fmt::format("'{}' is no id", options.key_field);
    if (id->brand() != cache.options().kind)
      return fmt::format("{} is none of kind {}", id->text(), cache.options().kind);
    return {};
  }
  /// How many records from the first on can be taken: all, unless a bad one is to stop it.
  [[nodiscard]] std::size_t sound(const std::vector<Record>& records) const {
    if (options.bad == BadRecord::skip)
      return records.size();
    const auto at = std::ranges::find_if(records, [&](const Record& record) { return !fault(record).empty(); });
    return static_cast<std::size_t>(at - records.begin());
  }
  /// Places what came before a bad record, as it would be one by one.
  [[nodiscard]] Result<void> stop_at(const std::vector<Record>& records, std::size_t at) {
    const std::vector<Record> before(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(at));
    ECHOMQ_CHECK(place(before));
    bad = true;
    if (!before.empty()) {
      const std::lock_guard lock(mutex);
      stats.position = before.back().entry;
    }
    return fail(Errc::invalid_argument, fmt::format("entry {} of the stream is no row of this table: {}",
                                                    records[at].entry, fault(records[at])));
  }

  /// Of each id the newest record of the page, all in one call.
  [[nodiscard]] Result<void> place(const std::vector<Record>& records) {
    std::vector<CachePutItem> items;
    std::unordered_map<BrandedId, std::size_t> at;
    std::uint64_t folded = 0;
    std::uint64_t skipped = 0;
    std::string last_skipped;
    for (const Record& record : records) {
      if (const std::string why = fault(record); !why.empty()) {
        ++skipped;
        last_skipped = fmt::format("{}: {}", record.entry, why);
        continue;
      }
      const BrandedId id = BrandedId::parse(*record.find(options.key_field)).value();
      const CachePutItem item{.id = id, .value = *record.find(options.value_field), .version = *record.id};
      const auto [there, fresh] = at.try_emplace(id, items.size());
      if (fresh) {
        items.push_back(item);
      } else {
        // Later on the stream is not always newer: peers may give a record any id.
        if (is_newer(*item.version, *items[there->second].version))
          items[there->second] = item;
        ++folded;
      }
    }
    ECHOMQ_TRY(const auto outcomes, cache.put_many(items).get());
    std::uint64_t placed = 0;
    for (const Result<CachePut>& outcome : outcomes) {
      if (!outcome)
        return std::unexpected<Error>(outcome.error());
      placed += *outcome == CachePut::stored ? 1 : 0;
    }
    const std::lock_guard lock(mutex);
    stats.placed += placed;
    stats.superseded += outcomes.size() - placed;
    stats.records += records.size();
    stats.folded += folded;
    stats.skipped += skipped;
    if (skipped > 0)
      stats.last_skipped = std::move(last_skipped);
    return {};
  }

  /// The record at the position is gone, by a trim of the oldest most likely. When all had been read and it is known how
  /// many that were, more removed ones than that tell; else the next ones count as gone with it.
  void look_for_gap(const StreamInfo& info, const std::string& position) {
    if (gap_behind == position || info.top == position)
      return;
    if (read_in_all && info.appended - std::min(info.length, info.appended) <= *read_in_all)
      return;
    gap_behind = position;
    const std::lock_guard lock(mutex);
    ++stats.gaps;
  }
  /// Single records that were deleted before they were read.
  void look_for_holes(const StreamInfo& info, const std::string& position) {
    const auto deleted = parts_of(info.max_deleted);
    if (position.empty() || deleted <= parts_of(position) || deleted <= last_hole)
      return;
    last_hole = deleted;
    const std::lock_guard lock(mutex);
    ++stats.gaps;
  }
  /// With the mutex. What was asked before the read may be behind what it gave.
  void note_top(const StreamInfo& info, bool all) {
    const auto here = parts_of(stats.position);
    const auto top = std::max(parts_of(info.top), here);
    stats.top = top == here ? stats.position : info.top;
    stats.lag = top == here || (all && info.length == 0)
                    ? milliseconds(0)
                    : milliseconds(static_cast<std::int64_t>(top.first - std::min(here.first, top.first)));
  }

  const ByteCache& cache;
  const Stream stream;
  const HydrationOptions options;
  bool bad = false;                                     // this and the next three are the thread's
  std::pair<std::uint64_t, std::uint64_t> last_hole{};  // the highest of a deleted record that was told of
  std::string gap_behind;                               // where the last gap was told of
  std::optional<std::uint64_t> read_in_all;             // with how many appended the position was the top
  std::mutex mutex;
  std::condition_variable changed;
  HydrationStats stats;               // written by the thread, guarded by mutex
  std::uint64_t rounds = 0;           // guarded by mutex: times that it had all
  bool stopping = false;              // guarded by mutex
  std::optional<Result<void>> ended;  // guarded by mutex
  std::thread thread;
};

Result<CacheHydration> CacheHydration::start(const ByteCache& cache, const Stream& stream, HydrationOptions options) {
  if (options.key_field.empty() || options.value_field.empty())
    return fail(Errc::invalid_argument, "key_field and value_field must not be empty");
  if (!options.behind.empty() && options.since)
    return fail(Errc::invalid_argument, "behind and since exclude each other");
  if (!options.behind.empty() && !is_entry(options.behind))
    return fail(Errc::invalid_argument, "behind must be an entry id <ms>-<tail>, got '" + options.behind + "'");
  if (options.since)
    ECHOMQ_CHECK(minid_floor(*options.since));
  if (options.page < 1 || options.page > 10'000)
    return fail(Errc::invalid_argument, fmt::format("page must be 1 to 10000, got {}", options.page));
  if (options.poll < milliseconds(1))
    return fail(Errc::invalid_argument, fmt::format("poll must be positive, got {}ms", options.poll.count()));
  auto state = std::make_shared<State>(cache, stream, std::move(options));
  state->thread = std::thread([raw = state.get()] { raw->run(); });
  return CacheHydration(std::move(state));
}

CacheHydration::CacheHydration(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
CacheHydration::CacheHydration(CacheHydration&&) noexcept = default;
CacheHydration& CacheHydration::operator=(CacheHydration&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
CacheHydration::~CacheHydration() {
  if (state_)
    stop();
}

void CacheHydration::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    thread.swap(state_->thread);
  }
  if (thread.joinable())
    thread.join();
}

Result<HydrationStats> CacheHydration::wait(milliseconds limit) const {
  std::unique_lock lock(state_->mutex);
  // The round that is under way may have read before what is meant here was appended.
  const std::uint64_t enough = state_->rounds + 2;
  const bool done = state_->changed.wait_for(lock, limit, [&] {
    return state_->ended.has_value() || (state_->options.ends == HydrationEnds::never && state_->rounds >= enough);
  });
  if (!done) {
    return fail(Errc::timeout,
                fmt::format("the hydration is at '{}' of '{}'{}{}", state_->stats.position, state_->stats.top,
                            state_->stats.failures > 0 ? "; last failure: " : "", state_->stats.last_failure));
  }
  if (state_->ended && !*state_->ended)
    return std::unexpected<Error>(state_->ended->error());
  return state_->stats;
}

HydrationStats CacheHydration::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace v1
}  // namespace echomq
