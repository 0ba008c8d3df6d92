// One load of an id at a time in all processes: a lease in Valkey, and what its holder tells those who wait.
//
// A flight that L2 did not answer asks for the lease. Whoever has it loads, renews it each third of its time and gives it
// back together with what it loaded; the others hear how that ended, or look again each third of a lease. Everything a
// holder writes is written by a script that looks at the lease, or, under tracking, taken back when it was lost.
#include <fmt/format.h>

#include <utility>

#include "cache/table.hpp"
#include "client/live_core.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

constexpr std::size_t kTokenSize = 32;
constexpr std::size_t kMostErrorText = 512;
/// In the place of a token: whoever loads, it counts for nothing any more.
constexpr std::string_view kAnyHolder = "00000000000000000000000000000000";
static_assert(kAnyHolder.size() == kTokenSize);

[[nodiscard]] std::string message_of(const BrandedId& id, std::string_view token, char how, std::string_view error) {
  return fmt::format("{}:{}:{}{}", id.text(), token, how, error.substr(0, kMostErrorText));
}

}  // namespace

Result<void> Table::listen_for_loads() {
  client::ChannelHandlers handlers;
  handlers.on_message = [table = weak_from_this()](std::string_view, std::string_view message) {
    if (const auto self = table.lock())
      self->load_heard(message);
  };
  // What was told meanwhile is not known: all who wait look.
  handlers.on_gap = [table = weak_from_this()](UnixMillis, UnixMillis) {
    if (const auto self = table.lock())
      self->look_at_all();
  };
  handlers.on_end = [table = weak_from_this()] {
    if (const auto self = table.lock())
      self->end_waits("the client is closed");
  };
  handlers.at_once = true;
  auto subscribed = core_->listen(keys_.loads().view(), std::move(handlers)).get();
  if (!subscribed)
    return std::unexpected<Error>(std::move(subscribed).error());
  loads_heard_.emplace(*std::move(subscribed));
  return {};
}

void Table::ask_lease(const FlightPointer& flight) {
  {
    Shard& shard = shard_of(flight->id);
    const std::lock_guard lock(shard.mutex);
    if (flight->token.empty()) {
      flight->token = fmt::format("{:016x}{:016x}", token_salt_, tokens_.fetch_add(1, std::memory_order_relaxed));
    }
    flight->lease = Flight::Lease::asked;
    flight->told.reset();
    flight->in_step = false;
  }
  static const script::ScriptSource& script = *script::find_script("cache_load");
  const auto row = keys_.row(flight->id);
  const auto lease = keys_.lease(flight->id);
  const std::string time = std::to_string(options_.load_lease.count());
  auto end = [self = shared_from_this(), flight](Result<std::vector<Value>> answers) {
    self->lease_answered(flight, std::move(answers));
  };
  Exchange* call = Exchange::command(std::move(end), "EVALSHA", script.sha1, "2", row.view(), lease.view(),
                                     flight->token, time, flight->stands ? flight->stands->text() : std::string_view());
  call->script = &script;
  send_main(call, options_.l2_deadline, ReadBy::library_again);
}

void Table::lease_answered(const FlightPointer& flight, Result<std::vector<Value>> answers) {
  Shard& shard = shard_of(flight->id);
  std::optional<Error> why;
  if (!answers) {
    why = answers.error();
  } else if (answers->back().is_error()) {
    why = wire::to_error(answers->back().error_text());
  }
  if (why) {
    {
      const std::lock_guard lock(shard.mutex);
      flight->lease = Flight::Lease::none;
    }
    return without_l2(flight, *std::move(why));
  }
  const Value& answer = answers->back();
  const auto number = answer.is_text() ? std::nullopt : answer.as_integer();
  if (number == 1) {
    {
      const std::lock_guard lock(shard.mutex);
      flight->lease = Flight::Lease::held;
    }
    keep_lease(flight);
    return run_loader(flight);
  }
  if (number == 0) {
    {
      const std::lock_guard lock(shard.mutex);
      flight->lease = Flight::Lease::none;
    }
    flight->reads = 0;
    refresh(*flight, true);
    return read({&flight, 1}, ReadBy::library_again);
  }
  std::optional<LoadTold> told;
  bool closed = false;
  {
    const std::lock_guard lock(shard.mutex);
    flight->holder = answer.as_text().value_or(std::string_view());
    if (flight->told && (flight->told->token == flight->holder || flight->told->token == kAnyHolder)) {
      told = std::exchange(flight->told, std::nullopt);
      flight->lease = Flight::Lease::none;
    } else if (closed_.load(std::memory_order_acquire) || core_->closed()) {
      closed = true;  // under the mutex: `end_waits` sees those that wait
    } else {
      flight->lease = Flight::Lease::waits;
    }
  }
  if (told)
    return load_told(flight, *told);
  if (closed)
    return land(flight, {fail(Errc::client_closed, "the cache, or its client, is closed", Repeat::safe)});
  counters_.load_waits.fetch_add(1, std::memory_order_relaxed);
  lease_turns_.add([table = weak_from_this(), of = std::weak_ptr(flight)] {
    const auto self = table.lock();
    if (const auto waits = of.lock(); self && waits)
      self->look_again(waits);
  });
}

/// With no lock: whoever gets the flight goes on with it. `which`: only that one.
Table::FlightPointer Table::leave_waiting(Shard& shard, const BrandedId& id, const Flight* which) {
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.watches.find(id.value());
  if (found == shard.watches.end() || !found->second.flight)
    return nullptr;
  const FlightPointer& flight = found->second.flight;
  if (flight->lease != Flight::Lease::waits || (which != nullptr && flight.get() != which))
    return nullptr;
  flight->lease = Flight::Lease::none;
  return flight;
}

void Table::look_again(const FlightPointer& flight) {
  if (leave_waiting(shard_of(flight->id), flight->id, flight.get()))
    ask_lease(flight);
}

/// Its row has changed: perhaps it is there now.
void Table::look_again(const BrandedId& id) {
  if (options_.load_lease.count() == 0)
    return;
  if (const FlightPointer flight = leave_waiting(shard_of(id), id, nullptr))
    ask_lease(flight);
}

void Table::look_at_all() {
  for (const auto& shard : shards_) {
    std::vector<FlightPointer> all;
    {
      const std::lock_guard lock(shard->mutex);
      for (const auto& [unused, watch] : shard->watches) {
        if (watch.flight && watch.flight->lease == Flight::Lease::waits)
          all.push_back(watch.flight);
      }
    }
    for (const FlightPointer& flight : all)
      look_again(flight);
  }
}

void Table::end_waits(const char* why) {
  for (const auto& shard : shards_) {
    std::vector<FlightPointer> all;
    {
      const std::lock_guard lock(shard->mutex);
      for (const auto& [unused, watch] : shard->watches) {
        if (watch.flight && watch.flight->lease == Flight::Lease::waits) {
          watch.flight->lease = Flight::Lease::none;
          all.push_back(watch.flight);
        }
      }
    }
    for (const FlightPointer& flight : all)
      land(flight, {fail(Errc::client_closed, why, Repeat::safe)});
  }
}

void Table::load_heard(std::string_view message) {
  constexpr std::size_t kHead = BrandedId::kSize + 1 + kTokenSize + 1;
  const auto id = BrandedId::parse(message.substr(0, BrandedId::kSize));
  if (message.size() <= kHead || message[BrandedId::kSize] != ':' || message[kHead - 1] != ':' || !id ||
      id->brand() != options_.kind)
    return ignored();
  const LoadTold told{std::string(message.substr(BrandedId::kSize + 1, kTokenSize)), message[kHead],
                      std::string(message.substr(kHead + 1))};
  FlightPointer waited;
  {
    Shard& shard = shard_of(*id);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.watches.find(id->value());
    if (found == shard.watches.end() || !found->second.flight)
      return;
    const FlightPointer& flight = found->second.flight;
    if (flight->lease == Flight::Lease::asked) {
      flight->told = told;  // the answer says whether it is the one to wait for
    } else if (flight->lease == Flight::Lease::waits && (flight->holder == told.token || told.token == kAnyHolder)) {
      flight->lease = Flight::Lease::none;
      waited = flight;
    }
  }
  if (waited)
    load_told(waited, told);
}

void Table::load_told(const FlightPointer& flight, const LoadTold& told) {
  switch (told.how) {
    case 'f':
      flight->reads = 0;
      refresh(*flight, true);
      return read({&flight, 1}, ReadBy::library_again);
    case 'a':
      counters_.absent.fetch_add(1, std::memory_order_relaxed);
      return land(flight,
                  {CachedBytes{.from = CacheFrom::l2}, static_cast<Ticks>(options_.negative_ttl.count()), true});
    case 'e': {
      Error error(Errc::handler_failed, "the load in another process failed: " + told.error);
      load_failed(flight->id, error);
      return land(flight, {std::unexpected<Error>(std::move(error))});
    }
    default: return ask_lease(flight);
  }
}

/// After an invalidation, which has ended the lease: those who wait need not wait for its time.
void Table::tell_of_no_holder(const BrandedId& id) {
  const auto channel = keys_.loads();
  const std::string message = message_of(id, kAnyHolder, 'x', {});
  send_main(Exchange::command([](const Result<std::vector<Value>>&) {}, "PUBLISH", channel.view(), message),
            options_.l2_deadline, ReadBy::library_again);
}

void Table::keep_lease(const FlightPointer& flight) {
  // As long as it is on its way the table has it.
  lease_turns_.add([table = weak_from_this(), of = std::weak_ptr(flight)] {
    const auto self = table.lock();
    const FlightPointer kept = of.lock();
    if (!self || !kept)
      return;
    {
      Shard& shard = self->shard_of(kept->id);
      const std::lock_guard lock(shard.mutex);
      if (kept->lease != Flight::Lease::held)
        return;
    }
    static const script::ScriptSource& script = *script::find_script("cache_load_keep");
    const auto lease = self->keys_.lease(kept->id);
    const std::string time = std::to_string(self->options_.load_lease.count());
    auto end = [self, kept](const Result<std::vector<Value>>& answers) {
      // Without an answer the next turn tries again.
      if (answers && answers->back().as_integer() == 0)
        self->lease_lost(*kept);
    };
    Exchange* call = Exchange::command(std::move(end), "EVALSHA", script.sha1, "1", lease.view(), kept->token, time);
    call->script = &script;
    self->send_main(call, self->options_.load_lease / 3, ReadBy::library_again);
    self->keep_lease(kept);
  });
}

/// Invalidated by another process, or overdue: what is being loaded may be older than what somebody knows.
void Table::lease_lost(Flight& flight) {
  Shard& shard = shard_of(flight.id);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.watches.find(flight.id.value());
  if (flight.lease != Flight::Lease::held || found == shard.watches.end() || found->second.flight.get() != &flight)
    return;
  flight.lease = Flight::Lease::lost;
  ++found->second.evictions;
  mark_early(found->second);
}

/// After a fill: something newer was heard of meanwhile, and L2 had it no more.
void Table::take_back_older(const Flight& flight) {
  std::uint64_t floor = 0;
  {
    Shard& shard = shard_of(flight.id);
    const std::lock_guard lock(shard.mutex);
    floor = shard.watches[flight.id.value()].floor;
  }
  const auto newer = BrandedId::encode(options_.kind, floor);
  if (floor <= flight.version.value() || !newer)
    return;
  static const script::ScriptSource& script = *script::find_script("coherence_drop");
  const auto key = keys_.row(flight.id);
  Exchange* call = Exchange::command([](const Result<std::vector<Value>>&) {}, "EVALSHA", script.sha1, "1", key.view(),
                                     newer->text());
  call->script = &script;
  send_main(call, options_.l2_deadline, ReadBy::library_again);
}

void Table::fill_and_end(const FlightPointer& flight, std::string value) {
  static const script::ScriptSource& script = *script::find_script("cache_load_end");
  const auto row = keys_.row(flight->id);
  const auto lease = keys_.lease(flight->id);
  const auto channel = keys_.loads();
  const std::string message = message_of(flight->id, flight->token, 'f', {});
  const std::string ttl = std::to_string(flight->ttl.count());
  auto end = [self = shared_from_this(), flight, value](Result<std::vector<Value>> answers) mutable {
    CachedBytes answer{std::move(value), flight->version, CacheFrom::fill, std::chrono::milliseconds(0)};
    if (!answers || answers->back().is_error()) {
      self->counters_.l2_write_errors.fetch_add(1, std::memory_order_relaxed);
      return self->land(flight, {std::move(answer), self->shortened(flight->ttl)});
    }
    const Value& reply = answers->back();
    const auto number = reply.is_text() ? std::nullopt : reply.as_integer();
    if (number == 0) {
      self->lease_lost(*flight);
      return self->land(flight, {std::move(answer)});
    }
    {
      Shard& shard = self->shard_of(flight->id);
      const std::lock_guard lock(shard.mutex);
      flight->lease = Flight::Lease::written;
    }
    const auto newer = number ? std::nullopt : read_frame(reply.as_text().value_or(std::string_view()));
    if (newer)
      return self->read_again(flight, *newer);
    self->take_back_older(*flight);
    Outcome outcome{std::move(answer), self->shortened(flight->ttl)};
    outcome.in_l2 = true;
    self->land(flight, std::move(outcome));
  };
  Exchange* call = Exchange::command(std::move(end), "EVALSHA", script.sha1, "3", row.view(), lease.view(),
                                     channel.view(), flight->token, message, flight->version.text(), ttl, value);
  call->script = &script;
  send_main(call, options_.l2_deadline, ReadBy::library_again);
}

/// Gives the lease back. With a version: its row stands in L2, and must not if the lease was lost before.
void Table::end_lease(const FlightPointer& flight, const LoadTold& told, const std::optional<BrandedId>& version) {
  static const script::ScriptSource& script = *script::find_script("cache_load_end");
  const auto row = keys_.row(flight->id);
  const auto lease = keys_.lease(flight->id);
  const auto channel = keys_.loads();
  const std::string message = message_of(flight->id, flight->token, told.how, told.error);
  auto end = [self = shared_from_this(), id = flight->id, version](const Result<std::vector<Value>>& answers) {
    // The row was taken back: L1 has what it had.
    if (version && answers && answers->back().as_integer() == 0)
      self->change(id, Told::here);
  };
  Exchange* call =
      Exchange::command(std::move(end), "EVALSHA", script.sha1, "3", row.view(), lease.view(), channel.view(),
                        flight->token, message, version ? version->text() : std::string_view(), "", "");
  call->script = &script;
  send_main(call, options_.l2_deadline, ReadBy::library_again);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
