// Reads: who asks, and what answers are in the history.
#include "model/cache_play_inside.hpp"

#include <utility>

namespace echomq::model {

void CachePlay::read(Actor& actor, int id) {
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

void CachePlay::read_both(Actor& actor) {
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

void CachePlay::peek(Actor& actor, int id) {
  const std::int64_t begin = ++step_;
  CachedBytes row;
  if (!actor.table->peek(kId[static_cast<std::size_t>(id)], row))
    return;
  auto& waiter = waiters_.emplace_back(actor, id, begin);
  waiter.begin_ms = static_cast<std::int64_t>(server_.time.load());
  waiter.answer(std::move(row));
}

void CachePlay::answered(Waiter& waiter, Result<CachedBytes> answer) {
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
  event.own = !lease_;  // that there is nothing is told by whoever has the right to load
  if (!event.absent) {
    event.version = answer->version.value();
    event.loaded = !put_.contains(event.version);
    event.own = event.loaded && loaded_by_[event.version] == std::set<int>{waiter.actor.number};
    event.tagged = is_tagged(event.version);
    if (const auto own = ttl_of(event.version))
      event.lives_ms = own->count();
    if (*answer->value != "v" + std::to_string(event.version))
      wrong_ = "version " + std::to_string(event.version) + " came with the value of another: " + *answer->value;
  }
  record(event);
}

}  // namespace echomq::model
