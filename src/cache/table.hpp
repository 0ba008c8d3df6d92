// A cache table over bytes: L1, flights, writes, what is heard of others.
//
// The rule that keeps it from serving what is too old: while anything runs for an id (a flight, a put), a watch of that
// id remembers the newest version heard and counts what has no version. What comes back and is older than that is given
// to those who asked before, not kept, and asked for again on behalf of those who asked after.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/coherence.hpp"
#include "cache/deadlines.hpp"
#include "cache/exchange.hpp"
#include "cache/floors.hpp"
#include "cache/frame.hpp"
#include "cache/l1.hpp"
#include "cache/load_pool.hpp"
#include "cache/report.hpp"
#include "client/histogram.hpp"
#include "echomq/cache.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

using LoadedBytes = Result<std::optional<Loaded<std::string>>>;

class Table final : public CoherenceSink, public std::enable_shared_from_this<Table> {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Table>> open(const Client& client, CacheOptions options, LoadBytes load,
                                                           LoadBytesAsync load_async);
  /// `time`, where a test gives it, is read in place of the clock: milliseconds.
  Table(std::shared_ptr<client::Core> core, CacheOptions options, LoadBytes load, LoadBytesAsync load_async,
        const std::atomic<std::uint64_t>* time = nullptr);
  ~Table();
  /// Before anything else is called: what the table hears by.
  void hear_by(std::shared_ptr<Hearing> hearing) { coherence_ = std::move(hearing); }

  [[nodiscard]] bool peek(const BrandedId& id, CachedBytes& into) noexcept;
  [[nodiscard]] bool hit(const BrandedId& id, CachedBytes& into);
  /// `load`: of this call, in place of the table's. It joins a flight that is on the way, whoever loads there.
  void fetch(std::span<const BrandedId> ids, std::span<detail::CacheWaiter* const> waiters, LoadBytes load = {});
  [[nodiscard]] Reply<CachePut> put(const BrandedId& id, std::string_view value, const CachePutOptions& with);
  /// `encoded`: the items' values, or why there is none; empty: they are in the items.
  [[nodiscard]] Reply<std::vector<Result<CachePut>>> put_many(std::span<const CachePutItem> items,
                                                              std::span<const Result<std::string>> encoded);
  [[nodiscard]] Reply<std::uint64_t> invalidate_tag(std::string_view tag);
  [[nodiscard]] Reply<void> invalidate(const BrandedId& id);
  [[nodiscard]] Result<Applied> apply(const BrandedId& id, const BrandedId& version);
  void flush();
  void close();

  [[nodiscard]] bool serving() const noexcept { return serving_.load(std::memory_order_acquire); }
  [[nodiscard]] CacheStats stats() const;
  [[nodiscard]] const CacheOptions& options() const noexcept { return options_; }
  [[nodiscard]] detail::Source* drives() const noexcept;
  [[nodiscard]] detail::Target* continues_on() const noexcept;

  void armed() noexcept override;
  void lost() noexcept override;
  void refused() noexcept override { counters_.coherence_refused.fetch_add(1, std::memory_order_relaxed); }
  void heard(const CoherenceMessage& message) noexcept override;
  void changed(const BrandedId& id) noexcept override;
  void all_changed() noexcept override { flush(); }

  /// What the channel of loads says, and that something of it may be missing.
  void load_heard(std::string_view message);
  void look_at_all();
  /// For a test that gives the clock: what is due by it.
  void run_due() {
    deadlines_.run_due();
    lease_turns_.run_due();
  }
  void ignored() noexcept override { counters_.coherence_ignored.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Waiting {
    detail::CacheWaiter* waiter;
    std::uint32_t generation;  // when it joined
  };
  /// What a process tells of its load to those who wait for it.
  struct LoadTold {
    std::string token;
    char how = 'x';  // f filled, a there is nothing, e failed, x not known
    std::string error;
  };
  /// One read of an id on the way: L2, then the loader, then the fill.
  struct Flight {
    BrandedId id;
    std::uint32_t generation = 0;  // of L1, when what it brings began to be read
    std::uint64_t evictions = 0;   // of the watch, at the same time
    std::uint64_t floor = 0;       // of the watch, at the same time
    bool marked = false;           // something was heard since
    std::size_t early = 0;         // then: so many of the waiters joined before the first thing heard
    std::vector<Waiting> waiters;
    BrandedId version;  // minted before the load
    std::chrono::steady_clock::time_point load_began;
    std::optional<CancelToken> stop;  // guarded by the shard's mutex: of its asynchronous load, while it runs
    bool stopped = false;             // guarded by the shard's mutex: that load was asked to end
    std::optional<Error> not_minted;
    std::chrono::milliseconds ttl{0};   // of the row that is loaded
    std::optional<std::int64_t> drops;  // of tags, when L2 was read
    std::chrono::steady_clock::time_point drops_read;
    Ticks asked = 0;  // when L2 was asked last: the row's time there is counted from then on, or later
    int reads = 0;
    bool corrupt = false;    // L2 holds bytes that are no frame
    bool outdated = false;   // L2 holds less than was heard of
    bool in_step = false;    // L2 is read on the connection that hears: pushes before the answer are of before it
    bool away = false;       // L2 did not answer
    bool elsewhere = false;  // its row has gone ahead of its slot: the node that tells knows nothing of it
    bool ahead = false;      // of a row whose time is not over yet
    Ticks margin = 0;        // then: a row of L2 with less time left is the one that is to be replaced
    bool late = false;       // its loader is: nobody waits any more
    bool aside = false;      // of those who ask while the loader is late: it reads L2 alone
    std::shared_ptr<Flight> beside;  // then: whose loader that is
    std::uint64_t writes = 0;        // guarded by the shard's mutex: the version that it writes to L2
    bool timed = false;              // the loader's deadline runs

    // Where the table has no loader, or a call its own. Guarded by the shard's mutex until it is decided.
    std::shared_ptr<const LoadBytes> own_load;
    bool decided = false;  // who loads, or that nobody does
    // Calls with a loader that came after it was decided that nobody loads: a flight of their own follows.
    std::vector<detail::CacheWaiter*> after;
    std::shared_ptr<const LoadBytes> after_load;

    // Where loads are shared between processes. Guarded by the shard's mutex.
    enum class Lease : std::uint8_t {
      none,
      asked,    // the server is asked who loads
      waits,    // another process loads
      held,     // this one does
      lost,     // it did, and what it brings counts for nothing any more
      written,  // given back with what was loaded
    };
    Lease lease = Lease::none;
    std::string token;                // of this flight
    std::string holder;               // whom it waits for
    std::optional<LoadTold> told;     // what was heard while it was asked
    std::optional<BrandedId> stands;  // the row that L2 had when it was read

    /// With the shard's mutex.
    void ask_to_stop(const char* why) {
      if (!stop)
        return;
      stop->cancel(why);
      stopped = true;
    }
  };
  using FlightPointer = std::shared_ptr<Flight>;
  /// What is heard of an id while something runs for it.
  struct Watch {
    std::uint64_t floor = 0;      // value of the newest version heard
    std::uint64_t evictions = 0;  // changes without a version
    std::uint32_t users = 0;
    FlightPointer flight;
    FlightPointer aside;  // while the loader of `flight` is late, or a little longer
  };
  /// Of loads of an id, one after the other.
  struct Failure {
    Error error;
    Ticks until = 0;
    Ticks wait = 0;
  };
  static constexpr std::size_t kMostFailures = 4096;  // a shard
  struct alignas(64) Shard {
    Shard(std::size_t max_bytes, L1::Front* front) : l1(max_bytes, front) {}
    L1 l1;
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Watch> watches;     // guarded by mutex
    std::unordered_map<std::uint64_t, Failure> failures;  // guarded by mutex
    Floors floors;                                        // guarded by mutex
  };
  /// Hits that one thread counts: no other writes into its line, so that a hit costs no more where threads are many.
  struct alignas(64) Hits {
    std::atomic<std::uint64_t> count{0};
  };
  static constexpr std::size_t kOwnHits = 64;     // threads that have a count of their own
  static constexpr std::size_t kSharedHits = 16;  // counts that the others share
  struct Counters {
    std::atomic<std::uint64_t> misses{0}, l2_hits{0}, fills{0}, absent{0}, coalesced{0}, load_errors{0}, load_late{0},
        backed_off{0}, refreshed{0}, stale_served{0}, outages{0}, l2_write_errors{0}, corrupt{0}, superseded{0},
        load_waits{0}, too_large{0}, coherence_applied{0}, coherence_stale{0}, coherence_ignored{0},
        coherence_refused{0}, flushes{0};
  };
  /// What a flight ends with.
  struct Outcome {
    Result<CachedBytes> answer;
    Ticks life = 0;  // in L1; 0: not kept
    bool told_absent = false;
    bool load_failed = false;
    bool in_l2 = false;
    Ticks rest = 0;  // in L2, of what was read there
  };
  using End = Exchange::End;

  // table.cpp
  [[nodiscard]] Result<void> begin_to_report();
  [[nodiscard]] Ticks now() const noexcept;
  void count_hit(std::uint32_t thread) noexcept;
  [[nodiscard]] bool in_l1(const BrandedId& id, Ticks at, std::uint32_t generation, CachedBytes& into,
                           Ticks* left = nullptr) const;
  [[nodiscard]] std::size_t shard_number(std::uint64_t hash) const noexcept { return (hash >> 40) & last_shard_; }
  [[nodiscard]] Shard& shard_of(const BrandedId& id) noexcept { return *shards_[shard_number(digits_of(id).hash())]; }
  [[nodiscard]] Result<void> check_kind(const BrandedId& id) const;
  [[nodiscard]] Ticks shortened(std::chrono::milliseconds ttl);
  /// `ttl`: of its row, where that is known.
  void heard_version(Shard& shard, const BrandedId& id, std::uint64_t version, std::chrono::milliseconds ttl);
  void remember(Shard& shard, std::uint64_t id, std::uint64_t version, std::chrono::milliseconds ttl,
                Floors::Full full = Floors::Full::forget_oldest) const;
  static void mark_early(Watch& watch) noexcept;
  static void release(Shard& shard, std::uint64_t id);
  [[nodiscard]] std::optional<CachedBytes> stale_row(const BrandedId& id);
  static constexpr int kShareBits = 16;
  /// Whether less than its share of the row's time in L1 is left.
  [[nodiscard]] bool near_end(Ticks left, const CachedBytes& row) const noexcept {
    return (left << kShareBits) < refresh_share_ * (left + static_cast<Ticks>(row.age.count()));
  }
  /// `life`: the whole time of the row in L1.
  void refresh_ahead(const BrandedId& id, Ticks life);
  [[nodiscard]] FlightPointer start_flight(const Shard& shard, Watch& watch, const BrandedId& id,
                                           std::shared_ptr<const LoadBytes> own_load = {}) const;
  [[nodiscard]] FlightPointer start_aside(const Shard& shard, Watch& watch) const;
  void join_with(const Shard& shard, Watch& watch, const std::shared_ptr<const LoadBytes>& own_load,
                 detail::CacheWaiter* waiter) const;
  [[nodiscard]] bool has_loader() const noexcept { return load_ || load_async_; }
  [[nodiscard]] std::uint64_t floor_of(const Flight& flight);
  /// Whether somebody loads; from now on no loader joins.
  [[nodiscard]] bool decide_loader(Flight& flight);
  void refresh(Flight& flight, bool reads_l2);
  enum class Told : std::uint8_t { here, by_push };
  void change(const BrandedId& id, Told told);
  /// Who reads the answer: a caller who waits for a reply may drive the main connection, all others leave it to the
  /// library's thread. What a flight that has begun asks after its first question is not refused at the client's in-flight bound.
  enum class ReadBy : std::uint8_t { library, library_again, caller };
  /// On the main connection, or under tracking on the one that hears.
  void send_main(Exchange* call, std::chrono::milliseconds deadline, ReadBy reader);
  void send(Exchange* call, std::chrono::milliseconds deadline, ReadBy reader);
  /// The node that was asked serves the slot still: a key of it has gone ahead.
  [[nodiscard]] static bool is_on_its_way(std::string_view error_text);
  /// Whether others' changes of a row that was written there are heard.
  [[nodiscard]] bool told_of(Exchange::At at) const noexcept {
    return options_.coherence != Coherence::tracking || at == Exchange::At::its_node;
  }
  void put_script(const BrandedId& id, const BrandedId& version, std::string_view value, std::chrono::milliseconds ttl,
                  std::chrono::milliseconds deadline, ReadBy reader, End end);

  // flight.cpp
  void read(std::span<const FlightPointer> flights, ReadBy reader);
  void read_done(std::span<const FlightPointer> flights, Result<std::vector<Value>> answers);
  void read_one(const FlightPointer& flight, std::span<const Value> replies);
  void without_l2(const FlightPointer& flight, Error why);
  void read_again(const FlightPointer& flight, const Frame& newer);
  void load(const FlightPointer& flight);
  void run_loader(const FlightPointer& flight);
  void loaded(const FlightPointer& flight, LoadedBytes result);
  void fill(const FlightPointer& flight, std::string value);
  void filled(const FlightPointer& flight, std::string value, Result<std::vector<Value>> answers);
  void fill_by_script(const FlightPointer& flight, const std::string& value);
  void written(const FlightPointer& flight, std::string value, bool over_nothing);
  void overdue(const FlightPointer& flight);
  [[nodiscard]] Result<CachedBytes> or_stale(const BrandedId& id, Result<CachedBytes> answer);
  [[nodiscard]] std::optional<Error> failed_lately(const BrandedId& id);
  void load_failed(const BrandedId& id, const Error& error);
  void load_succeeded(const BrandedId& id);
  void land(const FlightPointer& flight, Outcome outcome);

  // lease.cpp
  [[nodiscard]] Result<void> listen_for_loads();
  void ask_lease(const FlightPointer& flight);
  void lease_answered(const FlightPointer& flight, Result<std::vector<Value>> answers);
  void load_told(const FlightPointer& flight, const LoadTold& told);
  void look_again(const FlightPointer& flight);
  void look_again(const BrandedId& id);
  void tell_of_no_holder(const BrandedId& id);
  void keep_lease(const FlightPointer& flight);
  void lease_lost(Flight& flight);
  void take_back_older(const Flight& flight);
  void fill_and_end(const FlightPointer& flight, std::string value);
  void end_lease(const FlightPointer& flight, const LoadTold& told, const std::optional<BrandedId>& version);
  void end_waits(const char* why);
  [[nodiscard]] FlightPointer leave_waiting(Shard& shard, const BrandedId& id, const Flight* which);

  // writes.cpp
  struct Writing {
    BrandedId id;
    BrandedId version;
    std::string value;
    std::chrono::milliseconds ttl{0};
    Ticks began = 0;
    std::uint32_t generation = 0;
    std::uint64_t evictions = 0;
  };
  using PutEnd = std::function<void(Result<CachePut>)>;
  /// Calls `end` once, at once when nothing is sent.
  void put_one(const BrandedId& id, std::string_view value, std::optional<BrandedId> version,
               const std::vector<std::string>& tags, std::optional<std::chrono::milliseconds> ttl, PutEnd end);
  [[nodiscard]] Result<CachePut> put_done(const Writing& writing, Result<std::vector<Value>> answers,
                                          Exchange::At at_node);
  using RemoveEnd = std::function<void(Result<void>)>;
  void remove(const BrandedId& id, RemoveEnd end);
  enum class Removes : std::uint8_t { lease, row };
  void remove_alone(const BrandedId& id, Removes what, RemoveEnd end);

  // tags.cpp
  struct TagDrop;
  [[nodiscard]] Result<void> check_entry(const std::vector<std::string>& tags,
                                         std::optional<std::chrono::milliseconds> ttl) const;
  /// `drops`: of tags, before the value was read. `replaces`: the row that was there then and is to be replaced.
  void put_tagged_script(const BrandedId& id, const BrandedId& version, std::string_view value,
                         std::chrono::milliseconds ttl, const std::vector<std::string>& tags,
                         std::optional<std::int64_t> drops, std::optional<BrandedId> replaces,
                         std::chrono::milliseconds deadline, ReadBy reader, End end);
  void fill_tagged(const FlightPointer& flight, Loaded<std::string> found);
  void land_untaken(const FlightPointer& flight, CachedBytes answer);
  void drop_some(const std::shared_ptr<TagDrop>& drop);
  void mark_flights();
  void some_dropped(const std::shared_ptr<TagDrop>& drop, Result<std::vector<Value>> answers);

  const std::shared_ptr<client::Core> core_;
  const CacheOptions options_;
  const TableKeys keys_;
  const LoadBytes load_;
  const LoadBytesAsync load_async_;
  std::vector<std::unique_ptr<Shard>> shards_;
  LoadPool pool_;
  Deadlines deadlines_;
  Deadlines lease_turns_;  // each third of a lease: renewals, and looks of those who wait
  std::optional<Subscription> loads_heard_;
  const std::uint64_t token_salt_;
  std::atomic<std::uint64_t> tokens_{0};
  std::shared_ptr<Hearing> coherence_;
  std::unique_ptr<Report> report_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> own_loads_{false};  // a call came with a loader of its own
  // All that a hit reads of the table, in one line.
  alignas(64) const std::atomic<std::uint64_t>* const time_;  // null: the clock
  const std::uint64_t opened_ms_;
  const std::uint32_t brand_;  // of the kind
  std::uint32_t last_shard_ = 0;
  std::unique_ptr<L1::Front[]> fronts_;
  const std::unique_ptr<std::array<Hits, kOwnHits + kSharedHits>> hits_;
  std::atomic<std::uint32_t> generation_{1};
  std::atomic<bool> serving_{false};
  std::atomic<std::uint32_t> lost_generation_{0};  // what L1 had when the subscription was lost; 0: nothing
  const Ticks refresh_share_;                      // in 2^-kShareBits
  alignas(64) Counters counters_;
  client::Histogram load_time_;
  client::Histogram lag_;  // of what is heard, since its version was minted
  std::atomic<std::uint64_t> random_{0x9E3779B97F4A7C15};
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
