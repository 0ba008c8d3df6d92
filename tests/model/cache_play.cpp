// Random histories of cache tables over a played server.
#include "model/cache_play.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "model/cache_history.hpp"
#include "model/cache_server.hpp"
#include "script/registry.hpp"

namespace echomq::model {
namespace {

using std::chrono::milliseconds;

constexpr int kIds = 2;
constexpr std::array<BrandedId, kIds> kId = {BrandedId{"USR0NgWEfAE00A"}, BrandedId{"USR0NgWEfAE00B"}};
constexpr std::uint64_t kTtl = 400;
constexpr std::uint64_t kStale = 800;
/// No request and no load takes longer.
constexpr std::uint64_t kPatience = 60;
/// Where loads are shared, and are slow enough to be renewed: a lease outlives what it takes to renew it.
constexpr std::uint64_t kLease = 240;
constexpr std::uint64_t kLongLoad = 300;
/// Each id has a tag of its own, and one that both have.
constexpr std::array<const char*, 3> kTags = {"first", "second", "both"};

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

[[nodiscard]] std::string key_of(int id) { return "ecc:{t}:" + std::string(kId[static_cast<std::size_t>(id)].text()); }
[[nodiscard]] BrandedId version_of(std::uint64_t number) { return *BrandedId::encode("EVT", number); }

/// One history. All that happens happens on this thread, chosen by one row of random numbers.
class Play {
 public:
  Play(std::uint64_t seed, const CachePlan& plan, CacheCount& count, std::vector<std::string>* trace)
      : random_(seed), hears_(plan.hears), extended_(plan.extended), count_(count), trace_(trace) {}

  std::optional<std::string> run() {
    if (trace_ != nullptr)
      server_.on_execute = [this](const auto& command, const CacheConnection* by) { executes(command, by); };
    server_.whole_life = kTtl;
    server_.on_early_end = [this](const std::string& key) {
      record({.kind = CacheEvent::Kind::ended, .id = key == key_of(0) ? 0 : 1, .end = ++step_});
    };
    lossy_ = random_.one_in(3);
    deletes_ = random_.one_in(3);
    if (extended_)
      extend();
    for (int i = 0; i < kIds; ++i) {
      source_.push_back({});
      if (random_.one_in(2))
        write_source(i, false);
    }
    const std::size_t tables = 1 + random_.below(3);
    for (std::size_t i = 0; i < tables; ++i)
      actors_.push_back(std::make_unique<Actor>(*this, static_cast<int>(i), options()));
    const std::uint64_t steps = 20 + random_.below(150);
    for (std::uint64_t i = 0; i < steps && !wrong_; ++i)
      act();
    settle();
    if (!wrong_)
      count_loads();
    const auto slack = static_cast<std::int64_t>(3 * kPatience + 16 + (lease_ ? kLongLoad : 0));
    constexpr auto kFresh = static_cast<std::int64_t>(kTtl);
    constexpr auto kServedStale = static_cast<std::int64_t>(kTtl + kStale);
    if (auto broken = find_violation(
            history_,
            {.fresh_ms = kFresh + slack, .stale_ms = kServedStale + slack, .slack_ms = slack, .read = !deletes_}))
      return broken;
    return wrong_;
  }

 private:
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
    Actor(Play& its_play, int its_number, CacheOptions with)
        : play(its_play),
          number(its_number),
          options(with),
          main(play.server_, CacheConnection::Listens::no),
          hearing(play.server_, play.hears_ == Hears::tracking ? CacheConnection::Listens::to_changes
                                                               : CacheConnection::Listens::to_channel),
          core(std::make_shared<CacheCore>(main, play.ids_)) {
      table = std::make_shared<cache::Table>(
          core, with, nullptr,
          [this](const BrandedId& id, LoadDone done) {
            const int which = id == kId[0] ? 0 : 1;
            play.note([&] { return name() + " begins to load " + std::to_string(which); });
            play.loads_.push_back({number, which, std::move(done), {}, play.server_.time});
            ++loads_begun;
          },
          &play.server_.time);
      main.on_refused = [this](const std::string& key, std::uint64_t version) { play.refused(*this, key, version); };
      if (with.coherence == Coherence::none) {
        table->armed();
        return;
      }
      table->hear_by(std::make_shared<CacheHearing>(hearing));
      hearing.on_push = [this](const resp::View& push, const CacheConnection::Versions& versions) {
        heard(push, versions);
      };
      hearing.on_confirmed = [this](const CacheConnection::Versions& versions) {
        table->armed();
        play.note([&] { return name() + " hears again"; });
        told(versions);
      };
      hearing.listen();
      hearing.execute();
      hearing.deliver();
    }
    ~Actor() { table->close(); }

    /// What its main connection was asked may be late, or never answered.
    void disturbed() { undisturbed_since = play.server_.time + 2 * kLease; }

    [[nodiscard]] std::string name() const { return "table " + std::to_string(number); }
    [[nodiscard]] bool coherent() const { return options.coherence != Coherence::none; }
    void heard(const resp::View& push, const CacheConnection::Versions& versions) {
      cache::read_push(push, "ecc:{t}:", "ecc:{t}:coh", *table);
      if (options.coherence == Coherence::tracking) {
        play.note([&] { return name() + " is told of changes"; });
        return told(versions);
      }
      const resp::View payload = push.at(2);
      const auto message = CoherenceMessage::parse(*payload.as_text());
      told(message->id, message->version.value());
    }
    void told(const CacheConnection::Versions& versions) {
      for (int id = 0; id < kIds; ++id) {
        if (const auto at = versions.find(key_of(id)); at != versions.end())
          told(kId[static_cast<std::size_t>(id)], at->second, false);
      }
    }
    void told(const BrandedId& id, std::uint64_t version, bool said = true) {
      const int which = id == kId[0] ? 0 : 1;
      // A drop tells of a version that the source never had: of all that was before it.
      version = play.newest_until(which, version);
      play.note(
          [&] { return name() + " has heard of " + std::to_string(which) + " version " + std::to_string(version); });
      play.record({.kind = CacheEvent::Kind::heard,
                   .table = number,
                   .id = which,
                   .version = version,
                   .said = said,
                   .end = ++play.step_});
    }

    Play& play;
    const int number;
    const CacheOptions options;
    CacheConnection main;
    CacheConnection hearing;
    std::shared_ptr<CacheCore> core;
    std::shared_ptr<cache::Table> table;
    std::deque<std::string> loads_told;
    std::uint64_t loads_begun = 0;
    std::uint64_t undisturbed_since = 0;
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

  template <typename Text>
  void note(const Text& text) {
    if (trace_ != nullptr)
      trace_->push_back(std::to_string(step_) + " @" + std::to_string(server_.time) + ": " + text());
  }
  void executes(const CacheConnection::Command& command, const CacheConnection* by) {
    std::string text = "  ";
    for (const auto& actor : actors_) {
      if (by == &actor->main || by == &actor->hearing)
        text += actor->name() + (by == &actor->main ? ": " : " (hearing): ");
    }
    for (const std::string& part : command) {
      const auto script = std::ranges::find(script::all_scripts(), part, &script::ScriptSource::sha1);
      text += (script != script::all_scripts().end() ? std::string(script->name) : part) + " ";
    }
    note([&] { return text; });
  }
  void record(CacheEvent event) { history_.push_back(event); }

  [[nodiscard]] CacheOptions options() {
    CacheOptions out{.table = "t", .kind = "USR", .ttl = milliseconds(kTtl)};
    out.jitter = random_.one_in(2) ? 0 : 0.5;
    out.negative_ttl = milliseconds(random_.one_in(2) ? 0 : kTtl / 2);
    constexpr std::size_t kSizes[] = {0, 100, 300, 65536, 65536, 65536};
    out.l1_bytes = kSizes[random_.below(6)];
    out.coherence = hears_ == Hears::broadcast  ? Coherence::broadcast
                    : hears_ == Hears::tracking ? Coherence::tracking
                                                : Coherence::none;
    out.outage = random_.one_in(4) ? CacheOutage::fail : CacheOutage::load;
    if (random_.one_in(3)) {
      out.serve_stale = random_.one_in(2) ? ServeStale::at_once : ServeStale::on_failure;
      out.stale = milliseconds(kStale);
    }
    out.refresh_ahead = random_.one_in(3) ? 0.5 : 0;
    out.load_backoff = milliseconds(random_.one_in(4) ? 30 : 0);
    if (!extended_)
      return out;
    if (lease_)
      out.load_lease = milliseconds(kLease);
    out.load_deadline = milliseconds(random_.one_in(3) ? 40 : 0);
    out.tags = tags_;
    if (tags_) {  // a row is noted under its tag for as long as the process that puts it knows that it may be served
      out.serve_stale = stale_;
      out.stale = milliseconds(stale_ == ServeStale::never ? 0 : kStale);
    }
    return out;
  }

  void extend() {
    lease_ = !random_.one_in(3);
    tags_ = random_.one_in(2);
    own_ttl_ = random_.one_in(2);
    drops_ = tags_ && !random_.one_in(3);
    if (drops_ || (lease_ && random_.one_in(3)))
      deletes_ = true;
    stale_ = random_.one_in(3) ? (random_.one_in(2) ? ServeStale::at_once : ServeStale::on_failure) : ServeStale::never;
    server_.on_load_told = [this](const std::string& message) {
      for (auto& actor : actors_)
        actor->loads_told.push_back(message);
    };
    server_.on_lease_over = [this](const std::string& key, const CacheConnection* by) { lease_over(key, by); };
  }

  // What single versions have of their own, the same wherever they come from.

  [[nodiscard]] std::optional<milliseconds> ttl_of(std::uint64_t version) const {
    constexpr std::int64_t kOwn[] = {40, 150, 1200};
    if (!own_ttl_ || version % 4 == 3)
      return std::nullopt;
    return milliseconds(kOwn[version % 4]);
  }
  [[nodiscard]] bool is_tagged(std::uint64_t version) const { return tags_ && version % 5 != 0; }
  [[nodiscard]] std::vector<std::string> tags_of(int id, std::uint64_t version) const {
    if (!is_tagged(version))
      return {};
    return {kTags[static_cast<std::size_t>(id)], kTags[2]};
  }
  [[nodiscard]] std::uint64_t newest_until(int id, std::uint64_t version) const {
    const auto& all = versions_[static_cast<std::size_t>(id)];
    const auto at = all.upper_bound(version);
    return at == all.begin() ? 0 : *std::prev(at);
  }

  // Laws of shared loads.

  /// While whoever loads could renew its right it has it.
  void lease_over(const std::string& key, const CacheConnection* by) {
    for (const auto& actor : actors_) {
      if (&actor->main != by || server_.time < actor->undisturbed_since)
        continue;
      for (const Load& load : loads_) {
        if (load.table == actor->number && key.ends_with(kId[static_cast<std::size_t>(load.id)].text()))
          wrong_ = actor->name() + " loads " + std::to_string(load.id) + " still, and has not renewed its right to";
      }
    }
  }

  /// What was loaded by whoever has lost the right is not kept.
  void refused(const Actor& actor, const std::string& key, std::uint64_t version) {
    if (actor.options.refresh_ahead > 0 || put_.contains(version))
      return;
    const int id = key == key_of(0) ? 0 : 1;
    CachedBytes row;
    if (actor.table->peek(kId[static_cast<std::size_t>(id)], row) && row.value && row.version.value() == version)
      wrong_ = actor.name() + " keeps version " + std::to_string(version) + ", and had lost the right to load it";
  }

  /// Nobody loads without having been given the right, but where the server is away.
  void count_loads() {
    for (const auto& actor : actors_) {
      const CacheStats stats = actor->table->stats();
      count_.load_waits += stats.load_waits;
      const std::uint64_t may = server_.grants(actor->main) + stats.outages;
      if (lease_ && actor->loads_begun > may)
        wrong_ = actor->name() + " has loaded " + std::to_string(actor->loads_begun) + " times, and had the right to " +
                 std::to_string(may);
    }
  }

  // Steps.

  void act() {
    Actor& actor = *actors_[random_.below(actors_.size())];
    const auto id = static_cast<int>(random_.below(kIds));
    if (extended_ && random_.one_in(10)) {
      act_extended(actor, id);
      return look();
    }
    switch (random_.below(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: read(actor, id); break;
      case 5: read_both(actor); break;
      case 6: peek(actor, id); break;
      case 7:
      case 8: write(actor, id); break;
      case 9:
        if (deletes_)
          invalidate(actor, id);
        break;
      case 10:
        if (deletes_)
          retire(actor, id);
        break;
      case 11: advance(random_.one_in(5) ? 1 + random_.below(kTtl) : 1 + random_.below(30)); break;
      case 12: break_something(actor); break;
      case 13:
        if (!jobs_.empty())
          take_job();
        break;
      default: progress(); break;
    }
    look();
  }

  [[nodiscard]] std::uint64_t oldest() const {
    std::uint64_t since = server_.time;
    for (const auto& actor : actors_) {
      if (const auto at = actor->main.waits_since())
        since = std::min(since, *at);
      if (const auto at = actor->hearing.waits_since())
        since = std::min(since, *at);
    }
    for (const Load& load : loads_)
      since = std::min(since, load.since + (lease_ ? kLongLoad - kPatience : 0));
    return since;
  }

  void act_extended(Actor& actor, int id) {
    switch (random_.below(3)) {
      case 0:
        if (drops_)
          drop(*actors_.front(), random_.below(kTags.size()));
        break;
      case 1:
        if (lease_ && deletes_) {  // the source has changed, and nobody puts that
          write_source(id, false);
          untold_ = true;
          invalidate(actor, id);
        }
        break;
      default:
        note([&] { return actor.name() + " loses what is said of loads"; });
        actor.loads_told.clear();
        if (random_.one_in(2))
          actor.table->look_at_all();
        break;
    }
  }

  /// One table drops, so that all it drops it is told of: where tables do not hear of each other, what another has dropped is in
  /// no set any more.
  void drop(Actor& actor, std::size_t tag) {
    note([&] { return actor.name() + " drops the tag " + kTags[tag]; });
    std::array<std::uint64_t, kIds> known{};
    for (std::size_t id = 0; id < kIds; ++id)
      known[id] = tag == id || tag == 2 ? source_[id].version : 0;
    droppings_.push_back({actor.number, known, actor.table->invalidate_tag(kTags[tag])});
  }

  void advance(std::uint64_t by) {
    // In small steps where something is due in between.
    while (extended_ && by > 10) {
      advance_at_once(10);
      by -= 10;
    }
    advance_at_once(by);
  }

  void advance_at_once(std::uint64_t by) {
    for (int i = 0; i < 1000 && server_.time + by > oldest() + kPatience; ++i) {
      for (auto& actor : actors_) {
        if (!actor->main.up())
          actor->main.reconnect();
        if (!actor->hearing.up())
          notice(*actor);
      }
      progress();
      look();
    }
    server_.time += by;
    server_.expire();
    note([&] { return "time passes: " + std::to_string(by); });
    if (!extended_)
      return;
    for (auto& actor : actors_)
      actor->table->run_due();
    look();
  }

  void read(Actor& actor, int id) {
    const std::int64_t begin = ++step_;
    ++count_.reads;
    auto& waiter = waiters_.emplace_back(actor, id, begin);
    waiter.begin_ms = static_cast<std::int64_t>(server_.time.load());
    note([&] { return actor.name() + " asks for " + std::to_string(id); });
    CachedBytes hit;
    if (actor.table->hit(kId[static_cast<std::size_t>(id)], hit)) {
      ++count_.hits;
      return waiter.answer(std::move(hit));
    }
    detail::CacheWaiter* const one = &waiter;
    actor.table->fetch({&kId[static_cast<std::size_t>(id)], 1}, {&one, 1});
  }

  void read_both(Actor& actor) {
    std::array<detail::CacheWaiter*, kIds> all{};
    const std::int64_t begin = ++step_;
    note([&] { return actor.name() + " asks for both"; });
    for (int id = 0; id < kIds; ++id) {
      auto& waiter = waiters_.emplace_back(actor, id, begin);
      waiter.begin_ms = static_cast<std::int64_t>(server_.time.load());
      all[static_cast<std::size_t>(id)] = &waiter;
    }
    actor.table->fetch(kId, all);
  }

  void peek(Actor& actor, int id) {
    const std::int64_t begin = ++step_;
    CachedBytes row;
    if (!actor.table->peek(kId[static_cast<std::size_t>(id)], row))
      return;
    auto& waiter = waiters_.emplace_back(actor, id, begin);
    waiter.begin_ms = static_cast<std::int64_t>(server_.time.load());
    waiter.answer(std::move(row));
  }

  void answered(Waiter& waiter, Result<CachedBytes> answer) {
    if (waiter.done) {
      wrong_ = "a reader was answered twice";
      return;
    }
    waiter.done = true;
    note([&] {
      std::string text = waiter.actor.name() + " answers the read of " + std::to_string(waiter.begin) + " of " +
                         std::to_string(waiter.id) + ": ";
      if (!answer)
        return text + answer.error().message();
      return text + answer->value.value_or("nothing") + " " + std::string(to_string(answer->from));
    });
    if (!answer)
      return;
    CacheEvent event{.kind = CacheEvent::Kind::read, .table = waiter.actor.number, .id = waiter.id};
    event.absent = !answer->value.has_value();
    event.stale = answer->from == CacheFrom::stale;
    event.begin = waiter.begin;
    event.end = ++step_;
    event.begin_ms = waiter.begin_ms;
    event.loaded = true;
    if (!event.absent) {
      event.version = answer->version.value();
      event.loaded = !put_.contains(event.version);
      event.tagged = is_tagged(event.version);
      if (const auto own = ttl_of(event.version)) {
        const bool another = server_.has_time_of_another(event.version);
        event.lives_ms = another ? std::max<std::int64_t>(own->count(), kTtl) : own->count();
      }
      if (*answer->value != "v" + std::to_string(event.version))
        wrong_ = "version " + std::to_string(event.version) + " came with the value of another: " + *answer->value;
    }
    record(event);
  }

  State& write_source(int id, bool absent) {
    State& state = source_[static_cast<std::size_t>(id)];
    state = {++ids_, absent};
    versions_[static_cast<std::size_t>(id)].insert(state.version);
    record({.kind = CacheEvent::Kind::written, .id = id, .version = state.version, .absent = absent, .begin = ++step_});
    note([&] {
      return "the source has " + std::string(absent ? "nothing" : "a value") + " of " + std::to_string(id) +
             ", version " + std::to_string(state.version);
    });
    return state;
  }

  void write(Actor& actor, int id) {
    const std::uint64_t version = write_source(id, false).version;
    put_.insert(version);
    const std::int64_t begin = ++step_;
    note([&] { return actor.name() + " puts " + std::to_string(version); });
    placings_.push_back(
        {actor.number, id, version, begin,
         actor.table->put(kId[static_cast<std::size_t>(id)], "v" + std::to_string(version),
                          {.version = version_of(version), .tags = tags_of(id, version), .ttl = ttl_of(version)})});
  }

  /// A change without a value: the row goes, and others are told.
  void retire(Actor& actor, int id) {
    const std::uint64_t version = write_source(id, random_.one_in(2)).version;
    actor.main.post({"EVALSHA", "", "1", key_of(id), std::string(version_of(version).text())});
    tell(actor, id, version);
  }

  void invalidate(Actor& actor, int id) {
    note([&] { return actor.name() + " invalidates " + std::to_string(id); });
    const std::uint64_t known = source_[static_cast<std::size_t>(id)].version;
    invalidations_.push_back({actor.number, id, known, actor.table->invalidate(kId[static_cast<std::size_t>(id)])});
  }

  void tell(Actor& from, int id, std::uint64_t version) {
    if (lossy_ && random_.one_in(3)) {
      note([&] { return "nobody is told of " + std::to_string(version); });
      return;
    }
    if (hears_ == Hears::broadcast) {
      from.main.post(
          {"PUBLISH", "ecc:{t}:coh", CoherenceMessage{kId[static_cast<std::size_t>(id)], version_of(version)}.text()});
    } else if (hears_ == Hears::job_lane) {
      // One consumer a queue: here each table has one. At least once, in any order.
      for (auto& actor : actors_) {
        for (std::uint64_t times = 1 + random_.below(2); times > 0; --times)
          jobs_.push_back({actor.get(), id, version});
      }
    }
  }

  void take_job() {
    const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(random_.below(jobs_.size()));
    const Job job = *at;
    jobs_.erase(at);
    (void)job.to->table->apply(kId[static_cast<std::size_t>(job.id)], version_of(job.version));
    job.to->told(kId[static_cast<std::size_t>(job.id)], job.version);
  }

  void break_something(Actor& actor) {
    switch (random_.below(6)) {
      case 0:
        note([&] { return actor.name() + " loses its main connection"; });
        actor.disturbed();
        actor.main.reconnect();
        break;
      case 1:
        if (actor.coherent() && actor.hearing.up()) {
          note([&] { return "the hearing of " + actor.name() + " is cut"; });
          actor.hearing.cut();
        }
        break;
      case 2:
        if (!actor.hearing.up())
          notice(actor);
        break;
      case 3: {
        CacheConnection& one = random_.one_in(2) ? actor.main : actor.hearing;
        if (one.can_fail()) {
          note([&] { return "a call of " + actor.name() + " fails"; });
          actor.disturbed();
          one.fail_oldest(Error(Errc::outcome_unknown, "the play says so"), random_.one_in(2));
        }
        break;
      }
      case 4:
        if (!deletes_)
          break;
        server_.run({"DEL", key_of(static_cast<int>(random_.below(kIds)))});
        note([&] { return std::string("somebody deletes a row"); });
        break;
      default:
        if (random_.one_in(3)) {
          note([&] { return actor.name() + " flushes"; });
          actor.table->flush();
        }
        break;
    }
  }

  /// The connection is found dead and made anew.
  void notice(Actor& actor) {
    note([&] { return actor.name() + " notices, and reconnects"; });
    actor.table->lost();
    if (actor.options.serve_stale == ServeStale::never)
      actor.told(server_.versions());  // from now on nothing of L1 is served
    actor.hearing.reconnect();
    actor.hearing.listen();
  }

  /// Something that is under way goes one step on.
  void progress() {
    for (int tries = 0; tries < 4; ++tries) {
      Actor& actor = *actors_[random_.below(actors_.size())];
      if (extended_ && !actor.loads_told.empty() && random_.one_in(2)) {
        const std::string message = std::move(actor.loads_told.front());
        actor.loads_told.pop_front();
        note([&] { return actor.name() + " hears of a load: " + message; });
        return actor.table->load_heard(message);
      }
      CacheConnection& one = random_.one_in(2) ? actor.main : actor.hearing;
      switch (random_.below(5)) {
        case 0:
        case 1:
          if (one.can_execute()) {
            one.execute();
            return;
          }
          break;
        case 2:
          if (one.can_deliver()) {
            ++step_;
            one.deliver();
            return;
          }
          break;
        case 3:
          if (!loads_.empty())
            return load(random_.below(loads_.size()));
          break;
        default:
          if (server_.turn_open())
            return server_.end_turn();
          break;
      }
    }
  }

  void load(std::size_t which) {
    const auto at = loads_.begin() + static_cast<std::ptrdiff_t>(which);
    if (!at->read && random_.one_in(2)) {
      at->read = source_[static_cast<std::size_t>(at->id)];
      return;
    }
    const Load one = *at;
    loads_.erase(at);
    const State found = one.read.value_or(source_[static_cast<std::size_t>(one.id)]);
    if (random_.one_in(8))
      return one.done(fail(Errc::handler_failed, "the source is away"));
    if (extended_ && random_.one_in(2) && one.done.stop().take())
      return one.done(fail(Errc::cancelled, "asked to stop"));
    note([&] {
      return "a load of " + std::to_string(one.id) + " brings " + (found.absent ? "nothing of " : "") +
             std::to_string(found.version);
    });
    if (found.absent)
      return one.done(std::optional<Loaded<std::string>>());
    one.done(std::optional(Loaded<std::string>{"v" + std::to_string(found.version), version_of(found.version),
                                               tags_of(one.id, found.version), ttl_of(found.version)}));
  }

  /// Calls that have ended: writers go on.
  void look() {
    for (auto at = placings_.begin(); at != placings_.end();) {
      if (!at->reply.ready()) {
        ++at;
        continue;
      }
      const auto outcome = at->reply.get();
      if (outcome) {
        record({.kind = CacheEvent::Kind::placed,
                .table = at->table,
                .id = at->id,
                .version = at->version,
                .begin = at->begin,
                .end = ++step_,
                .end_ms = static_cast<std::int64_t>(server_.time.load())});
      }
      note([&] { return "the put of " + std::to_string(at->version) + (outcome ? " has ended" : " has failed"); });
      tell(*actors_[static_cast<std::size_t>(at->table)], at->id, at->version);
      at = placings_.erase(at);
    }
    std::erase_if(invalidations_, [this](Invalidating& one) {
      if (!one.reply.ready())
        return false;
      const auto outcome = one.reply.get();
      // Of loads that are not shared, and of what is written before the right to is looked at, somebody may still write more.
      if (outcome && lease_ && !tags_ && hears_ != Hears::tracking) {
        note([&] { return "the invalidation of " + std::to_string(one.id) + " has ended"; });
        record({.kind = CacheEvent::Kind::invalidated,
                .table = one.table,
                .id = one.id,
                .version = one.known,
                .end = ++step_});
      }
      return true;
    });
    std::erase_if(droppings_, [this](Dropping& one) {
      if (!one.reply.ready())
        return false;
      const auto outcome = one.reply.get();
      note([&] { return std::string("a drop has ") + (outcome ? "ended" : "failed"); });
      count_.drops += outcome ? 1 : 0;
      for (int id = 0; outcome && id < kIds; ++id) {
        record({.kind = CacheEvent::Kind::dropped,
                .table = one.table,
                .id = id,
                .version = one.known[static_cast<std::size_t>(id)],
                .end = ++step_});
      }
      return true;
    });
  }

  [[nodiscard]] bool all_answered() const {
    return std::ranges::all_of(waiters_, [](const Waiter& one) { return one.done; });
  }

  /// All that is under way comes to its end; then whoever could hear of everything holds nothing old.
  void settle() {
    note([&] { return std::string("all comes to rest"); });
    for (int i = 0; i < 100'000; ++i) {
      bool rest = loads_.empty() && placings_.empty() && jobs_.empty() && droppings_.empty() && !server_.turn_open();
      for (auto& actor : actors_) {
        if (!actor->main.up())
          actor->main.reconnect();
        if (!actor->hearing.up())
          notice(*actor);
        rest = rest && actor->main.idle() && actor->hearing.idle() && actor->loads_told.empty();
      }
      if (rest && (!extended_ || all_answered()))
        break;
      if (rest)
        advance(10);  // who waits for another's load looks again
      if (!jobs_.empty())
        take_job();
      progress();
      look();
    }
    for (const Waiter& waiter : waiters_) {
      if (!waiter.done)
        wrong_ = "the read of " + std::to_string(waiter.begin) + " was never answered";
    }
    if (wrong_ || hears_ == Hears::nothing || ((lossy_ || untold_) && hears_ != Hears::tracking))
      return;
    for (auto& actor : actors_) {
      for (int id = 0; id < kIds; ++id) {
        CachedBytes row;
        if (!actor->table->peek(kId[static_cast<std::size_t>(id)], row) || !row.value)
          continue;
        const std::uint64_t there = server_.version(key_of(id));
        if (row.version.value() < there || (hears_ == Hears::tracking && row.version.value() != there && there != 0)) {
          wrong_ = actor->name() + " holds version " + std::to_string(row.version.value()) + " of " +
                   std::to_string(id) + " at rest, and the server " + std::to_string(there);
        }
      }
    }
  }

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

[[nodiscard]] std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

std::optional<std::string> play_cache(const CachePlan& plan, CacheCount& count) {
  const std::uint64_t first = setting("ECHOMQ_MODEL_SEED", plan.first_seed);
  const std::uint64_t histories = setting("ECHOMQ_MODEL_HISTORIES", plan.histories);
  for (std::uint64_t seed = first; seed < first + histories; ++seed) {
    const auto wrong = Play(seed, plan, count, nullptr).run();
    ++count.steps;
    if (!wrong)
      continue;
    std::vector<std::string> trace;
    CacheCount again;
    (void)Play(seed, plan, again, &trace).run();
    std::ostringstream report;
    report << *wrong << "\nseed " << seed << " (ECHOMQ_MODEL_SEED=" << seed << " ECHOMQ_MODEL_HISTORIES=1)\n";
    for (const std::string& line : trace)
      report << "  " << line << '\n';
    return report.str();
  }
  return std::nullopt;
}

}  // namespace echomq::model
