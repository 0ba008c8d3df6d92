// A process of the play: its table, its connections, and what it hears.
#include "cache/push.hpp"
#include "model/cache_play_inside.hpp"

namespace echomq::model {

CachePlay::Actor::Actor(CachePlay& its_play, int its_number, CacheOptions with)
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

void CachePlay::Actor::heard(const resp::View& push, const CacheConnection::Versions& versions) {
  cache::read_push(push, "ecc:{t}:", "ecc:{t}:coh", *table);
  if (options.coherence == Coherence::tracking) {
    play.note([&] { return name() + " is told of changes"; });
    return told(versions);
  }
  const resp::View payload = push.at(2);
  const auto message = CoherenceMessage::parse(*payload.as_text());
  told(message->id, message->version.value());
}

void CachePlay::Actor::told(const CacheConnection::Versions& versions) {
  for (int id = 0; id < kIds; ++id) {
    if (const auto at = versions.find(key_of(id)); at != versions.end())
      told(kId[static_cast<std::size_t>(id)], at->second, false);
  }
}

void CachePlay::Actor::told(const BrandedId& id, std::uint64_t version, bool said) {
  const int which = id == kId[0] ? 0 : 1;
  // A drop tells of a version that the source never had: of all that was before it.
  version = play.newest_until(which, version);
  play.note([&] { return name() + " has heard of " + std::to_string(which) + " version " + std::to_string(version); });
  play.record({.kind = CacheEvent::Kind::heard,
               .table = number,
               .id = which,
               .version = version,
               .said = said,
               .end = ++play.step_});
}

}  // namespace echomq::model
