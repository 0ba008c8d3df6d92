// What a miss goes through: L2, the loader, the fill of both layers. One flight an id at a time.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cache/table.hpp"
#include "client/live_core.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

/// What L2 says of a row: its version, how long it lives, its frame.
constexpr std::size_t kRepliesARow = 3;
constexpr std::string_view kLastOfVersion = "13";
static_assert(BrandedId::kSize == 14);
/// Reads of L2 for one flight: after a lost answer, or when a newer row turned up at the fill.
constexpr int kMostReads = 3;
/// A row is taken out of L1 this much early, for the clock that readers look at may lag so much.
constexpr Ticks kClockLag = 10;

/// The flight whose loader runs on this thread.
thread_local const void* loads_here = nullptr;

[[nodiscard]] CachedBytes answer_of(const BrandedId& version, std::string_view value, CacheFrom from) {
  return {std::string(value), version, from, std::chrono::milliseconds(0)};
}

[[nodiscard]] std::unexpected<Error> too_late(std::chrono::milliseconds deadline) {
  return fail(Errc::handler_failed, fmt::format("the loader has not answered within {} ms", deadline.count()));
}

}  // namespace

Table::FlightPointer Table::start_flight(const Shard& shard, Watch& watch, const BrandedId& id,
                                         std::shared_ptr<const LoadBytes> own_load) const {
  auto flight = std::make_shared<Flight>();
  flight->id = id;
  flight->own_load = std::move(own_load);
  flight->generation = generation_.load(std::memory_order_seq_cst);
  flight->evictions = watch.evictions;
  // Without a loader what L2 has is all there is.
  if (has_loader() || flight->own_load)
    watch.floor = std::max(watch.floor, shard.floors.of(id.value(), now()));
  flight->floor = watch.floor;
  flight->in_step = options_.coherence == Coherence::tracking;
  watch.flight = flight;
  ++watch.users;
  return flight;
}

/// With the shard's mutex. What somebody else has put meanwhile is in L2.
Table::FlightPointer Table::start_aside(const Shard& shard, Watch& watch) const {
  FlightPointer loading = watch.flight;
  FlightPointer flight = start_flight(shard, watch, loading->id, loading->own_load);
  flight->aside = true;
  flight->beside = loading;
  flight->in_step = false;
  watch.aside = flight;
  watch.flight = std::move(loading);
  return flight;
}

/// With the shard's mutex: a call with a loader of its own finds a flight on the way.
void Table::join_with(const Shard& shard, Watch& watch, const std::shared_ptr<const LoadBytes>& own_load,
                      detail::CacheWaiter* waiter) const {
  Flight& flight = *watch.flight;
  if (!has_loader() && !flight.own_load) {
    if (flight.decided) {
      flight.after.push_back(waiter);
      // Not replaced: under the shard's mutex no caller's loader must go.
      if (!flight.after_load)
        flight.after_load = own_load;
      return;
    }
    flight.own_load = own_load;
    watch.floor = std::max(watch.floor, shard.floors.of(flight.id.value(), now()));
    flight.floor = watch.floor;
  }
  flight.waiters.push_back({waiter, generation_.load(std::memory_order_seq_cst)});
}

std::uint64_t Table::floor_of(const Flight& flight) {
  const std::lock_guard lock(shard_of(flight.id).mutex);
  return flight.floor;  // a call that joins may raise it
}

bool Table::decide_loader(Flight& flight) {
  const std::lock_guard lock(shard_of(flight.id).mutex);
  flight.decided = true;
  return has_loader() || flight.own_load;
}

void Table::fetch(std::span<const BrandedId> ids, std::span<detail::CacheWaiter* const> waiters, LoadBytes load) {
  std::vector<FlightPointer> to_read;
  std::shared_ptr<const LoadBytes> own_load;
  if (load) {
    own_load = std::make_shared<const LoadBytes>(std::move(load));
    own_loads_.store(true, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const BrandedId& id = ids[i];
    if (auto kind = check_kind(id); !kind) {
      waiters[i]->answer(std::unexpected<Error>(std::move(kind).error()));
      continue;
    }
    if (closed_.load(std::memory_order_acquire)) {
      waiters[i]->answer(fail(Errc::client_closed, "the cache is closed", Repeat::safe));
      continue;
    }
    const std::uint64_t value = id.value();
    Shard& shard = shard_of(id);
    CachedBytes hit;
    Ticks left = 0;
    bool found = false;
    bool by_its_loader = false;
    std::optional<CachedBytes> old;
    {
      // Under the mutex: a flight that has landed meanwhile is seen, one that has not is joined.
      const std::lock_guard lock(shard.mutex);
      const std::uint32_t generation = generation_.load(std::memory_order_seq_cst);
      found = in_l1(id, now(), generation, hit, &left);
      if (!found) {
        counters_.misses.fetch_add(1, std::memory_order_relaxed);
        if (options_.serve_stale == ServeStale::at_once && serving())
          old = stale_row(id);
        Watch& watch = shard.watches[value];
        const bool joins = watch.flight != nullptr;
        if (joins) {
          counters_.coalesced.fetch_add(1, std::memory_order_relaxed);
          by_its_loader = watch.flight.get() == loads_here;
        } else {
          to_read.push_back(start_flight(shard, watch, id, own_load));
        }
        const bool waits = !old && !by_its_loader;
        if (waits && watch.flight->late) {
          if (!watch.aside)
            to_read.push_back(start_aside(shard, watch));
          watch.aside->waiters.push_back({waiters[i], generation});
        } else if (waits && joins && own_load) {
          join_with(shard, watch, own_load, waiters[i]);
        } else if (waits) {
          watch.flight->waiters.push_back({waiters[i], generation});
        }
      }
    }
    if (found) {
      count_hit(epoch::record().number);
      if (near_end(left, hit) && hit.value)
        refresh_ahead(id, left + static_cast<Ticks>(hit.age.count()));
      waiters[i]->answer(std::move(hit));
    } else if (old) {
      waiters[i]->answer(*std::move(old));
    } else if (by_its_loader) {
      waiters[i]->answer(fail(Errc::would_deadlock, fmt::format("the loader of {} asks for it", id.text())));
    }
  }
  if (!to_read.empty())
    read(to_read, drives() != nullptr ? ReadBy::caller : ReadBy::library);
}

/// Of a row that is served meanwhile: nobody waits.
void Table::refresh_ahead(const BrandedId& id, Ticks life) {
  const std::uint64_t value = id.value();
  Shard& shard = shard_of(id);
  FlightPointer flight;
  {
    const std::lock_guard lock(shard.mutex);
    const auto failed = shard.failures.find(value);
    if (closed_.load(std::memory_order_acquire) || (failed != shard.failures.end() && failed->second.until > now()))
      return;
    Watch& watch = shard.watches[value];
    if (watch.flight)
      return;
    flight = start_flight(shard, watch, id);
    flight->ahead = true;
    // In L2 the row has what L1 was spared by jitter and by its clocks besides.
    const auto whole = static_cast<double>(life);
    flight->margin =
        static_cast<Ticks>(whole * (options_.refresh_ahead + options_.jitter / (1 - options_.jitter))) + 4 * kClockLag;
  }
  counters_.refreshed.fetch_add(1, std::memory_order_relaxed);
  read({&flight, 1}, ReadBy::library);
}

void Table::read(std::span<const FlightPointer> flights, ReadBy reader) {
  std::string bytes;
  resp::CommandWriter writer(bytes);
  // Before the rows: a drop that comes later is counted later.
  if (options_.tags)
    writer.begin(2).part(std::string_view("GET")).part(keys_.tag_drops().view());
  // Of several the last alone has nothing behind its row: what is heard of another may come between its row and the end.
  if (options_.coherence == Coherence::tracking) {
    for (const FlightPointer& flight : flights.first(flights.size() - 1)) {
      const std::lock_guard lock(shard_of(flight->id).mutex);
      flight->in_step = false;
    }
  }
  const auto at = std::chrono::steady_clock::now();
  for (const FlightPointer& flight : flights) {
    ++flight->reads;
    flight->drops_read = at;
    flight->asked = now();
    const auto key = keys_.row(flight->id);
    // The version on both sides of the time left: that is of this row where the two are the same. The row last, so that what is heard
    // before its answer is of before it.
    writer.begin(4).part(std::string_view("GETRANGE")).part(key.view()).part(std::string_view("0"));
    writer.part(kLastOfVersion);
    writer.begin(2).part(std::string_view("PTTL")).part(key.view());
    writer.begin(2).part(std::string_view("GET")).part(key.view());
  }
  auto end = [self = shared_from_this(), all = std::vector<FlightPointer>(flights.begin(), flights.end())](
                 Result<std::vector<Value>> answers) { self->read_done(all, std::move(answers)); };
  const std::size_t replies = kRepliesARow * flights.size() + (options_.tags ? 1 : 0);
  Exchange* const call = Exchange::make(std::move(bytes), static_cast<std::uint32_t>(replies), std::move(end));
  if (flights.front()->elsewhere)
    return send_main(call, options_.l2_deadline, reader);
  send(call, options_.l2_deadline, reader);
}

void Table::read_done(std::span<const FlightPointer> flights, Result<std::vector<Value>> answers) {
  if (!answers) {
    const Error& why = answers.error();
    std::vector<FlightPointer> again;
    for (const FlightPointer& flight : flights) {
      const bool lost = why.is(Errc::outcome_unknown) || why.is(Errc::disconnected);
      if (lost && flight->reads < kMostReads && !closed_.load(std::memory_order_acquire)) {
        again.push_back(flight);
      } else {
        without_l2(flight, why);
      }
    }
    if (!again.empty())
      read(again, ReadBy::library_again);
    return;
  }
  std::span<const Value> rest(*answers);
  if (options_.tags) {
    const std::int64_t drops = rest.front().as_integer().value_or(0);
    for (const FlightPointer& flight : flights)
      flight->drops = drops;
    rest = rest.subspan(1);
  }
  for (std::size_t i = 0; i < flights.size(); ++i)
    read_one(flights[i], rest.subspan(kRepliesARow * i, kRepliesARow));
}

void Table::read_one(const FlightPointer& flight, std::span<const Value> replies) {
  const Value& frame = replies.back();
  if (frame.is_error()) {
    Error why = wire::to_error(frame.error_text());
    if (why.is(Errc::moved) && flight->reads < kMostReads) {
      // The main connection follows the slot, and each key of one that is on its way; but not a row in the middle of several, which is
      // read by itself. The tracking connection follows when its node does not serve the table any more.
      if (is_on_its_way(frame.error_text())) {
        flight->elsewhere = true;
      } else if (options_.coherence == Coherence::tracking) {
        coherence_->misplaced();
      }
      refresh(*flight, false);
      return read({&flight, 1}, ReadBy::library_again);
    }
    if (why.is(Errc::loading) || why.is(Errc::moved))
      return without_l2(flight, std::move(why));
    return land(flight, {std::unexpected<Error>(std::move(why))});
  }
  flight->stands.reset();
  if (frame.is_null())
    return load(flight);
  const auto parsed = read_frame(frame.as_text().value_or(std::string_view()));
  if (!parsed) {
    counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
    flight->corrupt = true;
    return load(flight);
  }
  flight->stands = parsed->version;
  // L2 has lost what was heard of, or never had it, and an older row came there.
  if (parsed->version.value() < floor_of(*flight) && decide_loader(*flight)) {
    counters_.superseded.fetch_add(1, std::memory_order_relaxed);
    flight->outdated = true;
    return load(flight);
  }
  // Of a row that came just before this answer it is not known how long it lives.
  const bool just_came = replies[0].as_text().value_or(std::string_view()) != parsed->version.text();
  const std::int64_t rest = just_came ? 0 : replies[1].as_integer().value_or(0);
  // The row that is to be replaced, unless somebody else has done it already.
  if (flight->ahead && rest != -1 && !just_came && rest < static_cast<std::int64_t>(flight->margin))
    return load(flight);
  Outcome outcome{answer_of(parsed->version, parsed->value, CacheFrom::l2), shortened(options_.ttl)};
  // A foreign row without expiry has -1.
  outcome.rest = rest == -1 ? std::numeric_limits<Ticks>::max() : static_cast<Ticks>(std::max<std::int64_t>(rest, 0));
  outcome.life = std::min(outcome.life, outcome.rest);
  counters_.l2_hits.fetch_add(1, std::memory_order_relaxed);
  land(flight, std::move(outcome));
}

void Table::without_l2(const FlightPointer& flight, Error why) {
  // Where this client has too much on the way the server is not away: the source is spared as it is.
  const bool away = !why.is(Errc::client_closed) && !why.is(Errc::overloaded);
  if (!away || options_.outage == CacheOutage::fail || !decide_loader(*flight))
    return land(flight, {std::unexpected<Error>(std::move(why))});
  counters_.outages.fetch_add(1, std::memory_order_relaxed);
  flight->away = true;
  load(flight);
}

/// What the flight brings begins to be read now: what was heard before no longer speaks against it.
void Table::refresh(Flight& flight, bool reads_l2) {
  const std::uint64_t value = flight.id.value();
  Shard& shard = shard_of(flight.id);
  const std::lock_guard lock(shard.mutex);
  flight.generation = generation_.load(std::memory_order_seq_cst);
  const Watch& watch = shard.watches[value];
  flight.evictions = watch.evictions;
  flight.floor = watch.floor;
  flight.marked = false;
  flight.in_step = reads_l2 && options_.coherence == Coherence::tracking && !flight.elsewhere;
  for (Waiting& one : flight.waiters)
    one.generation = flight.generation;
}

void Table::load(const FlightPointer& flight) {
  if (flight->aside)
    return land(flight, {too_late(options_.load_deadline)});
  if (!decide_loader(*flight)) {
    counters_.absent.fetch_add(1, std::memory_order_relaxed);
    return land(flight, {CachedBytes{.from = CacheFrom::l2}});
  }
  if (auto failed = failed_lately(flight->id)) {
    counters_.backed_off.fetch_add(1, std::memory_order_relaxed);
    return land(flight, {std::unexpected<Error>(*std::move(failed))});
  }
  if (options_.load_deadline.count() > 0 && !std::exchange(flight->timed, true)) {
    // Not longer than it is on its way: with it goes the caller's loader.
    deadlines_.add([table = weak_from_this(), of = std::weak_ptr(flight)] {
      const auto self = table.lock();
      if (const auto late = of.lock(); self && late)
        self->overdue(late);
    });
  }
  if (options_.load_lease.count() > 0 && !flight->away)
    return ask_lease(flight);
  run_loader(flight);
}

void Table::run_loader(const FlightPointer& flight) {
  refresh(*flight, false);
  std::optional<LoadDone> done;
  bool closed = false;
  const bool asynchronous = load_async_ && !flight->own_load;
  {
    Shard& shard = shard_of(flight->id);
    const std::lock_guard lock(shard.mutex);
    closed = closed_.load(std::memory_order_acquire);
    if (asynchronous && !closed) {
      done.emplace(
          [self = shared_from_this(), flight](LoadedBytes result) { self->loaded(flight, std::move(result)); });
      flight->stop = done->stop();  // `close` sees it from now on
      if (flight->late)             // while another process had the right to load, or before the token was there
        flight->ask_to_stop("load_deadline is over");
    }
  }
  if (closed)
    return land(flight, {fail(Errc::client_closed, "the cache is closed", Repeat::safe)});
  flight->load_began = std::chrono::steady_clock::now();
  if (auto minted = core_->mint(options_.kind)) {
    flight->version = *minted;
  } else {
    flight->not_minted = std::move(minted).error();
  }
  if (asynchronous) {
    try {
      return load_async_(flight->id, *done);
    } catch (const std::exception& thrown) {
      return (*done)(fail(Errc::handler_failed, std::string("the loader threw: ") + thrown.what()));
    } catch (...) {
      return (*done)(fail(Errc::handler_failed, "the loader threw what is no std::exception"));
    }
  }
  pool_.submit([self = shared_from_this(), flight](LoadPool::Turn turn) {
    if (turn == LoadPool::Turn::dropped)
      return self->land(flight, {fail(Errc::client_closed, "the cache is closed", Repeat::safe)});
    flight->load_began = std::chrono::steady_clock::now();  // not while it waited for a thread
    LoadedBytes result;
    loads_here = flight.get();
    try {
      result = flight->own_load ? (*flight->own_load)(flight->id) : self->load_(flight->id);
    } catch (const std::exception& thrown) {
      result = fail(Errc::handler_failed, std::string("the loader threw: ") + thrown.what());
    } catch (...) {
      result = fail(Errc::handler_failed, "the loader threw what is no std::exception");
    }
    loads_here = nullptr;
    self->loaded(flight, std::move(result));
  });
}

void Table::loaded(const FlightPointer& flight, LoadedBytes result) {
  load_time_.add(std::chrono::steady_clock::now() - flight->load_began);
  {
    const std::lock_guard lock(shard_of(flight->id).mutex);
    flight->stop.reset();
  }
  if (!result) {
    counters_.load_errors.fetch_add(1, std::memory_order_relaxed);
    load_failed(flight->id, result.error());
    Outcome failed{std::unexpected<Error>(std::move(result).error())};
    failed.load_failed = true;
    return land(flight, std::move(failed));
  }
  load_succeeded(flight->id);
  if (!*result) {
    counters_.absent.fetch_add(1, std::memory_order_relaxed);
    return land(flight,
                {CachedBytes{.from = CacheFrom::fill}, static_cast<Ticks>(options_.negative_ttl.count()), true});
  }
  Loaded<std::string>& found = **result;
  if (found.value.size() > kMaxValue)
    return land(flight, {fail(Errc::invalid_argument, "the loader's value is longer than 512 MiB")});
  if (auto sound = check_entry(found.tags, found.ttl); !sound) {
    Error why = std::move(sound).error();
    why.text = "what the loader gave: " + why.text;
    return land(flight, {std::unexpected<Error>(std::move(why))});
  }
  flight->ttl = found.ttl.value_or(options_.ttl);
  if (found.version) {
    flight->version = *found.version;
  } else if (flight->not_minted) {
    return land(flight, {std::unexpected<Error>(*std::move(flight->not_minted))});
  }
  counters_.fills.fetch_add(1, std::memory_order_relaxed);
  flight->asked = now();  // to write it
  bool overtaken = false;
  {
    const std::uint64_t value = flight->id.value();
    Shard& shard = shard_of(flight->id);
    const std::lock_guard lock(shard.mutex);
    const Watch& watch = shard.watches[value];
    overtaken = watch.evictions != flight->evictions || watch.floor > flight->version.value();
    flight->writes = flight->version.value();
  }
  // Something newer is known: then this must not get into L2 either.
  if (overtaken || flight->away) {
    CachedBytes answer{std::move(found.value), flight->version, CacheFrom::fill, std::chrono::milliseconds(0)};
    if (!found.tags.empty())
      return land_untaken(flight, std::move(answer));
    return land(flight, {std::move(answer), shortened(flight->ttl)});
  }
  if (!found.tags.empty())
    return fill_tagged(flight, std::move(found));
  // Under tracking the row is written on the connection that hears, so that it is not taken for a foreign one.
  if (options_.load_lease.count() > 0 && options_.coherence != Coherence::tracking)
    return fill_and_end(flight, std::move(found.value));
  if (flight->corrupt || flight->outdated || flight->ahead)
    return fill_by_script(flight, found.value);
  fill(flight, std::move(found.value));
}

void Table::fill(const FlightPointer& flight, std::string value) {
  // A plain command, so that tracking's NOLOOP holds: written where there is nothing, else the answer is what is there.
  const auto key = keys_.row(flight->id);
  const std::string frame = make_frame(flight->version, value);
  const std::string ttl = std::to_string(flight->ttl.count());
  auto end = [self = shared_from_this(), flight, value = std::move(value)](Result<std::vector<Value>> answers) {
    self->filled(flight, value, std::move(answers));
  };
  Exchange* const call = Exchange::command(std::move(end), "SET", key.view(), frame, "NX", "GET", "PX", ttl);
  if (flight->elsewhere)
    return send_main(call, options_.l2_deadline, ReadBy::library_again);
  send(call, options_.l2_deadline, ReadBy::library_again);
}

void Table::filled(const FlightPointer& flight, std::string value, Result<std::vector<Value>> answers) {
  // The tracking connection's node has refused it: the main one follows the key, and what it brings is not kept here.
  if (answers && answers->back().is_error() && options_.coherence == Coherence::tracking && !flight->elsewhere) {
    const std::string_view text = answers->back().error_text();
    if (wire::to_error(text).is(Errc::moved)) {
      if (!is_on_its_way(text))
        coherence_->misplaced();
      flight->elsewhere = true;
      return fill(flight, std::move(value));
    }
  }
  if (!answers || answers->back().is_error()) {
    counters_.l2_write_errors.fetch_add(1, std::memory_order_relaxed);
    return land(flight, {answer_of(flight->version, value, CacheFrom::fill), shortened(flight->ttl)});
  }
  const Value& there = answers->back();
  if (there.is_null())
    return written(flight, std::move(value), true);
  const auto frame = read_frame(there.as_text().value_or(std::string_view()));
  // An echo of the first attempt, when the request was sent twice.
  if (frame && frame->version == flight->version)
    return written(flight, std::move(value), false);
  if (frame && is_newer(frame->version, flight->version))
    return read_again(flight, *frame);
  fill_by_script(flight, value);
}

void Table::fill_by_script(const FlightPointer& flight, const std::string& value) {
  auto end = [self = shared_from_this(), flight, value](Result<std::vector<Value>> answers, Exchange::At at) {
    flight->elsewhere = flight->elsewhere || !self->told_of(at);
    if (answers) {
      const Value& reply = answers->back();
      if (const auto number = reply.as_integer(); number && !reply.is_text())
        return self->written(flight, value, *number == 1);
      const auto frame = read_frame(reply.as_text().value_or(std::string_view()));
      if (frame && !reply.is_error())
        return self->read_again(flight, *frame);
    }
    self->counters_.l2_write_errors.fetch_add(1, std::memory_order_relaxed);
    self->land(flight, {answer_of(flight->version, value, CacheFrom::fill), self->shortened(flight->ttl)});
  };
  put_script(flight->id, flight->version, value, flight->ttl, options_.l2_deadline, ReadBy::library_again,
             std::move(end));
}

/// A newer row stands in L2: that is the answer.
void Table::read_again(const FlightPointer& flight, const Frame& newer) {
  if (flight->reads < kMostReads) {
    refresh(*flight, true);
    return read({&flight, 1}, ReadBy::library_again);
  }
  land(flight, {answer_of(newer.version, newer.value, CacheFrom::l2)});
}

void Table::written(const FlightPointer& flight, std::string value, bool over_nothing) {
  bool overtaken = false;
  {
    const std::uint64_t id = flight->id.value();
    Shard& shard = shard_of(flight->id);
    const std::lock_guard lock(shard.mutex);
    Watch& watch = shard.watches[id];
    overtaken = watch.evictions != flight->evictions || watch.floor > flight->version.value();
    // A newer row that this table has put, or is putting, is gone: of that the tracking connection is not told when it was itself that
    // changed the key last in that turn of the server.
    if (over_nothing && options_.coherence == Coherence::tracking) {
      const auto held = shard.l1.version_of(flight->id, now(), generation_.load(std::memory_order_seq_cst));
      if (held && *held > flight->version.value())
        shard.l1.erase(flight->id, now());
      if (watch.users > 1) {
        ++watch.evictions;
        ++flight->evictions;
      }
    }
  }
  if (overtaken && over_nothing) {
    // The row was deleted while this was loaded: it may be what was to go. Nobody else's newer row is touched.
    static const script::ScriptSource& script = *script::find_script("coherence_drop");
    const auto key = keys_.row(flight->id);
    Exchange* call = Exchange::command([](const Result<std::vector<Value>>&) {}, "EVALSHA", script.sha1, "1",
                                       key.view(), just_newer(flight->version).text());
    call->script = &script;
    send_main(call, options_.l2_deadline, ReadBy::library_again);
  }
  CachedBytes answer{std::move(value), flight->version, CacheFrom::fill, std::chrono::milliseconds(0)};
  Outcome outcome{std::move(answer), shortened(flight->ttl)};
  outcome.in_l2 = true;
  land(flight, std::move(outcome));
}

/// The load runs on, and what it brings is kept.
void Table::overdue(const FlightPointer& flight) {
  const std::uint64_t id = flight->id.value();
  Shard& shard = shard_of(flight->id);
  std::vector<Waiting> waiters;
  {
    const std::lock_guard lock(shard.mutex);
    const auto watch = shard.watches.find(id);
    if (watch == shard.watches.end() || watch->second.flight != flight)
      return;
    flight->late = true;
    flight->ask_to_stop("load_deadline is over");
    flight->early = 0;
    waiters.swap(flight->waiters);
  }
  counters_.load_late.fetch_add(1, std::memory_order_relaxed);
  for (const Waiting& one : waiters)
    one.waiter->answer(or_stale(flight->id, too_late(options_.load_deadline)));
}

Result<CachedBytes> Table::or_stale(const BrandedId& id, Result<CachedBytes> answer) {
  if (!answer) {
    if (auto old = stale_row(id))
      return *std::move(old);
  }
  return answer;
}

std::optional<Error> Table::failed_lately(const BrandedId& id) {
  if (options_.load_backoff.count() == 0)
    return std::nullopt;
  const std::uint64_t value = id.value();
  Shard& shard = shard_of(id);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.failures.find(value);
  if (found == shard.failures.end() || found->second.until <= now())
    return std::nullopt;
  return found->second.error;
}

void Table::load_failed(const BrandedId& id, const Error& error) {
  if (options_.load_backoff.count() == 0)
    return;
  const std::uint64_t value = id.value();
  Shard& shard = shard_of(id);
  const std::lock_guard lock(shard.mutex);
  if (shard.failures.size() >= kMostFailures) {
    std::erase_if(shard.failures, [at = now()](const auto& one) { return one.second.until <= at; });
    if (shard.failures.size() >= kMostFailures)
      return;
  }
  const auto [at, fresh] = shard.failures.try_emplace(value, Failure{error, 0, 0});
  Failure& failure = at->second;
  failure.error = error;
  failure.wait = std::min(static_cast<Ticks>(options_.load_backoff_most.count()),
                          fresh ? static_cast<Ticks>(options_.load_backoff.count()) : 2 * failure.wait);
  failure.until = now() + failure.wait;
}

void Table::load_succeeded(const BrandedId& id) {
  if (options_.load_backoff.count() == 0)
    return;
  const std::uint64_t value = id.value();
  Shard& shard = shard_of(id);
  const std::lock_guard lock(shard.mutex);
  shard.failures.erase(value);
}

void Table::land(const FlightPointer& flight, Outcome outcome) {
  const std::uint64_t id = flight->id.value();
  Shard& shard = shard_of(flight->id);
  std::vector<Waiting> waiters;
  FlightPointer next;
  bool gives_back = false;
  LoadTold told;
  std::optional<BrandedId> in_l2;
  if (flight->elsewhere && options_.coherence == Coherence::tracking)
    outcome.life = 0;
  {
    const std::lock_guard lock(shard.mutex);
    Watch& watch = shard.watches[id];
    const std::uint32_t generation = generation_.load(std::memory_order_seq_cst);
    // The late loader's row, which was written after something had ended it and goes again.
    if (flight->beside && outcome.answer && outcome.answer->value && watch.evictions != flight->beside->evictions &&
        outcome.answer->version.value() == flight->beside->writes)
      outcome.answer = too_late(options_.load_deadline);
    const bool found = outcome.answer && outcome.answer->value.has_value();
    const BrandedId version = found ? outcome.answer->version : flight->version;
    const Ticks rest = outcome.in_l2 ? static_cast<Ticks>(flight->ttl.count()) : outcome.rest;
    const bool overtaken = watch.evictions != flight->evictions || watch.floor > version.value();
    const bool superseded = overtaken || flight->generation != generation;
    // What was heard before it was read does not get better by another load.
    const bool heard_since =
        watch.evictions != flight->evictions || (watch.floor > version.value() && watch.floor > flight->floor);
    if (outcome.answer && superseded)
      counters_.superseded.fetch_add(1, std::memory_order_relaxed);
    // Given, and perhaps neither kept here nor in L2: who asks next gets no less. Also where a put of this table is on its way:
    // should it be older, and the row's own time be over when it comes, it stands in L2.
    if (found && (superseded || watch.users > 1 || (outcome.answer->from == CacheFrom::fill && !outcome.in_l2))) {
      remember(shard, id, version.value(), flight->ttl);
    } else if (found && rest < static_cast<Ticks>(core_->options().deadline.count())) {
      // Its own time may be short, and an older put of another process on its way, for as long as calls may be: that would
      // stand in L2 after it.
      remember(shard, id, version.value(), flight->ttl, Floors::Full::leave_out);
    }
    // A put that is on its way still and is older must not come after it.
    if (found)
      watch.floor = std::max(watch.floor, version.value());
    // What is known now ends what was known then, also where it is not kept.
    if (outcome.answer && options_.serve_stale != ServeStale::never &&
        !shard.l1.version_of(flight->id, now(), generation))
      shard.l1.erase(flight->id, now());
    const Ticks at = now();
    // What L2 has is no younger here than there.
    const Ticks expires = (found && rest > 0 ? flight->asked : at) + outcome.life;
    if (!superseded && outcome.life > 0 && expires > at + kClockLag && serving() && (found || outcome.told_absent)) {
      const auto held = shard.l1.version_of(flight->id, at, generation);
      NewRow row{.id = flight->id,
                 .version = version,
                 .value = found ? std::string_view(*outcome.answer->value) : std::string_view(),
                 .absent = !found,
                 .now = at,
                 .expires = expires - kClockLag,
                 .generation = generation};
      if ((!held || *held <= version.value()) && !shard.l1.put(row))
        counters_.too_large.fetch_add(1, std::memory_order_relaxed);
    }
    // Nor is what this table has and is older: it was put here, and what is given now has no time left to be kept.
    if (const auto held = shard.l1.version_of(flight->id, now(), generation); found && held && *held < version.value())
      shard.l1.erase(flight->id, now());
    waiters.swap(flight->waiters);
    (flight->aside ? watch.aside : watch.flight) = nullptr;
    if (flight->lease == Flight::Lease::held) {
      gives_back = true;
      flight->lease = Flight::Lease::none;
      if (!outcome.answer) {
        // A load that was asked to end says nothing of the row: others may load it.
        told = {{}, outcome.load_failed && !flight->stopped ? 'e' : 'x', outcome.answer.error().text};
      } else if (found) {
        told.how = outcome.in_l2 ? 'f' : 'x';
        if (outcome.in_l2)
          in_l2 = version;
      } else if (outcome.told_absent && !superseded) {
        told.how = 'a';
      }
    }
    if (outcome.answer && superseded) {
      std::vector<Waiting> early;
      std::vector<Waiting> late;
      for (std::size_t i = 0; i < waiters.size(); ++i) {
        const bool asked_before =
            waiters[i].generation == flight->generation && (!heard_since || (flight->marked && i < flight->early));
        (asked_before ? early : late).push_back(waiters[i]);
      }
      if (!late.empty()) {
        const bool loads = watch.flight && !watch.flight->late;  // once more, after this one was read
        if (!loads)
          next = watch.flight ? start_aside(shard, watch) : start_flight(shard, watch, flight->id, flight->own_load);
        Flight& joined = loads ? *watch.flight : *next;
        const std::uint32_t from_now = loads ? generation_.load(std::memory_order_seq_cst) : next->generation;
        for (const Waiting& one : late)
          joined.waiters.push_back({one.waiter, from_now});
        waiters = std::move(early);
      }
    }
    if (!flight->after.empty()) {
      if (!next) {
        next = start_flight(shard, watch, flight->id, flight->after_load);
      } else if (!next->own_load) {
        next->own_load = flight->after_load;
      }
      for (detail::CacheWaiter* const one : flight->after)
        next->waiters.push_back({one, next->generation});
      flight->after.clear();
    }
    release(shard, id);
  }
  if (gives_back)
    end_lease(flight, told, in_l2);
  if (!waiters.empty())
    outcome.answer = or_stale(flight->id, std::move(outcome.answer));
  for (std::size_t i = 0; i < waiters.size(); ++i) {
    if (i + 1 == waiters.size()) {
      waiters[i].waiter->answer(std::move(outcome.answer));
    } else {
      waiters[i].waiter->answer(outcome.answer);
    }
  }
  if (next)
    read({&next, 1}, ReadBy::library_again);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
