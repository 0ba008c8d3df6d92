// `Cache<T>`: values close at hand, in this process (L1) and in Valkey (L2), filled by a loader.
//
// A read that L1 holds copies the value out and takes no lock. A miss reads L2, and what L2 has not is loaded once,
// however many callers ask. Writers tell the others by a 29-byte message or leave it to the server's tracking; what a
// running load brings back late is never kept over something newer (protocol document 4, sections 9 to 12).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/cancel.hpp"
#include "echomq/client.hpp"
#include "echomq/codec.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/latencies.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"
#include "echomq/task.hpp"

namespace echomq {
inline namespace v1 {

namespace cache {
class Table;
}  // namespace cache

/// The name of a cache table in its keys, `ecc:{name}:<id>`: 1 to 120 of `A-Z a-z 0-9 . _ -`, so that the name of its
/// coherence queue, `ecc.coh.<name>`, is a queue name.
class CacheName : public detail::InlineName<120> {
 public:
  [[nodiscard]] static constexpr bool is_valid(std::string_view text) noexcept {
    return detail::is_name(text, kMaxSize);
  }
  /// A literal, checked by the compiler.
  template <std::size_t N>
  consteval CacheName(const char (&literal)[N]) : InlineName(checked({literal, N - 1})) {}  // NOLINT
  /// Errors: invalid_argument; the text names the value.
  [[nodiscard]] static Result<CacheName> parse(std::string_view text);

 private:
  constexpr explicit CacheName(std::string_view text) noexcept : InlineName(text) {}
  static consteval std::string_view checked(std::string_view text) {
    if (!is_valid(text))
      throw "not a cache name: 1 to 120 of A-Z a-z 0-9 . _ -";
    return text;
  }
};

/// How a table hears of what others write.
enum class Coherence : std::uint8_t {
  none,       ///< not at all: a row is as old as its time to live allows
  broadcast,  ///< messages on `ecc:{table}:coh`, which writers publish after their put
  tracking,   ///< the server tells of every change below `ecc:{table}:`; needs RESP3
};

/// Where an answer came from.
enum class CacheFrom : std::uint8_t {
  hit,    ///< L1
  l2,     ///< Valkey
  fill,   ///< the loader
  stale,  ///< L1, after its time (`CacheOptions::serve_stale`)
};
[[nodiscard]] std::string_view to_string(CacheFrom from) noexcept;

/// What a read gives: the value, or that there is none.
template <typename T>
struct Cached {
  std::optional<T> value;            ///< empty: neither L2 nor the loader has it
  BrandedId version;                 ///< of the value; the default id when there is no value
  CacheFrom from = CacheFrom::fill;  ///< who answered
  /// How long L1 has had it; 0 when it came from elsewhere. Not how old the value is: L2 may have had it before for as long
  /// as rows live, and does not say for how long (its rest alone cannot tell, for entries may have a `ttl` of their own).
  /// Where versions are minted as values are made, `version.minted_at()` says that.
  std::chrono::milliseconds age{0};

  [[nodiscard]] explicit operator bool() const noexcept { return value.has_value(); }
  [[nodiscard]] const T& operator*() const noexcept { return *value; }
  [[nodiscard]] const T* operator->() const noexcept { return &*value; }
};
using CachedBytes = Cached<std::string>;

/// What a loader found. Without a version the table mints one just before it calls the loader.
template <typename T>
struct Loaded {
  T value;
  std::optional<BrandedId> version{};
  std::vector<std::string> tags{};                 ///< as `CachePutOptions::tags`
  std::optional<std::chrono::milliseconds> ttl{};  ///< as `CachePutOptions::ttl`
};

/// Of one put.
struct CachePutOptions {
  std::optional<BrandedId> version{};  ///< without one it is minted
  /// At most 16, each 1 to 120 of `A-Z a-z 0-9 . _ -`: `invalidate_tag` finds the row by them. Needs `CacheOptions::tags`. The
  /// newest put of a row says all of its tags.
  std::vector<std::string> tags{};
  /// Instead of the table's: 1 ms to 20 days.
  std::optional<std::chrono::milliseconds> ttl{};
};

/// What a put came to.
enum class CachePut : std::uint8_t {
  stored,
  superseded,  ///< L2 holds a newer version, or one of its tags was dropped later: nothing was written
};
enum class Applied : std::uint8_t {
  applied,  ///< L1 had an older row, which is gone
  stale,    ///< L1 has no row, or one at least as new
};

/// What happens to a miss while the server does not answer. That this client has too much in flight (`overloaded`) is no
/// outage: who asks gets that error.
enum class CacheOutage : std::uint8_t {
  load,  ///< the loader is asked; what it gives is not written to L2
  fail,  ///< the caller gets the error
};

/// When a row of L1 whose time is over is an answer, marked `CacheFrom::stale`. Never one that something newer was heard
/// of, or that was invalidated.
enum class ServeStale : std::uint8_t {
  never,
  on_failure,  ///< when there is no other: L2 does not answer (and `outage` says fail), the loader fails or is late. Also
               ///< while the subscription is lost, with what L1 had at the loss
  at_once,     ///< also while it is renewed: one flight renews it, nobody waits
};

struct CacheOptions {
  CacheName table;     ///< in the keys
  std::string kind{};  ///< the namespace of the ids, three letters A to Z; ids of others answer `wrong_kind`
  /// The life of a row in L2 and, at most, in L1; L1 never outlives what is left in L2. 1 ms to 20 days.
  std::chrono::milliseconds ttl{5000};
  /// A row's life in L1 is shortened by a random part of up to this share of `ttl`, so that rows filled together do not
  /// expire together. 0 to 0.5.
  double jitter = 0.1;
  /// How long L1 remembers that the loader found nothing; 0: not at all. L2 never does: peers would read it as a value.
  std::chrono::milliseconds negative_ttl{0};
  /// The bound of L1: values with about 64 bytes a row. 0: no L1. It is divided into up to 64 shards of at least 256 KiB,
  /// and a value that does not fit into one of them (with the default: of 1 MiB) is served and never kept.
  std::size_t l1_bytes = std::size_t{64} << 20;
  Coherence coherence = Coherence::none;
  /// How long L2 may take to answer before the read counts as an outage. 1 ms to 20 days.
  std::chrono::milliseconds l2_deadline{2000};
  CacheOutage outage = CacheOutage::load;
  ServeStale serve_stale = ServeStale::never;
  /// How long after its time. 0 to 20 days; positive when `serve_stale` is not never.
  std::chrono::milliseconds stale{0};
  /// A hit of `get` or `get_many` on a row with less than this share left of the time that it has in L1 (which may be its
  /// own `ttl`, or what was left in L2) has it loaded anew, once, and does not wait. 0 (never) to 0.9; needs a loader.
  double refresh_ahead = 0;
  /// Whoever waits for a loader that takes longer is answered `handler_failed`, and so is who asks until it is back and
  /// finds nothing in L2 either. What it brings is kept all the same, and no second load of the id begins before. 0: no
  /// bound.
  std::chrono::milliseconds load_deadline{0};
  /// After a failed load the loader is not asked for that id for so long, twice as long after each further failure, up to
  /// `load_backoff_most`, and never longer; callers get the same error. 0: it is asked each time.
  std::chrono::milliseconds load_backoff{0};
  std::chrono::milliseconds load_backoff_most{30'000};
  /// Rows may carry tags, and `invalidate_tag` drops all of one. A miss then reads one key more. Whatever of the tables of one
  /// name puts or drops by tag sets this, with one `ttl` and one `stale`.
  bool tags = false;
  /// One load of an id at a time in all processes that set this: who loads holds a lease of the id in Valkey, renews it
  /// while the loader runs, and tells the others, who wait meanwhile. When its process dies one of them takes over, at most
  /// a third later than the lease ends. A load that fails fails for all who wait; one that has lost its lease (by an
  /// `invalidate`, or because it could not renew) is not kept. 0: each process loads for itself. Else 30 ms to 20 days.
  /// Key `eccx:{table}:load:<id>`, channel `eccx:{table}:loads`.
  std::chrono::milliseconds load_lease{0};
  /// How often what the table has counted is written to the server (`eccx:{table}:stats:<id>`, which expires after three
  /// times as long), for `emq cache stats`. 0: never; else 100 ms to a day. Mints one id at the start.
  std::chrono::milliseconds report_every{0};
  /// Threads for synchronous loaders, 1 to 256; started when the first load comes.
  std::size_t load_threads = 4;
};

/// Counters of a table; they only grow, but for `rows` and `bytes`.
struct CacheStats {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;     ///< reads that L1 did not answer
  std::uint64_t l2_hits = 0;    ///< flights that L2 answered
  std::uint64_t fills = 0;      ///< flights that the loader answered with a value
  std::uint64_t absent = 0;     ///< flights that found nothing
  std::uint64_t coalesced = 0;  ///< misses that joined a running flight
  std::uint64_t load_errors = 0;
  std::uint64_t load_late = 0;        ///< loads that took longer than `load_deadline`
  std::uint64_t load_waits = 0;       ///< flights that waited for another process's load
  std::uint64_t backed_off = 0;       ///< flights that ended with the error of a load before
  std::uint64_t refreshed = 0;        ///< flights ahead of the end of a row's time
  std::uint64_t stale_served = 0;     ///< answers marked stale
  std::uint64_t outages = 0;          ///< flights that went on without L2
  std::uint64_t l2_write_errors = 0;  ///< fills that L2 did not take
  std::uint64_t corrupt = 0;          ///< frames in L2 that were none
  /// Answers not kept because something newer was heard of: with a source that is behind, each of them.
  std::uint64_t superseded = 0;
  // Rows of L1 that are there no more, by why.
  std::uint64_t evicted = 0;  ///< there was no room
  /// Their time was over when somebody wanted their place; until then they are among `rows`.
  std::uint64_t expired = 0;
  std::uint64_t replaced = 0;     ///< by a newer one of the same id
  std::uint64_t invalidated = 0;  ///< because of what was heard, written or said
  std::uint64_t flushed = 0;      ///< of before a flush; counted with the next row that comes beside them

  std::uint64_t too_large = 0;  ///< values not kept because each alone exceeds a shard of L1 (`CacheOptions::l1_bytes`)
  std::uint64_t coherence_applied = 0;
  std::uint64_t coherence_stale = 0;
  std::uint64_t coherence_ignored = 0;  ///< messages that are none of this table
  std::uint64_t coherence_refused = 0;  ///< subscriptions that were refused or not answered: L1 is off meanwhile
  std::uint64_t flushes = 0;            ///< of all of L1: lost subscriptions, flushed databases
  std::uint64_t rows = 0;               ///< in L1 now, those included that have expired and not made room yet
  std::uint64_t bytes = 0;              ///< of them, as `l1_bytes` counts
  Latencies load_time;                  ///< how long loads took, failed ones too
  /// From the mint of a version, by the clock of who minted it, to its being heard here, by a message or `apply`; more than a
  /// day counts as a day. Tracking names no version, so there is none.
  Latencies coherence_lag;
};

/// One of several puts. The value is read until the call returns.
struct CachePutItem {
  BrandedId id;
  std::string_view value;
  std::optional<BrandedId> version{};  ///< this and the next two as in `CachePutOptions`
  std::vector<std::string> tags{};
  std::optional<std::chrono::milliseconds> ttl{};
};

/// A synchronous loader of bytes: runs on a thread of the table. Empty: there is no such thing. It may block; what it throws
/// becomes `handler_failed`. It may read other ids of the table, as long as `load_threads` leaves a thread for their loads; its own id
/// is answered `would_deadlock`. A loader of another form must not wait for its own id.
using LoadBytes = std::function<Result<std::optional<Loaded<std::string>>>(const BrandedId& id)>;
/// Answers a `LoadBytesAsync`, once, on any thread; copies answer the same load. When the last copy goes without an
/// answer, the load has failed.
class LoadDone {
 public:
  using Take = std::function<void(Result<std::optional<Loaded<std::string>>>)>;
  explicit LoadDone(Take take);
  void operator()(Result<std::optional<Loaded<std::string>>> loaded) const;
  /// Asked for once nobody of this process waits any more (`load_deadline`), and when the table closes. A load that goes
  /// on is kept.
  [[nodiscard]] CancelToken stop() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};
/// An asynchronous loader: called on a library thread, so it must start the load and return. What it throws is
/// `handler_failed`, unless `done` was answered before.
using LoadBytesAsync = std::function<void(const BrandedId& id, LoadDone done)>;
/// A loader that is a coroutine: begins on the client's executor, where also what it awaits continues, and must not block
/// there. `stop`: as `LoadDone::stop`. What it captures must outlive its runs, of which the table's end does not wait.
using LoadBytesTask = std::function<Task<Result<std::optional<Loaded<std::string>>>>(BrandedId id, CancelToken stop)>;

namespace detail {

/// What a codec gives. What it throws is `codec_failed`, but for `std::bad_alloc`, which goes on.
template <typename T, typename Call>
[[nodiscard]] Result<T> of_codec(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return fail(Errc::codec_failed, error.what());
  } catch (...) {
    return fail(Errc::codec_failed, "an exception that is not a std::exception");
  }
}

/// Whoever waits for an answer of a table; told exactly once, on any thread.
class CacheWaiter {
 public:
  virtual void answer(Result<CachedBytes> answer) noexcept = 0;

 protected:
  ~CacheWaiter() = default;
};

/// A reply of a table: the bytes' answer, decoded.
template <typename T, typename Decode>
class CacheCall final : public CallOf<T>, public CacheWaiter {
 public:
  explicit CacheCall(Decode decode) : decode_(std::move(decode)) {}
  void accept(const resp::View&) noexcept override {}
  void answer(Result<CachedBytes> answer) noexcept override {
    if (this->win()) {
      this->store(decode_(std::move(answer)));
      this->publish();
    }
    this->release();
  }

 private:
  ~CacheCall() override = default;
  void destroy() noexcept override { delete this; }
  Decode decode_;
};

/// The reply of several reads: one result each, in order.
template <typename T, typename Decode>
class CacheGather final : public CallOf<std::vector<Result<T>>> {
 public:
  CacheGather(std::size_t count, Decode decode) : decode_(std::move(decode)), left_(count) {
    seats_.reserve(count);
    results_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      results_.emplace_back(T{});
      seats_.emplace_back(this, i);
    }
  }
  [[nodiscard]] CacheWaiter* seat(std::size_t index) noexcept { return &seats_[index]; }
  void accept(const resp::View&) noexcept override {}

 private:
  struct Seat final : CacheWaiter {
    Seat(CacheGather* its_whole, std::size_t its_index) : whole(its_whole), index(its_index) {}
    void answer(Result<CachedBytes> answer) noexcept override { whole->take(index, std::move(answer)); }
    CacheGather* whole;
    std::size_t index;
  };
  ~CacheGather() override = default;
  void destroy() noexcept override { delete this; }
  void take(std::size_t index, Result<CachedBytes> answer) noexcept {
    results_[index] = decode_(std::move(answer));
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
      return;
    if (this->win()) {
      this->store(std::move(results_));
      this->publish();
    }
    this->release();
  }

  Decode decode_;
  std::vector<Seat> seats_;
  std::vector<Result<T>> results_;
  std::atomic<std::size_t> left_;
};

}  // namespace detail

/// A table of byte strings. Move-only; thread-safe; the destructor closes it.
///
/// Errors of all calls: wrong_kind (an id of another namespace; nothing is sent), client_closed, and those of a command.
class ByteCache {
 public:
  /// Opens a table: checks the options, and, for broadcast, tracking and `load_lease`, connects and waits until the server
  /// has confirmed. Not on a thread of the library.
  /// Errors: invalid_argument naming the option, would_deadlock, requires_resp3, unreachable, and the server's.
  [[nodiscard]] static Result<ByteCache> open(const Client& client, CacheOptions options, LoadBytes load = {});
  [[nodiscard]] static Result<ByteCache> open_async(const Client& client, CacheOptions options, LoadBytesAsync load);
  [[nodiscard]] static Result<ByteCache> open_task(const Client& client, CacheOptions options, LoadBytesTask load);

  ByteCache(ByteCache&&) noexcept;
  ByteCache& operator=(ByteCache&&) noexcept;
  ~ByteCache();

  /// What L1 has, copied into `into` (whose memory is used again). False: not there, expired, or of another kind; then
  /// `into` is as before. Takes no lock, sends nothing. Counts hits, not misses.
  [[nodiscard]] bool peek(const BrandedId& id, CachedBytes& into) const noexcept;
  /// L1, else L2 (GETRANGE, PTTL, GET in one write), else the loader and a fill of both. Callers that miss together share one
  /// flight. Key `ecc:{table}:<id>`.
  /// Errors: also the loader's own, `overloaded`, and those of L2 when `outage` says fail.
  Reply<CachedBytes> get(const BrandedId& id) const;
  /// As `get`, with a loader of this call in place of the table's: what L1 and L2 lack it loads, on a thread of the table.
  /// Whoever misses the id meanwhile shares that flight, and this call one that is on the way already, with the loader
  /// that it has. Errors: also invalid_argument (no loader).
  Reply<CachedBytes> get_or_load(const BrandedId& id, LoadBytes load) const;
  /// Several at once, all misses of L1 in one write; one result each, in order.
  Reply<std::vector<Result<CachedBytes>>> get_many(std::span<const BrandedId> ids) const;

  /// Writes both layers, unless L2 holds a newer version (extension script `cache_put`). Without a version one is minted.
  /// When it has answered, this process reads that value or a newer one. After an error L1 holds nothing of the id.
  /// Tells nobody: publish the same version by `CacheWriter` afterwards (not needed under tracking).
  Reply<CachePut> put(const BrandedId& id, std::string_view value, std::optional<BrandedId> version = {}) const;
  /// With tags, or a time to live of its own (extension script `cache_put_tagged`, keys `eccx:{table}:tag:<tag>`,
  /// `eccx:{table}:tagfloor:<tag>`). Errors: also invalid_argument naming the option.
  Reply<CachePut> put(const BrandedId& id, std::string_view value, const CachePutOptions& with) const;
  /// Several puts, sent without waiting in between; one result each, in order. A refused one does not touch the others,
  /// and there is no order among them: of one id twice the newer version stays.
  Reply<std::vector<Result<CachePut>>> put_many(std::span<const CachePutItem> items) const;
  /// DEL of the L2 row and the L1 row, whatever their versions. Loads that run are not kept.
  Reply<void> invalidate(const BrandedId& id) const;
  /// Drops every row that was put with the tag before, from L2 and from L1: this one when it has answered, others as the
  /// messages or the tracking of their coherence reach them. A load that began before, or a put with a version minted
  /// before, is not kept under the tag when it comes later. Some 500 rows a round trip, nothing is scanned; gives how many
  /// rows L2 had. After an error L1 is empty, and some rows may be left: call it again. Extension script `cache_tag_drop`.
  /// Errors: invalid_argument (the tag; a table without `CacheOptions::tags`).
  Reply<std::uint64_t> invalidate_tag(std::string_view tag) const;
  /// A coherence message heard by other means, such as the job lane. L2 is not touched. Errors: wrong_kind.
  Result<Applied> apply(const BrandedId& id, const BrandedId& version) const;
  /// Empties L1.
  void flush() const;

  /// Whether L1 serves: always without coherence, else while the subscription is confirmed.
  [[nodiscard]] bool serving() const noexcept;
  [[nodiscard]] CacheStats stats() const;
  [[nodiscard]] const CacheOptions& options() const noexcept;
  /// Ends the subscription and the load threads (waiting for loaders that run, unless called by one or on a thread of the library:
  /// then they end by themselves); later calls answer client_closed. Idempotent.
  void close();

  /// For typed tables: `peek`, but also has the row refreshed when it is time.
  [[nodiscard]] bool hit(const BrandedId& id, CachedBytes& into) const;
  /// For typed tables: every waiter is answered exactly once. `drives`: what a caller who waits may drive.
  void fetch(std::span<const BrandedId> ids, std::span<detail::CacheWaiter* const> waiters, LoadBytes load = {}) const;
  /// For typed tables: `put_many` of values that a codec gave, or refused: those are answered with its error.
  Reply<std::vector<Result<CachePut>>> put_encoded(std::span<const CachePutItem> items,
                                                   std::span<const Result<std::string>> values) const;
  [[nodiscard]] detail::Source* drives() const noexcept;
  [[nodiscard]] detail::Target* continues_on() const noexcept;

 private:
  explicit ByteCache(std::shared_ptr<cache::Table> table) noexcept;
  std::shared_ptr<cache::Table> table_;
};

/// How a `T` becomes the bytes of a frame: by its `Codec<T>`, as payloads do. Specialise this one for another form in
/// caches alone, or give `Cache` a type with the same two functions.
template <typename T>
struct CacheCodec : Codec<T> {};
template <>
struct CacheCodec<std::string> {
  [[nodiscard]] static Result<std::string> encode(const std::string& value) { return value; }
  [[nodiscard]] static Result<std::string> decode(std::string bytes) { return bytes; }
};

/// A table of `T`. As `ByteCache`, with a codec before and behind it; what the codec refuses is `codec_failed` or
/// whatever error it gives, and what it throws is `codec_failed` too (but for `std::bad_alloc`).
template <typename T, typename Codec = CacheCodec<T>>
class Cache {
 public:
  using Load = std::function<Result<std::optional<Loaded<T>>>(const BrandedId& id)>;
  using LoadTask = std::function<Task<Result<std::optional<Loaded<T>>>>(BrandedId id, CancelToken stop)>;

  /// As `ByteCache::open`.
  [[nodiscard]] static Result<Cache> open(const Client& client, CacheOptions options, Load load = {}) {
    LoadBytes bytes;
    if (load) {
      bytes = [load = std::move(load)](const BrandedId& id) { return encode_loaded(load(id)); };
    }
    Result<ByteCache> opened = ByteCache::open(client, std::move(options), std::move(bytes));
    if (!opened)
      return std::unexpected<Error>(std::move(opened).error());
    return Cache(*std::move(opened));
  }
  /// As `ByteCache::open_task`.
  [[nodiscard]] static Result<Cache> open_task(const Client& client, CacheOptions options, LoadTask load) {
    LoadBytesTask bytes;
    if (load) {
      bytes = [load = std::make_shared<const LoadTask>(std::move(load))](BrandedId id, CancelToken stop) {
        return run_load(load, id, std::move(stop));
      };
    }
    Result<ByteCache> opened = ByteCache::open_task(client, std::move(options), std::move(bytes));
    if (!opened)
      return std::unexpected<Error>(std::move(opened).error());
    return Cache(*std::move(opened));
  }

  /// What L1 has; empty: not there, expired, or of another kind. Takes no lock, sends nothing. Counts hits, not misses.
  /// Errors: codec_failed, or whatever error the codec gives.
  [[nodiscard]] Result<std::optional<Cached<T>>> peek(const BrandedId& id) const {
    CachedBytes hit;
    if (!bytes_.peek(id, hit))
      return std::optional<Cached<T>>();
    Result<Cached<T>> decoded = decode(std::move(hit));
    if (!decoded)
      return std::unexpected<Error>(std::move(decoded).error());
    return std::optional<Cached<T>>(*std::move(decoded));
  }
  /// As `ByteCache::get`.
  Reply<Cached<T>> get(const BrandedId& id) const {
    CachedBytes hit;
    if (bytes_.hit(id, hit))
      return decode(std::move(hit));
    using Call = detail::CacheCall<Cached<T>, Decode>;
    auto* call = new Call(Decode{});
    call->default_target = bytes_.continues_on();
    call->source = bytes_.drives();
    call->retain();
    detail::CallPointer<detail::CallOf<Cached<T>>> mine(call);
    detail::CacheWaiter* waiter = call;
    bytes_.fetch({&id, 1}, {&waiter, 1});
    return Reply<Cached<T>>(std::move(mine));
  }
  /// As `ByteCache::get_or_load`.
  Reply<Cached<T>> get_or_load(const BrandedId& id, Load load) const {
    if (!load)
      return fail(Errc::invalid_argument, "get_or_load needs a loader");
    CachedBytes hit;
    if (bytes_.hit(id, hit))
      return decode(std::move(hit));
    using Call = detail::CacheCall<Cached<T>, Decode>;
    auto* call = new Call(Decode{});
    call->default_target = bytes_.continues_on();
    call->retain();
    detail::CallPointer<detail::CallOf<Cached<T>>> mine(call);
    detail::CacheWaiter* waiter = call;
    bytes_.fetch({&id, 1}, {&waiter, 1},
                 [load = std::move(load)](const BrandedId& of) { return encode_loaded(load(of)); });
    return Reply<Cached<T>>(std::move(mine));
  }
  /// As `ByteCache::get_many`.
  Reply<std::vector<Result<Cached<T>>>> get_many(std::span<const BrandedId> ids) const {
    if (ids.empty())
      return Result<std::vector<Result<Cached<T>>>>(std::vector<Result<Cached<T>>>());
    using Call = detail::CacheGather<Cached<T>, Decode>;
    auto* call = new Call(ids.size(), Decode{});
    call->default_target = bytes_.continues_on();
    call->source = bytes_.drives();
    std::vector<detail::CacheWaiter*> waiters;
    for (std::size_t i = 0; i < ids.size(); ++i)
      waiters.push_back(call->seat(i));
    call->retain();
    detail::CallPointer<detail::CallOf<std::vector<Result<Cached<T>>>>> mine(call);
    bytes_.fetch(ids, waiters);
    return Reply<std::vector<Result<Cached<T>>>>(std::move(mine));
  }
  /// As `ByteCache::put`.
  Reply<CachePut> put(const BrandedId& id, const T& value, std::optional<BrandedId> version = {}) const {
    Result<std::string> encoded = encode(value);
    if (!encoded)
      return std::unexpected<Error>(std::move(encoded).error());
    return bytes_.put(id, *encoded, version);
  }
  Reply<CachePut> put(const BrandedId& id, const T& value, const CachePutOptions& with) const {
    Result<std::string> encoded = encode(value);
    if (!encoded)
      return std::unexpected<Error>(std::move(encoded).error());
    return bytes_.put(id, *encoded, with);
  }
  /// One of several puts; the rest as in `CachePutItem`.
  struct PutItem {
    BrandedId id;
    T value;
    std::optional<BrandedId> version{};
    std::vector<std::string> tags{};
    std::optional<std::chrono::milliseconds> ttl{};
  };
  /// As `ByteCache::put_many`. What the codec refuses is answered so in its place; the others are put.
  Reply<std::vector<Result<CachePut>>> put_many(std::span<const PutItem> items) const {
    std::vector<CachePutItem> bytes;
    std::vector<Result<std::string>> values;
    bytes.reserve(items.size());
    values.reserve(items.size());
    for (const PutItem& one : items) {
      values.push_back(encode(one.value));
      bytes.push_back({one.id, {}, one.version, one.tags, one.ttl});
    }
    return bytes_.put_encoded(bytes, values);
  }
  /// As `ByteCache::invalidate_tag`.
  Reply<std::uint64_t> invalidate_tag(std::string_view tag) const { return bytes_.invalidate_tag(tag); }
  Reply<void> invalidate(const BrandedId& id) const { return bytes_.invalidate(id); }
  Result<Applied> apply(const BrandedId& id, const BrandedId& version) const { return bytes_.apply(id, version); }
  [[nodiscard]] CacheStats stats() const { return bytes_.stats(); }
  /// The table below: flush, serving, close.
  [[nodiscard]] ByteCache& bytes() noexcept { return bytes_; }

 private:
  explicit Cache(ByteCache bytes) noexcept : bytes_(std::move(bytes)) {}
  using LoadedBytes = Result<std::optional<Loaded<std::string>>>;
  [[nodiscard]] static Result<std::string> encode(const T& value) {
    return detail::of_codec<std::string>([&]() -> Result<std::string> { return Codec::encode(value); });
  }
  [[nodiscard]] static LoadedBytes encode_loaded(Result<std::optional<Loaded<T>>> loaded) {
    if (!loaded)
      return std::unexpected<Error>(std::move(loaded).error());
    if (!*loaded)
      return std::optional<Loaded<std::string>>();
    Result<std::string> encoded = encode((*loaded)->value);
    if (!encoded)
      return std::unexpected<Error>(std::move(encoded).error());
    return std::optional<Loaded<std::string>>(
        {*std::move(encoded), (*loaded)->version, std::move((*loaded)->tags), (*loaded)->ttl});
  }
  [[nodiscard]] static Task<LoadedBytes> run_load(std::shared_ptr<const LoadTask> load, BrandedId id,
                                                  CancelToken stop) {
    Task<Result<std::optional<Loaded<T>>>> task = (*load)(id, std::move(stop));
    Result<std::optional<Loaded<T>>> loaded = co_await task;
    co_return encode_loaded(std::move(loaded));
  }
  [[nodiscard]] static Result<Cached<T>> decode(CachedBytes bytes) {
    Cached<T> out{std::nullopt, bytes.version, bytes.from, bytes.age};
    if (!bytes.value)
      return out;
    Result<T> value = detail::of_codec<T>([&]() -> Result<T> { return Codec::decode(*std::move(bytes.value)); });
    if (!value)
      return std::unexpected<Error>(std::move(value).error());
    out.value.emplace(*std::move(value));
    return out;
  }
  struct Decode {
    Result<Cached<T>> operator()(Result<CachedBytes> answer) const {
      if (!answer)
        return std::unexpected<Error>(std::move(answer).error());
      return decode(*std::move(answer));
    }
  };

  ByteCache bytes_;
};

/// What a writer tells the tables of others, after its put; needs no table of its own. Cheap to copy, thread-safe.
class CacheWriter {
 public:
  CacheWriter(const Client& client, const CacheName& table);

  /// PUBLISH of `<id>:<version>` on `ecc:{table}:coh`; gives how many connections heard it. At most once.
  Reply<std::int64_t> broadcast(const BrandedId& id, const BrandedId& version) const;
  /// Deletes the L2 row when it is older than `version` or no frame (script `coherence_drop`): for writers that
  /// invalidate without placing a value. True when it was deleted.
  Reply<bool> drop_l2(const BrandedId& id, const BrandedId& version) const;

 private:
  std::shared_ptr<client::Core> core_;
  CacheName table_;
};

/// The coherence message: `<id>:<version>`.
struct CoherenceMessage {
  static constexpr std::size_t kSize = 29;
  BrandedId id;
  BrandedId version;

  [[nodiscard]] std::string text() const;
  /// Errors: invalid_argument for anything but 29 bytes, `:` in the middle, two valid ids around it.
  [[nodiscard]] static Result<CoherenceMessage> parse(std::string_view text);
};
/// The queue of the job lane, `ecc.coh.<table>`: enqueue a message's text there, in any lane, to have it heard at least
/// once, but by one consumer only (so it is right for one L1 a queue). That consumer parses the payload and calls `apply`.
[[nodiscard]] QueueName coherence_queue(const CacheName& table);
/// Whether version `a` is newer than `b`: by their last eleven bytes, whatever the namespaces. Equal is not newer.
[[nodiscard]] bool is_newer(const BrandedId& a, const BrandedId& b) noexcept;

}  // namespace v1
}  // namespace echomq
