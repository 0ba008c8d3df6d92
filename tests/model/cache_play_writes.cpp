// Writes: the source, puts, what is told of them.
#include "model/cache_play_inside.hpp"

#include <iterator>

namespace echomq::model {

CachePlay::State& CachePlay::write_source(int id, bool absent) {
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

std::uint64_t CachePlay::newest_until(int id, std::uint64_t version) const {
  const auto& all = versions_[static_cast<std::size_t>(id)];
  const auto at = all.upper_bound(version);
  return at == all.begin() ? 0 : *std::prev(at);
}

void CachePlay::write(Actor& actor, int id) {
  const std::uint64_t version = write_source(id, false).version;
  put_.insert(version);
  const std::int64_t begin = ++step_;
  note([&] { return actor.name() + " puts " + std::to_string(version); });
  placings_.push_back(
      {actor.number, id, version, begin,
       actor.table->put(kId[static_cast<std::size_t>(id)], "v" + std::to_string(version),
                        {.version = version_of(version), .tags = tags_of(id, version), .ttl = ttl_of(version)})});
}

void CachePlay::retire(Actor& actor, int id) {
  const std::uint64_t version = write_source(id, random_.one_in(2)).version;
  actor.main.post({"EVALSHA", "", "1", key_of(id), std::string(version_of(version).text())});
  tell(actor, id, version);
}

void CachePlay::tell(Actor& from, int id, std::uint64_t version) {
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

void CachePlay::take_job() {
  const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(random_.below(jobs_.size()));
  const Job job = *at;
  jobs_.erase(at);
  (void)job.to->table->apply(kId[static_cast<std::size_t>(job.id)], version_of(job.version));
  job.to->told(kId[static_cast<std::size_t>(job.id)], job.version);
}

void CachePlay::look_at_puts() {
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
    } else {
      failed_.insert(at->version);
    }
    note([&] { return "the put of " + std::to_string(at->version) + (outcome ? " has ended" : " has failed"); });
    tell(*actors_[static_cast<std::size_t>(at->table)], at->id, at->version);
    at = placings_.erase(at);
  }
}

}  // namespace echomq::model
