// `Queue`: admission, claims, settlement and operation of one queue.
//
// Every verb starts at once and gives a `Reply` (reply.hpp). Verbs carry the protocol's names; each says which script
// and keys it touches. Option structs are trivially copyable views: what they point at must live until the verb
// returns, not longer, since arguments are encoded before it does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {

// Every duration and instant is in whole milliseconds. What becomes a score (leases, delays, due times) may be at most
// 2^53 - 1 of them away from zero, so that it stays exact; texts (payloads, results, errors, log lines) may be at most
// 512 MiB, the server's own bound.

using Milliseconds = std::chrono::milliseconds;
/// An instant of the server's or the caller's clock, in Unix milliseconds.
using Instant = UnixMillis;

/// What became of an admission.
enum class Admitted : std::uint8_t {
  enqueued,   ///< this call made the row
  duplicate,  ///< the row existed; nothing changed
  present,    ///< the row exists, but an answer was lost on the way: this call or an earlier one made it
};

struct Admission {
  JobId id;
  Admitted verdict = Admitted::enqueued;
};

/// How a job is run, kept in its row as fields of its own and looked at by this library's workers; what a peer runs goes
/// by the peer's own settings. All are optional, and a job without any has the canonical row.
struct RunOptions {
  /// The failure with this number ends the job as dead, whatever the worker's maximum; >= 1. Field `max_attempts`.
  std::optional<std::uint32_t> max_attempts{};
  /// How long a failed run waits for the next one, in place of the worker's backoff: `fixed:MS` or `exponential:BASE:CAP`,
  /// each with `:jitter` or without. Empty: the worker's. Field `backoff`.
  std::string_view backoff{};
  /// How long one run may take; >= 1 ms. Field `timeout`.
  std::optional<Milliseconds> timeout{};
  /// A job that no worker has begun, or begun again, so long after its admission, by the server's clock, is dead instead
  /// of run: a retry, a hand-back and a crash come under it too; >= 1 ms, and more than `in`. Field `expires_at`, Unix ms.
  std::optional<Milliseconds> expire{};
  /// How long what it came to is kept for `Queue::wait` and `Queue::result` once it has ended; >= 1 ms. Field `keep`.
  std::optional<Milliseconds> keep{};
  /// A W3C trace context, 55 bytes: `00-<32 hex digits>-<16>-<2>`. Empty: none. Field `traceparent`.
  std::string_view traceparent{};

  [[nodiscard]] constexpr bool any() const noexcept {
    return max_attempts || timeout || expire || keep || !backoff.empty() || !traceparent.empty();
  }
};

/// How one job is admitted. At most one of `at` and `in`: it is then invisible to claims until it is due and a
/// `promote` has run (workers do that).
struct EnqueueOptions {
  std::optional<JobId> id{};               ///< minted by the client when absent
  std::optional<LaneId> lane{};            ///< absent: the flat pending set
  std::optional<Instant> at{};             ///< not before this instant; one in the past is due at once
  std::optional<Milliseconds> in{};        ///< not before this long from now, by the server's clock; >= 0
  std::optional<Milliseconds> deadline{};  ///< of the call, >= 1 ms; the client's when absent
  RunOptions run{};
};

/// One job of a batch. The views must live until `enqueue_many` returns.
struct NewJob {
  std::string_view payload{};
  std::optional<JobId> id{};
};

struct EnqueueManyOptions {
  std::optional<LaneId> lane{};
  std::optional<Instant> at{};
  std::optional<Milliseconds> in{};
  std::optional<Milliseconds> deadline{};
  RunOptions run{};  ///< the same for all
};

/// One job of a batch of unlike ones, each with a target and ways of its own. The views must live until `enqueue_mixed`
/// returns.
struct MixedJob {
  std::string_view payload{};
  std::optional<JobId> id{};
  std::optional<LaneId> lane{};
  std::optional<Instant> at{};
  std::optional<Milliseconds> in{};
  RunOptions run{};
};

/// How a job ended, as far as can be told.
enum class EndedAs : std::uint8_t {
  completed,  ///< with its kept result as text, empty when it gave none
  dead,       ///< with its last error as text
  gone,       ///< it has ended, or was removed, and nothing is kept of it; or there never was such a job
  timeout,    ///< it had not ended within the time given
};
[[nodiscard]] std::string_view to_string(EndedAs how) noexcept;

struct Ended {
  JobId id;
  EndedAs how = EndedAs::gone;
  std::string text;
};

struct WaitOptions {
  Milliseconds timeout{30000};  ///< >= 1 ms; from the call on
  /// How often the job is looked at without having been told: what an end of which nobody tells (an operator's removal, a
  /// peer that publishes nothing) may go unnoticed. >= 10 ms.
  Milliseconds beat{5000};
};

/// A leased job. `token` is the fencing token that every settle presents; it equals the row's `attempts`.
struct ClaimedJob {
  JobId id;
  Token token;
  std::string payload;
  bool has_payload = true;  ///< false when the row has no `payload` field at all
  std::optional<LaneId> lane;
};

struct ClaimOptions {
  Milliseconds lease{30000};  ///< > 0
  std::optional<Milliseconds> deadline{};
};

struct ClaimBatchOptions {
  std::uint32_t size = 1000;  ///< at most so many; >= 1. One call gives at most 1000: a short batch is normal
  Milliseconds lease{30000};  ///< > 0, the same end for all
  std::optional<Milliseconds> deadline{};
};

struct CompleteOptions {
  std::optional<std::string_view> result{};  ///< kept for the flow parent; absent: the child's own id
  std::optional<Milliseconds> deadline{};
};

enum class Retried : std::uint8_t { scheduled, dead };

struct RetryOptions {
  Milliseconds delay{1000};        ///< >= 0
  std::uint32_t max_attempts = 3;  ///< >= 1: attempts not counting crashes and hand-backs; 1 means no retry
  std::string_view error{};        ///< kept as `last_error`
  std::optional<Milliseconds> deadline{};
};

/// A job and the token it is held with.
struct Held {
  JobId id;
  Token token;
};

struct SweepOptions {
  std::uint32_t max_stalled = 3;  ///< the expiry with this number dead-letters the job; >= 1
  std::uint32_t limit = 100;      ///< >= 1
  std::optional<Milliseconds> deadline{};
};

struct Swept {
  std::vector<JobId> recovered;
  std::vector<JobId> dead;
  std::uint64_t unreadable = 0;  ///< members that are no ids, moved as well
};

/// Where a job is. `waiting_in_lane` is this library's: the wire has no word for it.
enum class JobState : std::uint8_t {
  pending,
  active,
  scheduled,
  dead,
  awaiting_children,
  waiting_in_lane,
  unknown,
  absent,
};
[[nodiscard]] std::string_view to_string(JobState state) noexcept;

/// What became of a move to another lane.
enum class Reassigned : std::uint8_t {
  moved,
  already_there,  ///< it waits in that lane already
  not_waiting,    ///< it is active, scheduled or dead: nothing changed
};

/// What became of a request that a job shall end.
enum class CancelVerdict : std::uint8_t {
  cancelled,          ///< it waited, and is dead now with the error `cancelled`; or an earlier request did that
  requested,          ///< it is running: its worker is told, and the row is marked for one that was away
  awaiting_children,  ///< a flow parent whose children are not done: nothing changed
  dead,               ///< of another cause: nothing changed
  unknown,            ///< its row is in no set: nothing changed
};
[[nodiscard]] std::string_view to_string(CancelVerdict verdict) noexcept;

struct DrainOptions {
  bool include_schedule = false;  ///< also what is not due yet
  std::optional<Milliseconds> deadline{};
};

struct ObliterateOptions {
  bool force = false;           ///< also jobs in flight; without it they refuse
  std::uint32_t budget = 1000;  ///< at most so many jobs a call; >= 1
  std::optional<Milliseconds> deadline{};
};

enum class Obliterated : std::uint8_t {
  done,
  more,  ///< the budget is used up: call again
};

/// A job that is admitted again and again, each time with a fresh id.
struct RepeatOptions {
  Milliseconds every{0};       ///< from one run to the next; >= 1 ms
  Milliseconds first_in{0};    ///< until the first run, by the server's clock; >= 0
  std::string_view payload{};  ///< of each occurrence
  std::optional<Milliseconds> deadline{};
};

enum class Registered : std::uint8_t {
  registered,
  exists,   ///< there is one of that name; nothing changed
  present,  ///< there is one, but an answer was lost on the way: this call or an earlier one made it
};

/// Whether there was a registration of that name.
enum class RepeatFound : std::uint8_t { found, absent };

/// A registration whose next run has come. What other runtimes or hands have stored may lack a period or a payload.
struct DueRepeat {
  std::string name;
  std::optional<Milliseconds> every;
  std::optional<std::string> payload;
  Instant run;
};

/// What one sweep of a pump has moved.
struct Pumped {
  std::int64_t promoted = 0;
  std::int64_t fired = 0;      ///< occurrences of repeats admitted
  std::int64_t delivered = 0;  ///< records of the queue's outbox that their parents' queues have taken
};

/// A job row as stored: every field, also those this library does not know.
struct JobRow {
  std::vector<std::pair<std::string, std::string>> fields;
  /// The value of a field, null when the row has none of that name.
  [[nodiscard]] const std::string* find(std::string_view name) const noexcept;
};

enum class Metric : std::uint8_t { completed, failed };

struct MetricValue {
  std::int64_t count = 0;
  std::int64_t data_points = 0;
};

/// Sizes of the four sets and the counters. What waits in lanes is in none of the sets: see `lane_depths`.
struct QueueCounts {
  std::int64_t pending = 0;
  std::int64_t active = 0;
  std::int64_t scheduled = 0;
  std::int64_t dead = 0;
  std::int64_t completed = 0;
  std::int64_t failed = 0;
};

/// One queue of a client. Cheap to copy; thread-safe; keeps the client's core alive, not open.
class Queue {
 public:
  [[nodiscard]] const QueueName& name() const noexcept;

  // Thread safety: any number of threads may call any verb of one handle at the same time.
  // Errors of all: invalid_argument (naming the argument and its value; nothing is sent), client_closed, forked,
  // overloaded, timeout, unreachable, outcome_unknown, and those of the server (loading, read_only, no_permission).

  // Admission. Errors: also wrong_kind, node_lease_lost, minter_exhausted, out_of_memory, broken_state.

  /// Admits one job. Scripts `enqueue`, `schedule`, `genqueue`, or `admit` for a scheduled lane job; keys: the row, and
  /// `pending`, `schedule`, or the lane with `ring` and `wake`.
  /// A job with any of `options.run` goes by `admit`, whatever its target.
  /// Idempotent while the row exists: a call repeated after a lost reply is the same job. A duplicate of a chosen `id`
  /// costs a second round trip: a row that is in no set answers `broken_state`, for it would stand in the way for ever.
  Reply<Admission> enqueue(std::string_view payload, EnqueueOptions options = {}) const;
  Reply<Admission> enqueue_at(std::string_view payload, Instant at, EnqueueOptions options = {}) const;
  Reply<Admission> enqueue_in(std::string_view payload, Milliseconds in, EnqueueOptions options = {}) const;
  /// Admits many in as few scripts as their size allows (extension `admit`), all in flight at once; one result each,
  /// in order. Not atomic as a whole: what a lost connection or a full server took has an error in its place. An empty
  /// span answers `empty_pipeline`; one bad argument refuses the whole call before any wire.
  Reply<std::vector<Result<Admission>>> enqueue_many(std::span<const NewJob> jobs,
                                                     EnqueueManyOptions options = {}) const;

  /// As `enqueue_many` for jobs that have each a target and row fields of their own: flat, in lanes, scheduled, mixed.
  Reply<std::vector<Result<Admission>>> enqueue_mixed(std::span<const MixedJob> jobs,
                                                      std::optional<Milliseconds> deadline = {}) const;

  // Results. A worker keeps what a job with `keep` (`RunOptions`) came to in `emq:{q}:result:<id>` for so long, and
  // publishes the ids of jobs that have ended on `emq:{q}:ended`.

  /// Waits until the job has ended: at once when it has already. All waits of a client for one queue share one
  /// subscription to `emq:{q}:ended` and one to `emq:{q}:events`, where peers tell; whatever they tell is looked up by
  /// extension `ended` (the row and `emq:{q}:result:<id>`), also once both are confirmed and after each loss of the link,
  /// so that no end is missed. While the server is away the wait goes on. `timeout` is a value, no error.
  /// Errors: those of any call, of the subscription or of the look: no_permission, client_closed, unreachable when there
  /// never was a subscription.
  Reply<Ended> wait(JobId id, WaitOptions options = {}) const;
  /// `enqueue`, then `wait`. A job without `keep` is given one of a minute, so that there is a result to tell; the time to
  /// wait begins with the call. Errors: also those of admission; nothing is waited for then.
  Reply<Ended> enqueue_and_wait(std::string_view payload, EnqueueOptions options = {}, WaitOptions wait = {}) const;
  /// What is kept of an ended job (GET of `emq:{q}:result:<id>`); empty when nothing is.
  Reply<std::optional<Ended>> result(JobId id) const;

  // Claims: one job, or nothing when the queue is empty or paused. Never repeated by the library: after
  // `outcome_unknown` a job may be leased to nobody until its lease ends.

  /// Script `claim`: the oldest job of the flat pending set.
  Reply<std::optional<ClaimedJob>> claim(ClaimOptions options = {}) const;
  /// Script `gclaim`: the next lane's oldest job.
  Reply<std::optional<ClaimedJob>> claim_lane(ClaimOptions options = {}) const;
  /// Script `bclaim`: the oldest jobs of the flat pending set; empty when there is none. Each has its own token.
  Reply<std::vector<ClaimedJob>> claim_batch(ClaimBatchOptions options = {}) const;
  /// Script `gwclaim`: as many of the next lane's oldest jobs as its weight says and its ceiling leaves room for.
  Reply<std::vector<ClaimedJob>> claim_lane_weighted(ClaimOptions options = {}) const;
  /// Script `gbclaim`: the next lane's oldest jobs, all it has up to `size` and its ceiling. All are of one lane.
  Reply<std::vector<ClaimedJob>> claim_lane_batch(ClaimBatchOptions options = {}) const;

  // Settlement, fenced by the token: `stale_token` when somebody else holds the job, `job_gone` when its row is gone.
  // After a lost answer a repeated settle that finds the job gone counts as done.

  /// Script `complete`: the row is deleted, a flow parent is told.
  Reply<void> complete(JobId id, Token token, CompleteOptions options = {}) const;
  /// Script `retry`: schedules the job again, or dead-letters it at `max_attempts`.
  Reply<Retried> retry(JobId id, Token token, RetryOptions options = {}) const;
  /// Script `delay`: back to the schedule, no attempt consumed beyond the claim.
  Reply<void> delay(JobId id, Token token, Milliseconds in, std::optional<Milliseconds> deadline = {}) const;
  Reply<void> delay_until(JobId id, Token token, Instant at, std::optional<Milliseconds> deadline = {}) const;
  /// Extension `hand_back`: back to the pending set or the lane at once, counted in `handbacks`, not held against the
  /// job's maximum.
  Reply<void> hand_back(JobId id, Token token, std::optional<Milliseconds> deadline = {}) const;
  /// Script `extend_lock`: the lease ends `lease` from now. Refused for a job that is not active.
  Reply<void> extend(JobId id, Token token, Milliseconds lease, std::optional<Milliseconds> deadline = {}) const;
  /// Script `extend_locks`: one lease for many; gives the ids that are no longer held.
  Reply<std::vector<JobId>> extend_many(std::span<const Held> held, Milliseconds lease,
                                        std::optional<Milliseconds> deadline = {}) const;

  // Release, by time. Limits >= 1.

  /// Script `promote`: due jobs become pending; gives how many.
  Reply<std::int64_t> promote(std::uint32_t limit = 100) const;
  /// Script `reap`: expired leases become pending, uncounted; at most 100 a call.
  Reply<std::int64_t> reap() const;
  /// Script `greap_group`: the same for one lane, however many leases of others have expired; at most `limit`.
  Reply<std::int64_t> reap_lane(LaneId lane, std::uint32_t limit = 100) const;
  /// Script `sweep_stalled`: expired leases become pending, counted; dead at `max_stalled`.
  Reply<Swept> sweep_stalled(SweepOptions options = {}) const;

  // Operation.

  /// Scripts `queue_pause`, `queue_resume` (key `meta`): a gate before every claim. Running jobs, admission and release
  /// go on.
  Reply<void> pause() const;
  Reply<void> resume() const;
  Reply<bool> paused() const;
  /// Scripts `gpause`, `gresume`: takes a lane out of service, and back. A lane need not exist.
  Reply<void> pause_lane(LaneId lane) const;
  Reply<void> resume_lane(LaneId lane) const;
  /// Script `glimit`: at most `ceiling` (>= 1) jobs of the lane in flight.
  Reply<void> limit_lane(LaneId lane, std::uint32_t ceiling) const;
  /// Script `gweight`: one turn of `claim_lane_weighted` takes `weight` (>= 1) jobs of the lane.
  Reply<void> weigh_lane(LaneId lane, std::uint32_t weight) const;
  /// Script `gdrain`, as often as it takes: deletes the jobs that wait in the lane; gives how many. Jobs in flight and
  /// the lane's settings stay.
  Reply<std::int64_t> drain_lane(LaneId lane) const;
  /// Script `drain`, as often as it takes: deletes the flat jobs that wait; gives how many. Jobs in flight, dead ones
  /// and lanes stay. The flow parent of a drained child is told as if the child had died.
  Reply<std::int64_t> drain(DrainOptions options = {}) const;
  /// Script `obliterate`: deletes a paused queue, jobs, lanes, repeats and settings, `budget` jobs a call. Errors:
  /// not_paused, active_jobs_present. Dedup keys, streams, flow subkeys, and records for parents in other queues stay.
  Reply<Obliterated> obliterate(ObliterateOptions options = {}) const;
  /// Script `greassign`: a waiting job moves to another lane, where it keeps its place by age. Errors: job_gone, also
  /// for a job that is in no lane.
  Reply<Reassigned> reassign(JobId id, LaneId lane) const;
  /// Script `remove_job`: deletes a job in any state. Errors: job_gone, job_locked. The dedup key is deleted only when
  /// it names this job.
  Reply<void> remove(JobId id, std::optional<DedupId> dedup = {}) const;
  /// Extension `cancel`: a job that waits (pending, in its lane, scheduled) is dead at once, its flow parent is told, and
  /// the event `cancelled` is published; a running one gets the row field `cancel`, and its id goes out on the channel
  /// `emq:{q}:cancel`. A worker that hears it settles the job as dead; a peer without this extension runs it to its
  /// end. Errors: job_gone.
  Reply<CancelVerdict> cancel(JobId id) const;
  /// A dead job becomes pending again. Errors: job_gone, not_dead.
  Reply<void> reprocess(JobId id) const;
  /// Script `update_data`: replaces the payload. A worker that runs the job keeps what it was given. Errors: job_gone.
  Reply<void> update_data(JobId id, std::string_view payload) const;
  /// Script `update_progress`: stores and announces it on `emq:{q}:events`. Errors: job_gone.
  Reply<void> update_progress(JobId id, std::string_view progress) const;
  /// Appends a line; `keep` > 0 keeps the last so many. Gives the number of lines kept.
  Reply<std::int64_t> add_log(JobId id, std::string_view line, std::uint32_t keep = 0) const;
  /// PUBLISH of `{"event":...,"job":...}` on `emq:{q}:events`; gives the number of receivers. Names and values of
  /// `extra` may hold any bytes (those that are no UTF-8 become U+FFFD); the names `event` and `job` are taken.
  Reply<std::int64_t> publish(std::string_view event, JobId id,
                              std::span<const std::pair<std::string_view, std::string_view>> extra = {}) const;

  // Repeats: registrations by name, 1 to 255 bytes of any kind. Keys `repeat` and `repeat:<name>`. Each occurrence is a
  // flat job; runs that were missed are one run.

  /// Script `repeat_register`. An existing registration is left as it is. Errors: also out_of_memory.
  Reply<Registered> register_repeat(std::string_view name, RepeatOptions options) const;
  /// Script `repeat_cancel`. Jobs that were admitted stay.
  Reply<RepeatFound> cancel_repeat(std::string_view name) const;
  /// Extension `repeat_due`: at most `limit` (>= 1, above 1000 it counts as 1000), the oldest run first.
  Reply<std::vector<DueRepeat>> due_repeats(std::uint32_t limit = 100) const;
  /// Script `repeat_advance`: the next run is `every` (>= 1 ms) from now.
  Reply<RepeatFound> advance_repeat(std::string_view name, Milliseconds every) const;
  Reply<std::int64_t> repeat_count() const;
  /// Extensions `repeat_due` and `repeat_fire`: admits what is due, at most `limit` as above, and sets the next runs;
  /// gives how many. Any number of pumps may do it side by side. A registration without a usable period or payload is
  /// deleted. Errors: also node_lease_lost, out_of_memory.
  Reply<std::int64_t> fire_repeats(std::uint32_t limit = 100) const;
  /// What a pump does at each tick: `promote`, `fire_repeats` and `Flow::deliver`, at most `batch` (>= 1) each, all at
  /// once. Each is done whether or not the others fail; the first error of that order is the answer. Records that could
  /// not be brought stay for the next tick, and are no error here. Keys: those of the three.
  Reply<Pumped> pump_sweep(std::uint32_t batch = 100) const;

  // Reads.

  Reply<QueueCounts> counts() const;
  /// The protocol's `get_counts`: names out of pending, active, schedule, dead, completed, failed; others answer
  /// `unknown_state` naming the first, nothing sent. Values in the order of the names.
  Reply<std::vector<std::int64_t>> counts_of(std::span<const std::string_view> names) const;
  Reply<std::int64_t> pending_size() const;
  /// Ids of the flat pending set, newest first; `count` >= 1.
  Reply<std::vector<JobId>> browse(std::uint32_t count) const;
  /// Empty when there is no such row.
  Reply<std::optional<JobRow>> job(JobId id) const;
  /// Where the job is, told by the sets (script `state_lookup`), not by its row.
  Reply<JobState> state(JobId id) const;
  /// Lines oldest first. Errors: job_gone.
  Reply<std::vector<std::string>> logs(JobId id) const;
  Reply<MetricValue> metric(Metric metric) const;
  /// The job id parked for a dedup id; empty when none.
  Reply<std::optional<std::string>> dedup_holder(DedupId id) const;
  Reply<bool> stalled(JobId id) const;
  /// Errors: concurrency_ceiling when `meta.concurrency` is reached.
  Reply<void> check_concurrency() const;
  Reply<Milliseconds> rate_limit_ttl(std::uint64_t max_jobs = 0) const;
  Reply<std::int64_t> global_rate_limit() const;
  Reply<std::int64_t> lane_depth(LaneId lane) const;
  Reply<std::vector<std::int64_t>> lane_depths(std::span<const LaneId> lanes) const;

  struct State;
  explicit Queue(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] const State& internal() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

// g++ 12 corrupts temporaries of other aggregates in `co_await` expressions: options stay trivially copyable.
static_assert(std::is_trivially_copyable_v<EnqueueOptions> && std::is_trivially_copyable_v<EnqueueManyOptions> &&
              std::is_trivially_copyable_v<NewJob> && std::is_trivially_copyable_v<RunOptions> &&
              std::is_trivially_copyable_v<MixedJob> && std::is_trivially_copyable_v<WaitOptions> &&
              std::is_trivially_copyable_v<ClaimOptions> && std::is_trivially_copyable_v<CompleteOptions> &&
              std::is_trivially_copyable_v<RetryOptions> && std::is_trivially_copyable_v<SweepOptions> &&
              std::is_trivially_copyable_v<Held> && std::is_trivially_copyable_v<ClaimBatchOptions> &&
              std::is_trivially_copyable_v<DrainOptions> && std::is_trivially_copyable_v<ObliterateOptions> &&
              std::is_trivially_copyable_v<RepeatOptions> && std::is_trivially_copyable_v<std::optional<JobId>> &&
              std::is_trivially_copyable_v<std::optional<DedupId>>);

}  // namespace v1
}  // namespace echomq
