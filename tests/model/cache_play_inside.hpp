// One random history of cache tables over a played server. All that happens happens on one thread, chosen by one row of random
// numbers; its parts are in the files cache_play*.cpp.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/cache_history.hpp"
#include "model/cache_play.hpp"
#include "model/cache_server.hpp"

namespace echomq::model {

class CachePlay {
 public:
  /// `trace`: where there is one all steps are written down.
  CachePlay(std::uint64_t seed, const CachePlan& plan, CacheCount& count, std::vector<std::string>* trace)
      : random_(seed), hears_(plan.hears), extended_(plan.extended), count_(count), trace_(trace) {}

  /// What went wrong.
  std::optional<std::string> run();

 private:
  static constexpr int kIds = 2;
  static constexpr std::array<BrandedId, kIds> kId = {BrandedId{"USR0NgWEfAE00A"}, BrandedId{"USR0NgWEfAE00B"}};
  static constexpr std::uint64_t kTtl = 400;
  static constexpr std::uint64_t kStale = 800;
  /// No request and no load takes longer.
  static constexpr std::uint64_t kPatience = 60;
  /// Where loads are shared, and are slow enough to be renewed: a lease outlives what it takes to renew it.
  static constexpr std::uint64_t kLease = 240;
  static constexpr std::uint64_t kLongLoad = 300;
  /// Each id has a tag of its own, and one that both have.
  static constexpr std::array<const char*, 3> kTags = {"first", "second", "both"};

  class Random {
   public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
      std::uint64_t z = (state_ += 0x9E3779B97F4A7C15);
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      return z ^ (z >> 31);
    }
    std::uint64_t below(std::uint64_t bound) { return next() % bound; }
    bool one_in(std::uint64_t count) { return below(count) == 0; }

   private:
    std::uint64_t state_;
  };
  struct State {
    std::uint64_t version = 0;
    bool absent = true;
  };
  struct Load {
    int table;
    int id;
    LoadDone done;
    std::optional<State> read;
    std::uint64_t since;
  };
  /// A writer between its put and its message.
  struct Placing {
    int table;
    int id;
    std::uint64_t version;
    std::int64_t begin;
    Reply<CachePut> reply;
  };
  struct Actor;
  struct Waiter final : detail::CacheWaiter {
    Waiter(Actor& its_actor, int its_id, std::int64_t its_begin) : actor(its_actor), id(its_id), begin(its_begin) {}
    void answer(Result<CachedBytes> answer) noexcept override { actor.play.answered(*this, std::move(answer)); }
    Actor& actor;
    int id;
    std::int64_t begin;
    std::int64_t begin_ms = 0;
    bool done = false;
  };
  /// A process: a table and its connections.
  struct Actor {
    Actor(CachePlay& its_play, int its_number, CacheOptions with);
    ~Actor() { table->close(); }

    /// What its main connection was asked may be late, or never answered.
    void disturbed() { undisturbed_since = play.server_.time + 2 * kLease; }

    [[nodiscard]] std::string name() const { return "table " + std::to_string(number); }
    [[nodiscard]] bool coherent() const { return options.coherence != Coherence::none; }
    void heard(const resp::View& push, const CacheConnection::Versions& versions);
    void told(const CacheConnection::Versions& versions);
    void told(const BrandedId& id, std::uint64_t version, bool said = true);

    CachePlay& play;
    const int number;
    const CacheOptions options;
    CacheConnection main;
    CacheConnection hearing;
    std::shared_ptr<CacheCore> core;
    std::shared_ptr<cache::Table> table;
    std::deque<std::string> loads_told;
    std::uint64_t loads_begun = 0;
    std::uint64_t undisturbed_since = 0;
    bool missed = false;  // perhaps, of what others said
  };
  struct Dropping {
    int table;
    std::array<std::uint64_t, kIds> known;  // of the source, when it began
    Reply<std::uint64_t> reply;
  };
  struct Invalidating {
    int table;
    int id;
    std::uint64_t known;
    Reply<void> reply;
  };
  struct Job {
    Actor* to;
    int id;
    std::uint64_t version;
  };

  [[nodiscard]] static std::string key_of(int id) {
    return "ecc:{t}:" + std::string(kId[static_cast<std::size_t>(id)].text());
  }
  [[nodiscard]] static BrandedId version_of(std::uint64_t number) { return *BrandedId::encode("EVT", number); }

  template <typename Text>
  void note(const Text& text) {
    if (trace_ != nullptr)
      trace_->push_back(std::to_string(step_) + " @" + std::to_string(server_.time) + ": " + text());
  }
  void executes(const CacheConnection::Command& command, const CacheConnection* by);
  void record(CacheEvent event) { history_.push_back(event); }

  // cache_play.cpp
  [[nodiscard]] CacheOptions options();
  void extend();
  void act();
  void act_extended(Actor& actor, int id);
  [[nodiscard]] std::uint64_t oldest() const;
  void advance(std::uint64_t by);
  void advance_at_once(std::uint64_t by);
  void break_something(Actor& actor);
  /// The connection is found dead and made anew.
  void notice(Actor& actor);
  /// Something that is under way goes one step on.
  void progress();
  /// Calls that have ended: writers go on.
  void look();
  [[nodiscard]] bool all_answered() const;
  /// All that is under way comes to its end; then whoever could hear of everything holds nothing old.
  void settle();

  // cache_play_reads.cpp
  void read(Actor& actor, int id);
  void read_both(Actor& actor);
  void peek(Actor& actor, int id);
  void answered(Waiter& waiter, Result<CachedBytes> answer);

  // cache_play_writes.cpp
  State& write_source(int id, bool absent);
  [[nodiscard]] std::uint64_t newest_until(int id, std::uint64_t version) const;
  void write(Actor& actor, int id);
  /// A change without a value: the row goes, and others are told.
  void retire(Actor& actor, int id);
  void tell(Actor& from, int id, std::uint64_t version);
  void take_job();
  void look_at_puts();

  // cache_play_loads.cpp
  void load(std::size_t which);
  void invalidate(Actor& actor, int id);
  void look_at_invalidations();
  // Laws of shared loads. While whoever loads could renew its right it has it.
  void lease_over(const std::string& key, const CacheConnection* by);
  /// What was loaded by whoever has lost the right is not kept.
  void refused(const Actor& actor, const std::string& key, std::uint64_t version);
  /// Nobody loads without having been given the right, but where the server is away.
  void count_loads();

  // cache_play_tags.cpp: what single versions have of their own, the same wherever they come from, and drops.
  [[nodiscard]] std::optional<std::chrono::milliseconds> ttl_of(std::uint64_t version) const;
  [[nodiscard]] bool is_tagged(std::uint64_t version) const { return tags_ && version % 5 != 0; }
  [[nodiscard]] std::vector<std::string> tags_of(int id, std::uint64_t version) const;
  /// One table drops, so that all it drops it is told of: where tables do not hear of each other, what another has dropped is in
  /// no set any more.
  void drop(Actor& actor, std::size_t tag);
  void look_at_drops();

  Random random_;
  const Hears hears_;
  const bool extended_;
  CacheCount& count_;
  std::vector<std::string>* const trace_;
  bool lossy_ = false;
  bool deletes_ = false;
  bool untold_ = false;  // of a change nobody told
  bool lease_ = false;
  bool tags_ = false;
  bool own_ttl_ = false;
  bool drops_ = false;
  ServeStale stale_ = ServeStale::never;
  std::uint64_t ids_ = std::uint64_t{1} << 40;
  std::int64_t step_ = 0;
  CacheServer server_;
  std::vector<State> source_;
  std::array<std::set<std::uint64_t>, kIds> versions_;
  std::set<std::uint64_t> put_;
  std::set<std::uint64_t> failed_;  // of these the puts
  std::map<std::uint64_t, std::set<int>> loaded_by_;
  std::deque<Load> loads_;
  std::vector<Placing> placings_;
  std::vector<Invalidating> invalidations_;
  std::vector<Dropping> droppings_;
  std::deque<Job> jobs_;
  std::list<Waiter> waiters_;
  std::vector<CacheEvent> history_;
  std::optional<std::string> wrong_;
  std::vector<std::unique_ptr<Actor>> actors_;  // last: gone first, and what they still answer is recorded
};

}  // namespace echomq::model
