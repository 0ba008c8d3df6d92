// The parts of a transition that several verbs share: lane and ring, wake tokens, leases, flow records.
#include "model/state.hpp"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace echomq::model {

namespace {
constexpr std::int64_t kWakeKept = 64;
}

std::int64_t Family::outstanding() const {
  std::set<std::string> ended;
  for (const auto& [child, result] : processed)
    ended.insert(child);
  for (const auto& [child, reason] : unsuccessful)
    ended.insert(child);
  return children - static_cast<std::int64_t>(ended.size());
}

Job* Queue::find(const std::string& id) {
  const auto at = jobs.find(id);
  return at == jobs.end() || at->second.ghost ? nullptr : &at->second;
}

bool Queue::is_maxed() const {
  const std::int64_t ceiling = concurrency ? std::strtoll(concurrency->c_str(), nullptr, 10) : 0;  // a word is 0
  return ceiling > 0 && active() >= ceiling;
}

std::int64_t Queue::active() const {
  return std::ranges::count_if(jobs, [](const auto& entry) { return entry.second.place == Place::active; });
}

std::int64_t Queue::in_flight(const std::string& group) const {
  return std::ranges::count_if(
      jobs, [&](const auto& entry) { return entry.second.place == Place::active && entry.second.group == group; });
}

std::vector<std::string> Queue::waiting(const std::optional<std::string>& group) const {
  std::vector<std::string> ids;
  for (const auto& [id, job] : jobs) {
    if (job.place == Place::waiting && job.group == group)
      ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> Queue::reached(Place place, std::int64_t now, std::size_t limit) const {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const auto& [id, job] : jobs) {
    if (job.place == place && job.score <= now)
      found.emplace_back(job.score, id);
  }
  std::ranges::sort(found);
  if (found.size() > limit)
    found.resize(limit);
  std::vector<std::string> ids;
  for (auto& [score, id] : found)
    ids.push_back(std::move(id));
  return ids;
}

bool Queue::on_ring(const std::string& group) const { return std::ranges::count(ring, group) > 0; }

void Queue::ring_rule(const std::string& group) {
  const Lane& lane = lanes[group];
  const bool belongs = !waiting(group).empty() && !lane.paused && (!lane.ceiling || in_flight(group) < *lane.ceiling);
  if (!belongs) {
    std::erase(ring, group);
  } else if (!on_ring(group)) {
    ring.push_back(group);
    push_wake(1);
  }
}

void Queue::push_wake(std::int64_t tokens) { wake = std::min(kWakeKept, wake + tokens); }

void Queue::flat_wake(std::int64_t made) {
  const auto lacking = std::min({made, kWakeKept, static_cast<std::int64_t>(parked.size()) - wake});
  if (lacking > 0)
    push_wake(lacking);
}

void Queue::ceiling_wake(std::int64_t before) {
  const std::int64_t ceiling = concurrency ? std::strtoll(concurrency->c_str(), nullptr, 10) : 0;
  if (ceiling <= 0 || paused)
    return;
  std::int64_t open = std::min(before - active(), ceiling - active());
  if (ring.empty())
    open = std::min(open, static_cast<std::int64_t>(waiting(std::nullopt).size()));
  flat_wake(open);
}

void Queue::due_wake(const std::string& id) {
  const std::int64_t due = jobs.at(id).score;
  for (const auto& [other, job] : jobs) {
    if (job.place == Place::schedule && std::tie(job.score, other) < std::tie(due, id))
      return;
  }
  if (wake < static_cast<std::int64_t>(parked.size()))
    push_wake(1);
}

void Queue::wait_again(Job& job) {
  job.place = Place::waiting;
  job.score = 0;
}

bool Queue::withdraw(const std::string& id) {
  Job& job = jobs.at(id);
  if (job.place != Place::active && job.place != Place::waiting)
    return false;
  job.place = Place::dead;  // anywhere but there; the caller says where
  if (job.group)
    ring_rule(*job.group);
  return true;
}

std::int64_t Queue::lease(Job& job, std::int64_t deadline) {
  job.place = Place::active;
  job.score = deadline;
  return ++job.attempts;
}

void Queue::release(const std::string& parent) {
  Job* const row = find(parent);
  if (row->place == Place::awaiting_children && families[parent].outstanding() <= 0) {
    wait_again(*row);
    flat_wake(1);
  }
}

void Queue::child_done(const std::string& parent, const std::string& child, const std::string& result, bool delivered) {
  if (find(parent) == nullptr)
    return;
  Family& family = families[parent];
  if (delivered && family.processed.contains(child))
    return;
  const bool counted = family.processed.contains(child) || family.unsuccessful.contains(child);
  family.unsuccessful.erase(child);
  family.processed[child] = result;
  if (!counted)
    release(parent);
}

void Queue::child_died(const std::string& child, const Job& link, const std::string& reason) {
  if (!link.parent)
    return;
  if (link.parent_queue && *link.parent_queue != name) {
    outbox.push_back(std::string(1, '\0') + "fail" + '\0' + *link.parent_queue + '\0' + *link.parent + '\0' + child +
                     '\0' + (link.policy == "id" ? "id" : "fp") + '\0' + reason);
    return;
  }
  record_death(*link.parent, child, link.policy == "id", reason, false);
}

void Queue::record_death(const std::string& parent, const std::string& child, bool ignored, const std::string& reason,
                         bool delivered) {
  Job* const row = find(parent);
  if (row == nullptr)
    return;
  Family& family = families[parent];
  if (family.processed.contains(child))
    return;
  auto& records = ignored ? family.unsuccessful : family.failed;
  const bool known = records.contains(child);
  if (delivered && known)
    return;
  records[child] = reason;
  if (ignored) {
    if (!known)
      release(parent);
  } else if (row->place != Place::dead) {
    row->place = Place::dead;
    row->score = 0;
    if (row->group)
      ring_rule(*row->group);
    if (row->parent) {
      outbox.push_back(std::string(1, '\0') + "fail" + '\0' + row->parent_queue.value_or(name) + '\0' + *row->parent +
                       '\0' + parent + '\0' + (row->policy == "id" ? "id" : "fp") + '\0' + reason);
    }
  }
}

Queue* State::queue_of(std::string_view name) {
  const auto at = std::ranges::find(queues, name, &Queue::name);
  return at == queues.end() ? nullptr : &*at;
}

std::string job_id(std::size_t queue, std::size_t number) {
  std::string id = "JOB0NgWEfAE0A0";
  id[11] = static_cast<char>('1' + queue);
  id[13] = static_cast<char>('1' + number);
  return id;
}
// Ghosts sort between jobs, so that they are met first, last and in the middle.
std::string ghost_id(std::size_t queue, std::size_t number) {
  std::string id = "JOB0NgWEfAE0AG";
  id[11] = static_cast<char>('1' + queue);
  id[12] = number % 2 == 0 ? '9' : 'B';
  return id;
}
std::string group_id(std::size_t number) {
  std::string id = "PRT0NgWEfAE0A0";
  id[13] = static_cast<char>('1' + number);
  return id;
}

// A name may hold anything, and one may begin as another does.
std::string repeat_name(std::size_t number) { return std::string("r:\0 ", 4).substr(0, 1 + number); }

State initial_state() {
  State state;
  state.micros = 1'800'000'000'000'000;
  state.holders.resize(kHolders);
  for (std::size_t queue = 0; queue < kQueues; ++queue) {
    Queue& made = state.queues.emplace_back();
    made.name = "q" + std::to_string(queue + 1);
    made.base = "emq:{" + made.name + "}:";
  }
  return state;
}

}  // namespace echomq::model
