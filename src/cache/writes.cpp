// Puts and invalidations.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cache/table.hpp"
#include "client/live_core.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

template <typename T>
[[nodiscard]] Promise<T>* promise(const Table& table) {
  auto* call = new Promise<T>;
  call->default_target = table.continues_on();
  call->retain();
  return call;
}
/// The reply of a promise whose other reference somebody who settles it has.
template <typename T>
[[nodiscard]] Reply<T> reply_of(Promise<T>* call) {
  return Reply<T>(detail::CallPointer<detail::CallOf<T>>(call));
}

}  // namespace

Reply<CachePut> Table::put(const BrandedId& id, std::string_view value, const CachePutOptions& with) {
  auto* call = promise<CachePut>(*this);
  put_one(id, value, with.version, with.tags, with.ttl, [call](Result<CachePut> outcome) {
    call->settle(std::move(outcome));
    call->release();
  });
  call->source = core_->source();
  return reply_of(call);
}

Reply<std::vector<Result<CachePut>>> Table::put_many(std::span<const CachePutItem> items,
                                                     std::span<const Result<std::string>> encoded) {
  using Outcomes = std::vector<Result<CachePut>>;
  if (items.empty())
    return Result<Outcomes>(Outcomes());
  struct Whole {
    Outcomes outcomes;
    std::atomic<std::size_t> left;
    Promise<Outcomes>* call;
  };
  auto* call = promise<Outcomes>(*this);
  auto whole = std::make_shared<Whole>(Outcomes(items.size(), Result<CachePut>(CachePut::stored)), items.size(), call);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const CachePutItem& item = items[i];
    auto end = [whole, i](Result<CachePut> outcome) {
      whole->outcomes[i] = std::move(outcome);
      if (whole->left.fetch_sub(1, std::memory_order_acq_rel) != 1)
        return;
      whole->call->settle(std::move(whole->outcomes));
      whole->call->release();
    };
    if (encoded.empty()) {
      put_one(item.id, item.value, item.version, item.tags, item.ttl, std::move(end));
    } else if (encoded[i]) {
      put_one(item.id, *encoded[i], item.version, item.tags, item.ttl, std::move(end));
    } else {
      end(std::unexpected<Error>(encoded[i].error()));
    }
  }
  call->source = core_->source();
  return reply_of(call);
}

void Table::put_one(const BrandedId& id, std::string_view value, std::optional<BrandedId> version,
                    const std::vector<std::string>& tags, std::optional<std::chrono::milliseconds> ttl, PutEnd end) {
  if (auto kind = check_kind(id); !kind)
    return end(std::unexpected<Error>(std::move(kind).error()));
  if (value.size() > kMaxValue)
    return end(fail(Errc::invalid_argument, "value is longer than 512 MiB"));
  if (auto sound = check_entry(tags, ttl); !sound)
    return end(std::unexpected<Error>(std::move(sound).error()));
  if (closed_.load(std::memory_order_acquire))
    return end(fail(Errc::client_closed, "the cache is closed", Repeat::safe));
  if (!version) {
    auto minted = core_->mint(options_.kind);
    if (!minted)
      return end(std::unexpected<Error>(std::move(minted).error()));
    version = *minted;
  }
  Writing writing{.id = id, .version = *version, .value = std::string(value), .ttl = ttl.value_or(options_.ttl)};
  const std::uint64_t key = id.value();
  Shard& shard = shard_of(id);
  {
    const std::lock_guard lock(shard.mutex);
    Watch& watch = shard.watches[key];
    ++watch.users;
    writing.began = now();
    writing.generation = generation_.load(std::memory_order_seq_cst);
    writing.evictions = watch.evictions;
    if (const auto held = shard.l1.version_of(id, now(), writing.generation))
      watch.floor = std::max(watch.floor, *held);
  }
  const std::chrono::milliseconds lives = writing.ttl;
  auto done = [self = shared_from_this(), writing = std::move(writing), end = std::move(end)](
                  Result<std::vector<Value>> answers, Exchange::At at) {
    end(self->put_done(writing, std::move(answers), at));
  };
  if (tags.empty()) {
    put_script(id, *version, value, lives, core_->options().deadline, ReadBy::caller, std::move(done));
  } else {
    put_tagged_script(id, *version, value, lives, tags, {}, {}, core_->options().deadline, ReadBy::caller,
                      std::move(done));
  }
}

Result<CachePut> Table::put_done(const Writing& writing, Result<std::vector<Value>> answers, Exchange::At at_node) {
  const std::uint64_t id = writing.id.value();
  const std::uint64_t version = writing.version.value();
  Shard& shard = shard_of(writing.id);
  const bool answered = answers && !answers->back().is_error();
  const bool stored = answered && answers->back().kind() == Value::Kind::integer;
  std::optional<Frame> newer;
  if (answered && !stored)
    newer = read_frame(answers->back().as_text().value_or(std::string_view()));

  const std::lock_guard lock(shard.mutex);
  Watch& watch = shard.watches[id];
  const std::uint32_t generation = generation_.load(std::memory_order_seq_cst);
  if (stored && answers->back().as_integer() == 0) {
    // One of its tags was dropped later. What stands there is not known, and may be older.
    heard_version(shard, writing.id, version, writing.ttl);
    shard.l1.erase(writing.id, now());
    ++watch.evictions;
    mark_early(watch);
    release(shard, id);
    return CachePut::superseded;
  }
  if (!stored && !newer) {
    // Written or not, nobody knows: whatever this process has may be old now.
    shard.l1.erase(writing.id, now());
    ++watch.evictions;
    mark_early(watch);
    release(shard, id);
    if (!answers)
      return std::unexpected<Error>(std::move(answers).error());
    if (answers->back().is_error())
      return std::unexpected<Error>(wire::to_error(answers->back().error_text()));
    return fail(Errc::protocol_error, "cache_put: unexpected reply");
  }
  const std::uint64_t known = stored ? version : newer->version.value();
  heard_version(shard, writing.id, known, writing.ttl);
  const Ticks at = now();
  // Also of what was heard before this put began, when L2 has lost that.
  const std::uint64_t floor = std::max(watch.floor, shard.floors.of(id, at));
  const auto held = shard.l1.version_of(writing.id, at, generation);
  const bool sound = stored && watch.evictions == writing.evictions && floor <= version &&
                     writing.generation == generation && serving() && told_of(at_node);
  // As in L2, whose time may have begun as soon as this was sent: what is over there has no tag to be dropped by.
  const Ticks expires = writing.began + shortened(writing.ttl);
  if (sound && expires > at && (!held || *held <= version)) {
    const NewRow row{.id = writing.id,
                     .version = writing.version,
                     .value = writing.value,
                     .now = at,
                     .expires = expires,
                     .generation = generation};
    if (!shard.l1.put(row))
      counters_.too_large.fetch_add(1, std::memory_order_relaxed);
  } else if (held ? *held < known : options_.serve_stale != ServeStale::never) {
    shard.l1.erase(writing.id, now());
  }
  release(shard, id);
  return stored ? CachePut::stored : CachePut::superseded;
}

Reply<void> Table::invalidate(const BrandedId& id) {
  ECHOMQ_CHECK(check_kind(id));
  if (closed_.load(std::memory_order_acquire))
    return fail(Errc::client_closed, "the cache is closed", Repeat::safe);
  change(id, Told::here);
  auto* call = promise<void>(*this);
  const bool tracks = options_.coherence == Coherence::tracking;
  struct Deletion {
    std::atomic<int> left;
    std::mutex mutex;
    std::optional<Error> why;  // guarded by mutex
  };
  // Under tracking loads are written on either connection: what was sent before on each goes with the deletion behind it.
  const bool on_both = tracks && serving();
  auto deletion = std::make_shared<Deletion>();
  deletion->left = on_both ? 2 : 1;
  const auto end = [self = shared_from_this(), id, call, deletion](Result<void> outcome) {
    if (!outcome) {
      const std::lock_guard lock(deletion->mutex);
      deletion->why = std::move(outcome).error();
    }
    if (deletion->left.fetch_sub(1, std::memory_order_acq_rel) != 1)
      return;
    // Once more: what was read between the first time and the deletion was the deleted row.
    self->change(id, Told::here);
    if (self->options_.load_lease.count() > 0)
      self->tell_of_no_holder(id);
    Result<void> all;
    if (deletion->why)
      all = std::unexpected<Error>(*std::move(deletion->why));
    call->settle(std::move(all));
    call->release();
  };
  if (!tracks)
    call->source = core_->source();
  auto reply = reply_of(call);
  if (on_both) {
    auto on_hearing = [self = shared_from_this(), end](Result<std::vector<Value>> answers) {
      if (!answers)
        return end(std::unexpected<Error>(std::move(answers).error()));
      if (!answers->back().is_error())
        return end({});
      const std::string_view refusal = answers->back().error_text();
      Error why = wire::to_error(refusal);
      if (!why.is(Errc::moved))
        return end(std::unexpected<Error>(std::move(why)));
      // The main connection finds the row where it has gone; this one stays until its node does not serve the table any more.
      if (!is_on_its_way(refusal))
        self->coherence_->misplaced();
      end({});
    };
    // First: of what it deletes itself that connection is not told.
    send(Exchange::command(std::move(on_hearing), "DEL", keys_.row(id).view()), core_->options().deadline,
         ReadBy::library);
  }
  remove(id, end);
  return reply;
}

/// Of the row, and before it of the right to load: what another process loads now was read before this. One after the other: while their
/// slot is on its way they may be on two nodes.
void Table::remove(const BrandedId& id, RemoveEnd end) {
  std::string bytes;
  resp::CommandWriter writer(bytes);
  const bool shares_loads = options_.load_lease.count() > 0;
  if (shares_loads)
    writer.begin(2).part(std::string_view("DEL")).part(keys_.lease(id).view());
  writer.begin(2).part(std::string_view("DEL")).part(keys_.row(id).view());
  auto done = [self = shared_from_this(), id, end = std::move(end)](Result<std::vector<Value>> answers) {
    if (!answers)
      return end(std::unexpected<Error>(std::move(answers).error()));
    const auto refused = std::ranges::find_if(*answers, [](const Value& answer) { return answer.is_error(); });
    if (refused == answers->end())
      return end({});
    Error why = wire::to_error(refused->error_text());
    if (!why.is(Errc::moved))
      return end(std::unexpected<Error>(std::move(why)));
    self->remove_alone(id, self->options_.load_lease.count() > 0 ? Removes::lease : Removes::row, end);
  };
  send_main(Exchange::make(std::move(bytes), shares_loads ? 2 : 1, std::move(done)), core_->options().deadline,
            options_.coherence == Coherence::tracking ? ReadBy::library : ReadBy::caller);
}

void Table::remove_alone(const BrandedId& id, Removes what, RemoveEnd end) {
  auto done = [self = shared_from_this(), id, what, end = std::move(end)](Result<std::vector<Value>> answers) {
    if (!answers)
      return end(std::unexpected<Error>(std::move(answers).error()));
    if (answers->back().is_error())
      return end(std::unexpected<Error>(wire::to_error(answers->back().error_text())));
    if (what == Removes::lease)
      return self->remove_alone(id, Removes::row, end);
    end({});
  };
  Exchange* const call = what == Removes::lease ? Exchange::command(std::move(done), "DEL", keys_.lease(id).view())
                                                : Exchange::command(std::move(done), "DEL", keys_.row(id).view());
  send_main(call, core_->options().deadline, ReadBy::library_again);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
