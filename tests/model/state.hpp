// The model: what a deployment of a few small queues holds, written from the protocol's documents and not from its scripts.
//
// It keeps only what cannot be derived. A job has one place, so it cannot be in two; jobs in flight, the ring's members and
// the outstanding children are counted from the jobs whenever they are asked for. Only the order of the ring is kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace echomq::model {

enum class Place : std::uint8_t { waiting, active, schedule, dead, awaiting_children };

struct Job {
  bool ghost = false;  // a member without a row, as a peer's mistake leaves it
  Place place = Place::waiting;
  std::int64_t score = 0;  // of active: the deadline; of schedule: the due time; Unix ms
  std::int64_t attempts = 0;
  std::string payload{};
  std::optional<std::string> group{};
  std::optional<std::string> parent{};
  std::optional<std::string> parent_queue{};
  std::optional<std::string> policy{};
  std::optional<std::string> last_error{};
  std::optional<std::string> progress{};
  std::int64_t stalled = 0;
  std::int64_t handbacks = 0;
  std::int64_t delays = 0;
  std::vector<std::string> logs{};
  std::optional<std::string> lock{};
};

/// The four subkeys of a flow parent. They outlive its row.
struct Family {
  std::int64_t children = 0;
  std::map<std::string, std::string> processed{};
  std::map<std::string, std::string> failed{};
  std::map<std::string, std::string> unsuccessful{};

  [[nodiscard]] std::int64_t outstanding() const;
};

struct Lane {
  bool paused = false;
  std::optional<std::int64_t> ceiling{};
  std::optional<std::int64_t> weight{};
};

/// A registration of a job that is admitted again and again. Hands and peers leave one without a record, or outside the registry.
struct Repetition {
  std::optional<std::int64_t> run{};  // Unix ms; none: it is not in the registry
  std::optional<std::string> every{};
  std::optional<std::string> payload{};
  bool spoilt = false;  // not whole any more, and no script has made it so

  [[nodiscard]] bool has_record() const { return every || payload; }
};

struct Queue {
  std::string name{};
  std::string base{};  // emq:{name}:
  std::map<std::string, Job> jobs{};
  std::map<std::string, Family> families{};
  std::map<std::string, Lane> lanes{};
  std::vector<std::string> ring{};
  std::int64_t wake = 0;
  std::map<std::string, std::int64_t> parked{};
  bool paused = false;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::vector<std::string> outbox{};
  std::map<std::string, Repetition> repeats{};
  std::optional<std::string> concurrency{};  // as operators write it

  /// Whether as many jobs are in flight as the operator allows; what is no number allows any.
  [[nodiscard]] bool is_maxed() const;
  [[nodiscard]] std::int64_t active() const;
  [[nodiscard]] Job* find(const std::string& id);  // null: no row; a ghost has none
  [[nodiscard]] std::int64_t in_flight(const std::string& group) const;
  /// Flat waiting members, or those of a lane; ghosts too, in mint order.
  [[nodiscard]] std::vector<std::string> waiting(const std::optional<std::string>& group) const;
  /// Members of active or schedule whose score is reached, by score and then by id.
  [[nodiscard]] std::vector<std::string> reached(Place place, std::int64_t now, std::size_t limit) const;
  [[nodiscard]] bool on_ring(const std::string& group) const;

  /// Law 5 of protocol/README.md for one lane: on the ring, at its tail, with a wake token; or off it.
  void ring_rule(const std::string& group);
  void push_wake(std::int64_t tokens);
  /// A hint for each slot under the ceiling that is free now and was not when `before` jobs were in flight.
  void ceiling_wake(std::int64_t before);
  /// A hint for each flat job made claimable, no more than parked workers lack.
  void flat_wake(std::int64_t made);
  /// The job is new in schedule: a parked worker is told when it is the earliest.
  void due_wake(const std::string& id);

  /// The job waits from now on, in pending or its lane. Wake and ring are the caller's.
  void wait_again(Job& job);
  /// Takes the job out of active or of where it waits, and puts its lane right. False: it is in neither.
  bool withdraw(const std::string& id);
  /// Leases the job; gives its token. The ring is the caller's.
  std::int64_t lease(Job& job, std::int64_t deadline);

  /// A child is done, same queue or `delivered`: recorded and counted once.
  void child_done(const std::string& parent, const std::string& child, const std::string& result, bool delivered);
  /// A child that is here has died. `link` is its row as it was.
  void child_died(const std::string& child, const Job& link, const std::string& reason);
  /// The same on the parent's side.
  void record_death(const std::string& parent, const std::string& child, bool ignored, const std::string& reason,
                    bool delivered);

 private:
  void release(const std::string& parent);
};

/// A job that some worker has claimed and may settle, now or when it is too late.
struct Held {
  std::size_t queue = 0;
  std::string id{};
  std::int64_t token = 0;
};

struct State {
  std::int64_t micros = 0;  // the server's clock
  std::vector<Queue> queues{};
  std::vector<std::vector<Held>> holders{};

  [[nodiscard]] std::int64_t now() const { return micros / 1000; }
  [[nodiscard]] Queue* queue_of(std::string_view name);
};

/// The names that histories draw from: few, so that they collide.
inline constexpr std::size_t kQueues = 2;
inline constexpr std::size_t kJobs = 6;
inline constexpr std::size_t kGroups = 3;
inline constexpr std::size_t kHolders = 2;
inline constexpr std::size_t kRepeats = 3;
/// Member `number` of queue `queue`; ids of queues differ, as minted ids do.
[[nodiscard]] std::string job_id(std::size_t queue, std::size_t number);
[[nodiscard]] std::string ghost_id(std::size_t queue, std::size_t number);
[[nodiscard]] std::string group_id(std::size_t number);
[[nodiscard]] std::string repeat_name(std::size_t number);
[[nodiscard]] State initial_state();

/// A queue's or deployment's keys and what they hold, flat: type letter, then the string; fields and values by field;
/// elements; members by name; members and scores in order.
using Keyspace = std::map<std::string, std::vector<std::string>>;
[[nodiscard]] Keyspace render(const State& state);

}  // namespace echomq::model
