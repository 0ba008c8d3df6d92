// What the server must hold when the model is right: every key of every queue, derived counters and all.
#include "model/state.hpp"

#include <algorithm>

namespace echomq::model {
namespace {

using Content = std::vector<std::string>;

void put(Keyspace& keys, const std::string& key, Content content) {
  if (content.size() > 1)  // an empty collection has no key
    keys.emplace(key, std::move(content));
}

Content hash_of(std::map<std::string, std::string> fields) {
  Content content{"h"};
  for (auto& [field, value] : fields) {
    content.push_back(field);
    content.push_back(std::move(value));
  }
  return content;
}

const char* state_of(Place place) {
  switch (place) {
    case Place::waiting: return "pending";
    case Place::active: return "active";
    case Place::schedule: return "scheduled";
    case Place::dead: return "dead";
    case Place::awaiting_children: return "awaiting_children";
  }
  return "";
}

void render_row(Keyspace& keys, const std::string& key, const Job& job) {
  std::map<std::string, std::string> fields{
      {"state", state_of(job.place)}, {"attempts", std::to_string(job.attempts)}, {"payload", job.payload}};
  const auto note = [&](const char* field, const std::optional<std::string>& value) {
    if (value)
      fields.emplace(field, *value);
  };
  note("group", job.group);
  note("parent", job.parent);
  note("parent_queue", job.parent_queue);
  note("parent_policy", job.policy);
  note("last_error", job.last_error);
  note("progress", job.progress);
  if (job.stalled > 0)
    fields.emplace("stalled", std::to_string(job.stalled));
  if (job.handbacks > 0)
    fields.emplace("handbacks", std::to_string(job.handbacks));
  if (job.delays > 0)
    fields.emplace("delays", std::to_string(job.delays));
  put(keys, key, hash_of(std::move(fields)));

  Content logs{"l"};
  logs.insert(logs.end(), job.logs.begin(), job.logs.end());
  put(keys, key + ":logs", std::move(logs));
  if (job.lock)
    put(keys, key + ":lock", {"s", *job.lock});
}

void render_sets(Keyspace& keys, const Queue& queue) {
  std::map<std::string, std::vector<std::pair<std::int64_t, std::string>>> sets;
  for (const auto& [id, job] : queue.jobs) {
    switch (job.place) {
      case Place::waiting: sets[job.group ? "g:" + *job.group + ":pending" : "pending"].emplace_back(0, id); break;
      case Place::active: sets["active"].emplace_back(job.score, id); break;
      case Place::schedule: sets["schedule"].emplace_back(job.score, id); break;
      case Place::dead: sets["dead"].emplace_back(0, id); break;
      case Place::awaiting_children: break;
    }
  }
  for (const auto& [worker, until] : queue.parked)
    sets["parked"].emplace_back(until, worker);
  for (auto& [set, members] : sets) {
    std::ranges::sort(members);
    Content content{"z"};
    for (auto& [score, member] : members) {
      content.push_back(std::move(member));
      content.push_back(std::to_string(score));
    }
    put(keys, queue.base + set, std::move(content));
  }
}

void render_lanes(Keyspace& keys, const Queue& queue) {
  std::map<std::string, std::string> ceilings;
  std::map<std::string, std::string> weights;
  std::map<std::string, std::string> in_flight;
  Content paused{"S"};
  for (const auto& [group, lane] : queue.lanes) {
    if (lane.ceiling)
      ceilings.emplace(group, std::to_string(*lane.ceiling));
    if (lane.weight)
      weights.emplace(group, std::to_string(*lane.weight));
    if (lane.paused)
      paused.push_back(group);
    if (const std::int64_t count = queue.in_flight(group); count > 0)
      in_flight.emplace(group, std::to_string(count));
  }
  put(keys, queue.base + "glimit", hash_of(std::move(ceilings)));
  put(keys, queue.base + "gweight", hash_of(std::move(weights)));
  put(keys, queue.base + "gactive", hash_of(std::move(in_flight)));
  put(keys, queue.base + "paused", std::move(paused));
  Content ring{"l"};
  ring.insert(ring.end(), queue.ring.begin(), queue.ring.end());
  put(keys, queue.base + "ring", std::move(ring));
}

void render_repeats(Keyspace& keys, const Queue& queue) {
  std::vector<std::pair<std::int64_t, std::string>> registry;
  for (const auto& [name, repeat] : queue.repeats) {
    std::map<std::string, std::string> record;
    if (repeat.every)
      record.emplace("every_ms", *repeat.every);
    if (repeat.payload)
      record.emplace("template", *repeat.payload);
    put(keys, queue.base + "repeat:" + name, hash_of(std::move(record)));
    if (repeat.run)
      registry.emplace_back(*repeat.run, name);
  }
  std::ranges::sort(registry);
  Content content{"z"};
  for (auto& [run, name] : registry) {
    content.push_back(std::move(name));
    content.push_back(std::to_string(run));
  }
  put(keys, queue.base + "repeat", std::move(content));
}

void render_queue(Keyspace& keys, const Queue& queue) {
  for (const auto& [id, job] : queue.jobs) {
    if (!job.ghost)
      render_row(keys, queue.base + "job:" + id, job);
  }
  render_sets(keys, queue);
  render_lanes(keys, queue);
  for (const auto& [parent, family] : queue.families) {
    const std::string row = queue.base + "job:" + parent;
    put(keys, row + ":dependencies", {"s", std::to_string(family.outstanding())});
    put(keys, row + ":processed", hash_of(family.processed));
    put(keys, row + ":failed", hash_of(family.failed));
    put(keys, row + ":unsuccessful", hash_of(family.unsuccessful));
  }
  std::map<std::string, std::string> meta;
  if (queue.paused)
    meta.emplace("paused", "1");
  if (queue.concurrency)
    meta.emplace("concurrency", *queue.concurrency);
  put(keys, queue.base + "meta", hash_of(std::move(meta)));
  render_repeats(keys, queue);
  if (queue.completed > 0)
    put(keys, queue.base + "metrics:completed", {"h", "count", std::to_string(queue.completed)});
  if (queue.failed > 0)
    put(keys, queue.base + "metrics:failed", {"h", "count", std::to_string(queue.failed)});
  Content wake(static_cast<std::size_t>(queue.wake) + 1, "1");
  wake[0] = "l";
  put(keys, queue.base + "wake", std::move(wake));
  Content outbox{"l"};
  outbox.insert(outbox.end(), queue.outbox.begin(), queue.outbox.end());
  put(keys, queue.base + "flow:outbox", std::move(outbox));
}

}  // namespace

Keyspace render(const State& state) {
  Keyspace keys;
  for (const Queue& queue : state.queues)
    render_queue(keys, queue);
  return keys;
}

}  // namespace echomq::model
