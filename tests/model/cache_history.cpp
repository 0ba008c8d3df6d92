// The checker of histories of versions. Every rule is a search in what ended before the read began.
#include "model/cache_history.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

namespace echomq::model {
namespace {

/// Versions with the stamp from which on they count; asked for the greatest that counted before a stamp.
class Known {
 public:
  void add(std::int64_t stamp, std::uint64_t version) { all_.emplace_back(stamp, version); }
  void arrange() {
    std::sort(all_.begin(), all_.end());
    greatest_ = all_;
    for (std::size_t i = 1; i < greatest_.size(); ++i)
      greatest_[i].second = std::max(greatest_[i].second, greatest_[i - 1].second);
  }
  /// 0 when there is none.
  [[nodiscard]] std::uint64_t before(std::int64_t stamp) const {
    const auto at = std::lower_bound(greatest_.begin(), greatest_.end(), std::pair(stamp, std::uint64_t{0}));
    return at == greatest_.begin() ? 0 : std::prev(at)->second;
  }
  /// Of those alone that count only after `since`.
  [[nodiscard]] std::uint64_t between(std::int64_t since, std::int64_t stamp) const {
    std::uint64_t greatest = 0;
    for (const auto& [from, version] : all_) {
      if (from > since && from < stamp)
        greatest = std::max(greatest, version);
    }
    return greatest;
  }

 private:
  std::vector<std::pair<std::int64_t, std::uint64_t>> all_;
  std::vector<std::pair<std::int64_t, std::uint64_t>> greatest_;  // of all until there
};

struct OfTable {
  Known heard;
  Known unsaid;  // what rows had when they changed
  Known own;
  Known read;
  Known invalidated;  // against all loads
  Known invalidated_own;
  Known dropped;
};

struct OfId {
  std::map<std::uint64_t, std::int64_t> written;  // since when
  Known absences;
  Known placed_ms;
  std::vector<std::int64_t> ended;

  /// 0 when none has.
  [[nodiscard]] std::int64_t ended_before(std::int64_t stamp) const {
    const auto at = std::ranges::lower_bound(ended, stamp);
    return at == ended.begin() ? 0 : *std::prev(at);
  }
};

/// Which version an answer shows. An absent one may be of any time at which there was nothing: the latest possible.
[[nodiscard]] std::uint64_t shown(const CacheEvent& read, const OfId& id) {
  return read.absent ? id.absences.before(read.end) : read.version;
}

[[nodiscard]] std::string told(const CacheEvent& read, std::uint64_t has, const char* rule, std::uint64_t least) {
  std::ostringstream out;
  out << "table " << read.table << ", id " << read.id << ": a read from " << read.begin << " to " << read.end
      << " gave " << (read.absent ? "nothing, which is at most version " : "version ") << has
      << (read.stale ? " (stale)" : "") << ", " << rule << " " << least;
  return out.str();
}

}  // namespace

std::optional<std::string> find_violation(const std::vector<CacheEvent>& history, CacheBounds bounds) {
  using Kind = CacheEvent::Kind;
  std::map<int, OfId> ids;
  std::map<std::pair<int, int>, OfTable> tables;
  for (const CacheEvent& event : history) {
    if (event.kind != Kind::written)
      continue;
    OfId& id = ids[event.id];
    id.written.emplace(event.version, event.begin);
    if (event.absent)
      id.absences.add(event.begin, event.version);
  }
  for (auto& [number, id] : ids)
    id.absences.arrange();
  for (const CacheEvent& event : history) {
    OfTable& table = tables[{event.table, event.id}];
    switch (event.kind) {
      case Kind::written: break;
      case Kind::placed:
        table.own.add(event.end, event.version);
        ids[event.id].placed_ms.add(event.end_ms, event.version);
        break;
      case Kind::heard: (event.said ? table.heard : table.unsaid).add(event.end, event.version); break;
      case Kind::read: table.read.add(event.end, shown(event, ids[event.id])); break;
      case Kind::invalidated:
        (event.of_own ? table.invalidated_own : table.invalidated).add(event.end, event.version);
        break;
      case Kind::dropped: table.dropped.add(event.end, event.version); break;
      case Kind::ended: ids[event.id].ended.push_back(event.end); break;
    }
  }
  for (auto& [number, id] : ids) {
    id.placed_ms.arrange();
    std::ranges::sort(id.ended);
  }
  for (auto& [which, table] : tables) {
    table.heard.arrange();
    table.unsaid.arrange();
    table.own.arrange();
    table.read.arrange();
    table.invalidated.arrange();
    table.invalidated_own.arrange();
    table.dropped.arrange();
  }
  for (const CacheEvent& event : history) {
    if (event.kind != Kind::read)
      continue;
    const OfId& id = ids[event.id];
    const OfTable& table = tables[{event.table, event.id}];
    const std::uint64_t has = shown(event, id);
    if (!event.absent) {
      const auto written = id.written.find(has);
      if (written == id.written.end())
        return told(event, has, "which nobody has written; newest placed", id.placed_ms.before(event.end_ms));
      if (written->second > event.end)
        return told(event, has, "which was written only at", static_cast<std::uint64_t>(written->second));
    }
    if (const auto least = table.heard.before(event.begin); has < least)
      return told(event, has, "although the table had been told of", least);
    if (const auto least = table.unsaid.between(id.ended_before(event.end), event.begin); has < least)
      return told(event, has, "although the table had been told of a change to", least);
    if (const auto least = table.own.before(event.begin); has < least)
      return told(event, has, "although the table itself had put", least);
    if (const auto least = table.read.before(event.begin); bounds.read && has < least)
      return told(event, has, "although an earlier read had given", least);
    if (const auto least = table.invalidated.before(event.begin); event.loaded && has < least)
      return told(event, has, "although an invalidation through the table began at", least);
    if (const auto least = table.invalidated_own.before(event.begin); event.own && has < least)
      return told(event, has, "which it alone had loaded, although its own invalidation began at", least);
    if (const auto least = table.dropped.before(event.begin); event.tagged && has < least)
      return told(event, has, "although a drop of its tag through the table began at", least);
    std::int64_t bound = event.stale ? bounds.stale_ms : bounds.fresh_ms;
    if (event.lives_ms)
      bound = *event.lives_ms + bounds.slack_ms + (event.stale ? bounds.stale_ms - bounds.fresh_ms : 0);
    if (const auto least = id.placed_ms.before(event.begin_ms - bound); has < least)
      return told(event, has, "although its bound has passed since the placing of", least);
  }
  return std::nullopt;
}

}  // namespace echomq::model
