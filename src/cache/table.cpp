// A cache table: opening, looking, hearing, closing.
#include "cache/table.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "cache/epoch.hpp"
#include "cache/id_bytes.hpp"
#include "cache/l1_row.hpp"
#include "client/live_core.hpp"
#include "identity/quoted.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongest = std::chrono::hours(20 * 24);
/// A version may be much older than what it says: a longer lag is none of hearing.
constexpr std::chrono::nanoseconds kLongestLag = std::chrono::hours(24);
constexpr std::size_t kMostShards = 64;
constexpr std::size_t kSmallestShard = std::size_t{256} << 10;

/// The coarse clock costs a fifth of the precise one; it lags by a tick of the kernel, for which `kClockLag` makes up.
[[nodiscard]] std::uint64_t coarse_ms() noexcept {
  timespec at;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
  return static_cast<std::uint64_t>(at.tv_sec) * 1000 + static_cast<std::uint64_t>(at.tv_nsec) / 1'000'000;
}

[[nodiscard]] Result<void> check(const CacheOptions& options) {
  if (options.kind.size() != 3 || !BrandedId::encode(options.kind, 0))
    return fail(Errc::invalid_argument, "kind must be three letters A to Z, got " + identity::quoted(options.kind));
  if (options.ttl < milliseconds(1) || options.ttl > kLongest)
    return fail(Errc::invalid_argument, fmt::format("ttl must be 1 ms to 20 days, got {}ms", options.ttl.count()));
  if (!(options.jitter >= 0.0 && options.jitter <= 0.5))
    return fail(Errc::invalid_argument, fmt::format("jitter must be 0 to 0.5, got {}", options.jitter));
  if (options.negative_ttl < milliseconds(0) || options.negative_ttl > kLongest) {
    return fail(Errc::invalid_argument,
                fmt::format("negative_ttl must be 0 to 20 days, got {}ms", options.negative_ttl.count()));
  }
  if (options.l2_deadline < milliseconds(1) || options.l2_deadline > kLongest) {
    return fail(Errc::invalid_argument,
                fmt::format("l2_deadline must be 1 ms to 20 days, got {}ms", options.l2_deadline.count()));
  }
  if (options.stale < milliseconds(0) || options.stale > kLongest)
    return fail(Errc::invalid_argument, fmt::format("stale must be 0 to 20 days, got {}ms", options.stale.count()));
  if (options.serve_stale != ServeStale::never && options.stale == milliseconds(0))
    return fail(Errc::invalid_argument, "stale must be positive where serve_stale is not never, got 0ms");
  if (!(options.refresh_ahead >= 0.0 && options.refresh_ahead <= 0.9)) {
    return fail(Errc::invalid_argument, fmt::format("refresh_ahead must be 0 to 0.9, got {}", options.refresh_ahead));
  }
  for (const auto& [name, wait] :
       {std::pair("load_deadline", options.load_deadline), std::pair("load_backoff", options.load_backoff),
        std::pair("load_backoff_most", options.load_backoff_most)}) {
    if (wait < milliseconds(0) || wait > kLongest)
      return fail(Errc::invalid_argument, fmt::format("{} must be 0 to 20 days, got {}ms", name, wait.count()));
  }
  if (options.load_lease != milliseconds(0) &&
      (options.load_lease < milliseconds(30) || options.load_lease > kLongest)) {
    return fail(Errc::invalid_argument,
                fmt::format("load_lease must be 0 or 30 ms to 20 days, got {}ms", options.load_lease.count()));
  }
  if (options.report_every != milliseconds(0) &&
      (options.report_every < milliseconds(100) || options.report_every > std::chrono::hours(24))) {
    return fail(Errc::invalid_argument,
                fmt::format("report_every must be 0 or 100 ms to a day, got {}ms", options.report_every.count()));
  }
  if (options.load_threads < 1 || options.load_threads > 256)
    return fail(Errc::invalid_argument, fmt::format("load_threads must be 1 to 256, got {}", options.load_threads));
  return {};
}

}  // namespace

Result<std::shared_ptr<Table>> Table::open(const Client& client, CacheOptions options, LoadBytes load,
                                           LoadBytesAsync load_async) {
  ECHOMQ_CHECK(check(options));
  if (options.refresh_ahead > 0 && !load && !load_async)
    return fail(Errc::invalid_argument, "refresh_ahead needs a loader");
  if (client.core()->closed())
    return fail(Errc::client_closed, "the client is closed", Repeat::safe);
  auto table = std::make_shared<Table>(client.core(), std::move(options), std::move(load), std::move(load_async));
  const bool shares_loads = table->options_.load_lease > milliseconds(0);
  if ((shares_loads || table->options_.coherence != Coherence::none) && detail::on_library_thread())
    return fail(Errc::would_deadlock, "open such a cache on a thread of your own: it waits for the server");
  if (shares_loads)
    ECHOMQ_CHECK(table->listen_for_loads());
  if (table->options_.coherence == Coherence::none) {
    table->armed();
    ECHOMQ_CHECK(table->begin_to_report());
    return table;
  }
  auto link =
      std::make_shared<CoherenceLink>(table->options_.coherence, table->keys_, std::weak_ptr<CoherenceSink>(table));
  table->hear_by(link);
  if (auto started = link->start(static_cast<client::LiveCore&>(*table->core_)); !started) {
    table->close();
    return std::unexpected<Error>(std::move(started).error());
  }
  ECHOMQ_CHECK(table->begin_to_report());
  return table;
}

Result<void> Table::begin_to_report() {
  if (options_.report_every == milliseconds(0))
    return {};
  ECHOMQ_TRY(const BrandedId process, core_->mint("PRC"));
  report_ = std::make_unique<Report>(core_, options_.table, process, options_.report_every, [this] { return stats(); });
  return {};
}

Table::Table(std::shared_ptr<client::Core> core, CacheOptions options, LoadBytes load, LoadBytesAsync load_async,
             const std::atomic<std::uint64_t>* time)
    : core_(std::move(core)),
      options_(std::move(options)),
      keys_(options_.table),
      load_(std::move(load)),
      load_async_(std::move(load_async)),
      pool_(options_.load_threads),
      deadlines_(options_.load_deadline, time),
      lease_turns_(options_.load_lease / 3, time),
      token_salt_((std::uint64_t{std::random_device()()} << 32) | std::random_device()()),
      time_(time),
      opened_ms_(time != nullptr ? time->load() : coarse_ms()),
      brand_(brand_of(*BrandedId::encode(options_.kind, 0))),
      hits_(std::make_unique<std::array<Hits, kOwnHits + kSharedHits>>()),
      refresh_share_(static_cast<Ticks>(std::ceil(options_.refresh_ahead * (1 << kShareBits)))) {
  const std::size_t shards = std::clamp<std::size_t>(options_.l1_bytes / kSmallestShard, 1, kMostShards);
  const std::size_t count = std::bit_floor(shards);
  last_shard_ = static_cast<std::uint32_t>(count - 1);
  fronts_ = std::make_unique<L1::Front[]>(count);
  for (std::size_t i = 0; i < count; ++i)
    shards_.push_back(std::make_unique<Shard>(options_.l1_bytes / count, &fronts_[i]));
}

Table::~Table() { close(); }

Ticks Table::now() const noexcept {
  if (time_ != nullptr) [[unlikely]]
    return time_->load(std::memory_order_relaxed) - opened_ms_;
  return coarse_ms() - opened_ms_;
}

Result<void> Table::check_kind(const BrandedId& id) const {
  if (id.brand() == options_.kind)
    return {};
  return fail(Errc::wrong_kind, fmt::format("'{}' is not of this cache's kind {}", id.text(), options_.kind));
}

/// The time to live less the random part.
Ticks Table::shortened(milliseconds whole) {
  const auto ttl = static_cast<Ticks>(whole.count());
  const auto spread = static_cast<Ticks>(static_cast<double>(ttl) * options_.jitter);
  if (spread == 0)
    return ttl;
  return ttl - mix(random_.fetch_add(0x9E3779B97F4A7C15, std::memory_order_relaxed)) % (spread + 1);
}

bool Table::peek(const BrandedId& id, CachedBytes& into) noexcept {
  if (brand_of(id) != brand_) [[unlikely]]
    return false;
  const std::uint64_t hash = digits_of(id).hash();
  const epoch::Reading reading;
  if (!L1::read(
          reading, fronts_[shard_number(hash)], id, hash, [this] { return now(); },
          generation_.load(std::memory_order_acquire), into))
    return false;
  count_hit(reading.number());
  return true;
}

void Table::count_hit(std::uint32_t thread) noexcept {
  if (thread < kOwnHits) [[likely]] {
    auto& count = (*hits_)[thread].count;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  } else {
    (*hits_)[kOwnHits + thread % kSharedHits].count.fetch_add(1, std::memory_order_relaxed);
  }
}

bool Table::hit(const BrandedId& id, CachedBytes& into) {
  if (refresh_share_ == 0)
    return peek(id, into);
  if (brand_of(id) != brand_)
    return false;
  const std::uint64_t hash = digits_of(id).hash();
  Ticks left = 0;
  {
    const epoch::Reading reading;
    if (!L1::read(
            reading, fronts_[shard_number(hash)], id, hash, [this] { return now(); },
            generation_.load(std::memory_order_acquire), into, &left))
      return false;
    count_hit(reading.number());
  }
  if (near_end(left, into) && into.value)
    refresh_ahead(id, left + static_cast<Ticks>(into.age.count()));
  return true;
}

bool Table::in_l1(const BrandedId& id, Ticks at, std::uint32_t generation, CachedBytes& into, Ticks* left) const {
  const std::uint64_t hash = digits_of(id).hash();
  const epoch::Reading reading;
  return L1::read(reading, fronts_[shard_number(hash)], id, hash, [at] { return at; }, generation, into, left);
}

/// A row that may be served though its time is over, or though nobody hears of its changes now.
std::optional<CachedBytes> Table::stale_row(const BrandedId& id) {
  const std::uint32_t generation =
      serving() ? generation_.load(std::memory_order_acquire) : lost_generation_.load(std::memory_order_acquire);
  if (options_.serve_stale == ServeStale::never || generation == 0)
    return std::nullopt;
  CachedBytes row;
  // As it was then. Before the table has run for so long the time wraps, and so do those of rows.
  if (!in_l1(id, now() - static_cast<Ticks>(options_.stale.count()), generation, row) || !row.value)
    return std::nullopt;
  row.from = CacheFrom::stale;
  row.age = milliseconds(static_cast<std::uint32_t>(row.age.count() + options_.stale.count()));
  counters_.stale_served.fetch_add(1, std::memory_order_relaxed);
  return row;
}

Result<Applied> Table::apply(const BrandedId& id, const BrandedId& version) {
  ECHOMQ_CHECK(check_kind(id));
  Shard& shard = shard_of(id);
  // By the clock of who minted it; one that runs ahead of ours makes it none.
  lag_.add(std::min<std::chrono::nanoseconds>(std::chrono::system_clock::now() - version.minted_at(), kLongestLag));
  const std::lock_guard lock(shard.mutex);
  heard_version(shard, id, version.value(), options_.ttl);
  const auto held = shard.l1.version_of(id, now(), generation_.load(std::memory_order_acquire));
  if (held && version.value() > *held) {
    shard.l1.erase(id, now());
    counters_.coherence_applied.fetch_add(1, std::memory_order_relaxed);
    return Applied::applied;
  }
  if (!held && options_.serve_stale != ServeStale::never)
    shard.l1.erase(id, now());  // one whose time is over, or of before a loss, is not served as stale from now on
  counters_.coherence_stale.fetch_add(1, std::memory_order_relaxed);
  return Applied::stale;
}

/// With the shard's mutex. For as long as something older may come into L2, from a load that was slow, and stay there.
void Table::remember(Shard& shard, std::uint64_t id, std::uint64_t version, milliseconds ttl, Floors::Full full) const {
  const Ticks at = now();
  shard.floors.raise(id, version, at, at + 2 * static_cast<Ticks>(std::max(ttl, options_.ttl).count()), full);
}

/// With the shard's mutex: what runs for the id must not keep anything older.
void Table::heard_version(Shard& shard, const BrandedId& id, std::uint64_t version, milliseconds ttl) {
  remember(shard, id.value(), version, ttl);
  const auto found = shard.watches.find(id.value());
  if (found == shard.watches.end())
    return;
  Watch& watch = found->second;
  if (version <= watch.floor)
    return;
  watch.floor = version;
  mark_early(watch);
}

void Table::mark_early(Watch& watch) noexcept {
  // By the first thing heard: who asked after it is owed more than what was read before it, whatever is heard later.
  for (Flight* const flight : {watch.flight.get(), watch.aside.get()}) {
    if (flight == nullptr || flight->marked)
      continue;
    flight->marked = true;
    flight->early = flight->waiters.size();
  }
}

void Table::release(Shard& shard, std::uint64_t id) {
  const auto found = shard.watches.find(id);
  if (--found->second.users == 0)
    shard.watches.erase(found);
}

/// The row has changed, and nobody says to which version.
void Table::change(const BrandedId& id, Told told) {
  const std::uint64_t value = id.value();
  Shard& shard = shard_of(id);
  const std::lock_guard lock(shard.mutex);
  shard.l1.erase(id, now());
  shard.failures.erase(value);
  if (const auto found = shard.watches.find(value); found != shard.watches.end()) {
    Watch& watch = found->second;
    ++watch.evictions;
    if (told == Told::by_push && watch.flight && watch.flight->in_step && !watch.flight->marked) {
      watch.flight->evictions = watch.evictions;  // its answer is still to come, and knows of this
    } else {
      mark_early(watch);
    }
  }
}

void Table::armed() noexcept {
  // Rows of before are of an older generation: they are served no more, and go with the next put beside them.
  lost_generation_.store(0, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (closed_.load(std::memory_order_seq_cst))
    return;
  serving_.store(true, std::memory_order_seq_cst);
  if (!closed_.load(std::memory_order_seq_cst))
    return;
  // `close` may have been before that: whichever came last, it is off, with what came into it in between.
  serving_.store(false, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
}

void Table::lost() noexcept {
  const bool served = serving_.exchange(false, std::memory_order_seq_cst);
  const std::uint32_t had = generation_.load(std::memory_order_seq_cst);
  flush();
  if (served)
    lost_generation_.store(had, std::memory_order_seq_cst);
}

void Table::flush() {
  lost_generation_.store(0, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  counters_.flushes.fetch_add(1, std::memory_order_relaxed);
}

void Table::heard(const CoherenceMessage& message) noexcept {
  if (message.id.brand() != options_.kind)
    return ignored();
  if (!apply(message.id, message.version))
    ignored();
  look_again(message.id);
}

void Table::changed(const BrandedId& id) noexcept {
  if (id.brand() != options_.kind)
    return ignored();
  change(id, Told::by_push);
  counters_.coherence_applied.fetch_add(1, std::memory_order_relaxed);
  look_again(id);
}

void Table::close() {
  if (closed_.exchange(true))
    return;
  report_.reset();
  serving_.store(false, std::memory_order_seq_cst);
  lost_generation_.store(0, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  std::vector<Waiting> of_loads;
  for (const auto& shard : shards_) {
    const std::lock_guard lock(shard->mutex);
    for (const auto& [id, watch] : shard->watches) {
      if (!watch.flight || !watch.flight->stop)
        continue;
      watch.flight->ask_to_stop("the cache is closed");
      // It may take as long as it likes, and nobody waits for it; a synchronous one is waited for below.
      watch.flight->late = true;
      watch.flight->early = 0;
      of_loads.insert(of_loads.end(), watch.flight->waiters.begin(), watch.flight->waiters.end());
      watch.flight->waiters.clear();
    }
  }
  for (const Waiting& one : of_loads)
    one.waiter->answer(fail(Errc::client_closed, "the cache is closed", Repeat::safe));
  if (coherence_)
    coherence_->close();
  end_waits("the cache is closed");
  if (loads_heard_)
    loads_heard_->cancel();
  pool_.shutdown();
  lease_turns_.shutdown();  // while a loader is waited for, its lease is renewed
  deadlines_.shutdown();
}

detail::Source* Table::drives() const noexcept {
  // What a caller drives must be what answers it: not where a loader does. And a connection that callers drive is read
  // again by the library's thread only at its next tick: the pushes of tracking would wait.
  if (options_.coherence == Coherence::tracking || has_loader() || own_loads_.load(std::memory_order_relaxed))
    return nullptr;
  return core_->source();
}
detail::Target* Table::continues_on() const noexcept { return core_->continuations(); }

void Table::send_main(Exchange* call, milliseconds deadline, ReadBy reader) {
  call->retain();
  const detail::CallPointer<Exchange> kept(call);
  core_->submit(call, {.repeat = Repeat::safe, .deadline = deadline, .never_refused = reader == ReadBy::library_again});
  if (reader != ReadBy::caller && call->source != nullptr)
    call->source->leave_to_library();
}

void Table::send(Exchange* call, milliseconds deadline, ReadBy reader) {
  // While the tracking connection is down, waiting for it would be waiting for nothing: L1 keeps nothing then.
  if (options_.coherence != Coherence::tracking || !serving())
    return send_main(call, deadline, reader);
  call->default_target = continues_on();
  call->repeat = Repeat::safe;
  call->deadline = detail::Clock::now() + deadline;
  coherence_->submit(call, !detail::on_library_thread());
}

bool Table::is_on_its_way(std::string_view error_text) {
  return error_text.starts_with("ASK ") || error_text.starts_with("TRYAGAIN");
}

void Table::put_script(const BrandedId& id, const BrandedId& version, std::string_view value, milliseconds lives,
                       milliseconds deadline, ReadBy reader, End end) {
  // Not on the tracking connection: its NOLOOP does not hold for what scripts write.
  static const script::ScriptSource& script = *script::find_script("cache_put");
  const auto key = keys_.row(id);
  const std::string ttl = std::to_string(lives.count());
  Exchange* call =
      Exchange::command(std::move(end), "EVALSHA", script.sha1, "1", key.view(), version.text(), value, ttl);
  call->script = &script;
  send_main(call, deadline, reader);
}

CacheStats Table::stats() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  CacheStats out;
  out.misses = read(counters_.misses);
  out.l2_hits = read(counters_.l2_hits);
  out.fills = read(counters_.fills);
  out.absent = read(counters_.absent);
  out.coalesced = read(counters_.coalesced);
  out.load_errors = read(counters_.load_errors);
  out.load_late = read(counters_.load_late);
  out.load_waits = read(counters_.load_waits);
  out.backed_off = read(counters_.backed_off);
  out.refreshed = read(counters_.refreshed);
  out.stale_served = read(counters_.stale_served);
  out.outages = read(counters_.outages);
  out.l2_write_errors = read(counters_.l2_write_errors);
  out.corrupt = read(counters_.corrupt);
  out.superseded = read(counters_.superseded);
  out.too_large = read(counters_.too_large);
  out.coherence_applied = read(counters_.coherence_applied);
  out.coherence_stale = read(counters_.coherence_stale);
  out.coherence_ignored = read(counters_.coherence_ignored);
  out.coherence_refused = read(counters_.coherence_refused);
  out.flushes = read(counters_.flushes);
  out.load_time = load_time_.read();
  out.coherence_lag = lag_.read();
  for (const Hits& one : *hits_)
    out.hits += read(one.count);
  for (const auto& shard : shards_) {
    const std::lock_guard lock(shard->mutex);
    out.evicted += shard->l1.gone().evicted;
    out.expired += shard->l1.gone().expired;
    out.replaced += shard->l1.gone().replaced;
    out.invalidated += shard->l1.gone().erased;
    out.flushed += shard->l1.gone().flushed;
    out.rows += shard->l1.rows();
    out.bytes += shard->l1.bytes();
  }
  return out;
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
