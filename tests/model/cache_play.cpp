// Random histories of cache tables over a played server: steps, time, what breaks, and rest.
#include "model/cache_play_inside.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "script/registry.hpp"

namespace echomq::model {

using std::chrono::milliseconds;

std::optional<std::string> CachePlay::run() {
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

void CachePlay::executes(const CacheConnection::Command& command, const CacheConnection* by) {
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

CacheOptions CachePlay::options() {
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

void CachePlay::extend() {
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

void CachePlay::act() {
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

std::uint64_t CachePlay::oldest() const {
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

void CachePlay::act_extended(Actor& actor, int id) {
  switch (random_.below(3)) {
    case 0:
      if (drops_)
        drop(*actors_.front(), random_.below(kTags.size()));
      break;
    case 1:
      if (deletes_) {  // the source has changed, and nobody puts that
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

void CachePlay::advance(std::uint64_t by) {
  // In small steps where something is due in between.
  while (extended_ && by > 10) {
    advance_at_once(10);
    by -= 10;
  }
  advance_at_once(by);
}

void CachePlay::advance_at_once(std::uint64_t by) {
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

void CachePlay::break_something(Actor& actor) {
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
        actor.missed = true;
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

void CachePlay::notice(Actor& actor) {
  note([&] { return actor.name() + " notices, and reconnects"; });
  actor.table->lost();
  if (actor.options.serve_stale == ServeStale::never)
    actor.told(server_.versions());  // from now on nothing of L1 is served
  actor.hearing.reconnect();
  actor.hearing.listen();
}

void CachePlay::progress() {
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

void CachePlay::look() {
  look_at_puts();
  look_at_invalidations();
  look_at_drops();
}

bool CachePlay::all_answered() const {
  return std::ranges::all_of(waiters_, [](const Waiter& one) { return one.done; });
}

void CachePlay::settle() {
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
    // What it missed may have been of a row that was deleted, and an older put came after: it does not hear of what is loaded then.
    if (deletes_ && hears_ == Hears::broadcast && actor->missed)
      continue;
    for (int id = 0; id < kIds; ++id) {
      CachedBytes row;
      if (!actor->table->peek(kId[static_cast<std::size_t>(id)], row) || !row.value)
        continue;
      const std::uint64_t there = server_.version(key_of(id));
      // Nor of what another loads whose put had failed and was told all the same: that message may be what it missed. (Seed 1206.)
      if (hears_ == Hears::broadcast && actor->missed && failed_.contains(there))
        continue;
      if (row.version.value() < there || (hears_ == Hears::tracking && row.version.value() != there && there != 0)) {
        wrong_ = actor->name() + " holds version " + std::to_string(row.version.value()) + " of " + std::to_string(id) +
                 " at rest, and the server " + std::to_string(there);
      }
    }
  }
}

namespace {

[[nodiscard]] std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

std::optional<std::string> play_cache(const CachePlan& plan, CacheCount& count) {
  const std::uint64_t first = setting("ECHOMQ_MODEL_SEED", plan.first_seed);
  const std::uint64_t histories = setting("ECHOMQ_MODEL_HISTORIES", plan.histories);
  for (std::uint64_t seed = first; seed < first + histories; ++seed) {
    const auto wrong = CachePlay(seed, plan, count, nullptr).run();
    ++count.steps;
    if (!wrong)
      continue;
    std::vector<std::string> trace;
    CacheCount again;
    (void)CachePlay(seed, plan, again, &trace).run();
    std::ostringstream report;
    report << *wrong << "\nseed " << seed << " (ECHOMQ_MODEL_SEED=" << seed << " ECHOMQ_MODEL_HISTORIES=1)\n";
    for (const std::string& line : trace)
      report << "  " << line << '\n';
    return report.str();
  }
  return std::nullopt;
}

}  // namespace echomq::model
