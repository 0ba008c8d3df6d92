// Loads, the right to them, and what ends it.
#include "model/cache_play_inside.hpp"

#include <utility>

namespace echomq::model {

void CachePlay::load(std::size_t which) {
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
  loaded_by_[found.version].insert(one.table);
  if (found.absent)
    return one.done(std::optional<Loaded<std::string>>());
  one.done(std::optional(Loaded<std::string>{"v" + std::to_string(found.version), version_of(found.version),
                                             tags_of(one.id, found.version), ttl_of(found.version)}));
}

void CachePlay::invalidate(Actor& actor, int id) {
  note([&] { return actor.name() + " invalidates " + std::to_string(id); });
  const std::uint64_t known = source_[static_cast<std::size_t>(id)].version;
  invalidations_.push_back({actor.number, id, known, actor.table->invalidate(kId[static_cast<std::size_t>(id)])});
}

void CachePlay::look_at_invalidations() {
  std::erase_if(invalidations_, [this](Invalidating& one) {
    if (!one.reply.ready())
      return false;
    const auto outcome = one.reply.get();
    if (outcome) {
      note([&] { return "the invalidation of " + std::to_string(one.id) + " has ended"; });
      ++count_.invalidations;
      // Of loads that are not shared, and of what is written before the right to is looked at, another table may still write more.
      record({.kind = CacheEvent::Kind::invalidated,
              .table = one.table,
              .id = one.id,
              .version = one.known,
              .of_own = !lease_ || tags_ || hears_ == Hears::tracking,
              .end = ++step_});
    }
    return true;
  });
}

void CachePlay::lease_over(const std::string& key, const CacheConnection* by) {
  for (const auto& actor : actors_) {
    if (&actor->main != by || server_.time < actor->undisturbed_since)
      continue;
    for (const Load& load : loads_) {
      if (load.table == actor->number && key.ends_with(kId[static_cast<std::size_t>(load.id)].text()))
        wrong_ = actor->name() + " loads " + std::to_string(load.id) + " still, and has not renewed its right to";
    }
  }
}

void CachePlay::refused(const Actor& actor, const std::string& key, std::uint64_t version) {
  if (actor.options.refresh_ahead > 0 || put_.contains(version))
    return;
  const int id = key == key_of(0) ? 0 : 1;
  CachedBytes row;
  if (actor.table->peek(kId[static_cast<std::size_t>(id)], row) && row.value && row.version.value() == version)
    wrong_ = actor.name() + " keeps version " + std::to_string(version) + ", and had lost the right to load it";
}

void CachePlay::count_loads() {
  for (const auto& actor : actors_) {
    const CacheStats stats = actor->table->stats();
    count_.load_waits += stats.load_waits;
    const std::uint64_t may = server_.grants(actor->main) + stats.outages;
    if (lease_ && actor->loads_begun > may)
      wrong_ = actor->name() + " has loaded " + std::to_string(actor->loads_begun) + " times, and had the right to " +
               std::to_string(may);
  }
}

}  // namespace echomq::model
