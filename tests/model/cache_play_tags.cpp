// Tags, and what single versions have of their own.
#include "model/cache_play_inside.hpp"

namespace echomq::model {

using std::chrono::milliseconds;

std::optional<milliseconds> CachePlay::ttl_of(std::uint64_t version) const {
  constexpr std::int64_t kOwn[] = {40, 150, 1200};
  if (!own_ttl_ || version % 4 == 3)
    return std::nullopt;
  return milliseconds(kOwn[version % 4]);
}

std::vector<std::string> CachePlay::tags_of(int id, std::uint64_t version) const {
  if (!is_tagged(version))
    return {};
  return {kTags[static_cast<std::size_t>(id)], kTags[2]};
}

void CachePlay::drop(Actor& actor, std::size_t tag) {
  note([&] { return actor.name() + " drops the tag " + kTags[tag]; });
  std::array<std::uint64_t, kIds> known{};
  for (std::size_t id = 0; id < kIds; ++id)
    known[id] = tag == id || tag == 2 ? source_[id].version : 0;
  droppings_.push_back({actor.number, known, actor.table->invalidate_tag(kTags[tag])});
}

void CachePlay::look_at_drops() {
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

}  // namespace echomq::model
