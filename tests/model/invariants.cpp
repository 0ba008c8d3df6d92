// The laws, one function each group of them.
#include "model/invariants.hpp"

#include <algorithm>
#include <cstdlib>

namespace echomq::model {
namespace {

using Fields = std::map<std::string, std::string>;

/// Field and value of a hash, member and score of a sorted set.
Fields pairs(const Keyspace& keys, const std::string& key) {
  Fields made;
  if (const auto at = keys.find(key); at != keys.end()) {
    for (std::size_t i = 1; i + 1 < at->second.size(); i += 2)
      made.emplace(at->second[i], at->second[i + 1]);
  }
  return made;
}
std::vector<std::string> elements(const Keyspace& keys, const std::string& key) {
  const auto at = keys.find(key);
  return at == keys.end() ? std::vector<std::string>{}
                          : std::vector<std::string>(at->second.begin() + 1, at->second.end());
}
std::string field(const Fields& fields, const std::string& name) {
  const auto at = fields.find(name);
  return at == fields.end() ? "" : at->second;
}
std::int64_t number(const std::string& digits) { return std::strtoll(digits.c_str(), nullptr, 10); }

class Judge {
 public:
  Judge(const Keyspace& keys, const Keyspace& before, const Queue& queue)
      : keys_(keys), before_(before), queue_(queue) {
    const std::string prefix = queue.base + "job:";
    for (auto at = keys.lower_bound(prefix); at != keys.end() && at->first.starts_with(prefix); ++at) {
      if (at->first.find(':', prefix.size()) == std::string::npos)
        rows_.emplace(at->first.substr(prefix.size()), pairs(keys, at->first));
    }
  }

  std::optional<std::string> judge() {
    places();
    lanes();
    flows();
    counters();
    repeats();
    marks();
    if (broken_.empty())
      return std::nullopt;
    return queue_.name + ": " + broken_;
  }

 private:
  void blame(const std::string& what) {
    if (broken_.empty())
      broken_ = what;
  }

  [[nodiscard]] std::string row_field(const std::string& id, const std::string& name) const {
    const auto at = rows_.find(id);
    return at == rows_.end() ? "" : field(at->second, name);
  }

  void places() {
    std::map<std::string, std::string> place;  // of each member: the set it was met in
    std::vector<std::string> sets{"pending", "active", "schedule", "dead"};
    const std::string lanes = queue_.base + "g:";
    for (auto at = keys_.lower_bound(lanes); at != keys_.end() && at->first.starts_with(lanes); ++at)
      sets.push_back(at->first.substr(queue_.base.size()));
    for (const std::string& set : sets) {
      for (const auto& [id, score] : pairs(keys_, queue_.base + set)) {
        if (!place.emplace(id, set).second)
          blame(id + " is in " + place[id] + " and in " + set);
        if (set != "active" && set != "schedule" && score != "0")
          blame(id + " has score " + score + " in " + set);
        const auto ghost = queue_.jobs.find(id);
        if (!rows_.contains(id) && (ghost == queue_.jobs.end() || !ghost->second.ghost))
          blame(id + " is in " + set + " and has no row");
      }
    }
    for (const auto& [id, row] : rows_) {
      const std::string state = field(row, "state");
      const std::string group = field(row, "group");
      const std::string home = state == "pending"             ? (group.empty() ? "pending" : "g:" + group + ":pending")
                               : state == "scheduled"         ? "schedule"
                               : state == "awaiting_children" ? ""
                                                              : state;
      const auto found = place.find(id);
      if ((found == place.end() ? "" : found->second) != home)
        blame(id + " is " + state + " and in " + (found == place.end() ? "no set" : found->second));
    }
  }

  void lanes() {
    std::map<std::string, std::int64_t> in_flight;
    for (const auto& [id, deadline] : pairs(keys_, queue_.base + "active")) {
      if (const std::string group = row_field(id, "group"); !group.empty())
        ++in_flight[group];
    }
    std::map<std::string, std::int64_t> counted;
    for (const auto& [group, count] : pairs(keys_, queue_.base + "gactive"))
      counted.emplace(group, number(count));
    if (counted != in_flight)
      blame("gactive is not what active holds");

    auto ring = elements(keys_, queue_.base + "ring");
    std::ranges::sort(ring);
    std::vector<std::string> expected;
    const auto paused = elements(keys_, queue_.base + "paused");
    const Fields ceilings = pairs(keys_, queue_.base + "glimit");
    for (std::size_t i = 0; i < kGroups; ++i) {
      const std::string group = group_id(i);
      const std::string ceiling = field(ceilings, group);
      if (keys_.contains(queue_.base + "g:" + group + ":pending") && std::ranges::count(paused, group) == 0 &&
          (ceiling.empty() || in_flight[group] < number(ceiling)))
        expected.push_back(group);
    }
    if (ring != expected)
      blame("the ring does not hold the lanes that can be served");
  }

  void flows() {
    for (const auto& [parent, family] : queue_.families) {
      if (row_field(parent, "state") != "awaiting_children")
        continue;
      const std::string row = queue_.base + "job:" + parent;
      Fields ended = pairs(keys_, row + ":processed");
      ended.merge(pairs(keys_, row + ":unsuccessful"));
      const std::int64_t outstanding = family.children - static_cast<std::int64_t>(ended.size());
      const auto left = elements(keys_, row + ":dependencies");
      if (left.size() != 1 || number(left[0]) != outstanding)
        blame(parent + " does not wait for as many children as have not ended");
      if (outstanding <= 0)
        blame(parent + " waits for children that have all ended");
    }
  }

  void counters() {
    for (const auto& [id, row] : rows_) {
      const std::int64_t attempts = number(field(row, "attempts"));
      const Fields was = pairs(before_, queue_.base + "job:" + id);
      if (attempts < number(field(was, "attempts")))
        blame("attempts of " + id + " has fallen");
      if (attempts < number(field(row, "stalled")) + number(field(row, "handbacks")) + number(field(row, "delays")))
        blame(id + " was given back more often than it was claimed");
    }
    for (const char* const metric : {"metrics:completed", "metrics:failed"}) {
      const Fields now = pairs(keys_, queue_.base + metric);
      if (!now.empty() && number(field(now, "count")) < number(field(pairs(before_, queue_.base + metric), "count")))
        blame(std::string(metric) + " has fallen");
    }
    const auto wake = elements(keys_, queue_.base + "wake");
    if (wake.size() > 64 || std::ranges::count(wake, "1") != static_cast<std::ptrdiff_t>(wake.size()))
      blame("wake holds more than 64 hints, or something else");
  }

  void repeats() {
    const auto spoilt = [&](const std::string& name) {
      const auto at = queue_.repeats.find(name);
      return at != queue_.repeats.end() && at->second.spoilt;
    };
    const Fields registry = pairs(keys_, queue_.base + "repeat");
    for (const auto& [name, run] : registry) {
      if (run.find_first_not_of("0123456789") != std::string::npos)
        blame(name + " runs next at " + run);
      const Fields record = pairs(keys_, queue_.base + "repeat:" + name);
      if ((field(record, "every_ms").empty() || field(record, "template").empty()) && !spoilt(name))
        blame(name + " is registered and has no whole record");
    }
    const std::string prefix = queue_.base + "repeat:";
    for (auto at = keys_.lower_bound(prefix); at != keys_.end() && at->first.starts_with(prefix); ++at) {
      const std::string name = at->first.substr(prefix.size());
      if (!registry.contains(name) && !spoilt(name))
        blame(name + " has a record and is not registered");
    }
  }

  void marks() {
    const std::string prefix = queue_.base + "job:";
    for (auto at = keys_.lower_bound(prefix); at != keys_.end() && at->first.starts_with(prefix); ++at) {
      if (at->first.ends_with(":lock") &&
          !rows_.contains(at->first.substr(prefix.size(), at->first.size() - prefix.size() - 5)))
        blame(at->first + " is the marker of no row");
    }
    for (const auto& [name, value] : pairs(keys_, queue_.base + "meta")) {
      if (name != "paused" && name != "concurrency")
        blame("meta holds " + name);
    }
  }

  const Keyspace& keys_;
  const Keyspace& before_;
  const Queue& queue_;
  std::map<std::string, Fields> rows_{};
  std::string broken_{};
};

}  // namespace

std::optional<std::string> broken_law(const Keyspace& keys, const Keyspace& before, const State& state) {
  for (const Queue& queue : state.queues) {
    if (auto broken = Judge(keys, before, queue).judge())
      return broken;
  }
  return std::nullopt;
}

}  // namespace echomq::model
