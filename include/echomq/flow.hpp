// `Flow`: trees of jobs. A parent waits until its children have ended, and then runs with their results at hand.
//
// A tree may spread over several queues. Admission across queues takes a step for each level: one that is broken off is
// completed by the same call again, with the same ids. What crosses queues on the way up (a child's result, a child's
// death) goes through the outbox of the child's queue, which a worker of that queue, or `Flow::deliver`, empties: at
// least once, counted once.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {

/// What the death of a child means for its parent. (Its removal, or the last lease it may lose, is a death.)
enum class ChildDeath : std::uint8_t {
  fails_parent,  ///< `fp`: the parent dies too, at once or with the next delivery
  is_ignored,    ///< `id`: the child counts as done; its error is among the parent's `ignored_failures`
};

struct FlowJob;

/// A view of the children of one node: of any contiguous range of `FlowJob`. It must live until the verb returns.
class FlowJobs {
 public:
  constexpr FlowJobs() noexcept = default;
  template <typename Range>
    requires(!std::same_as<Range, FlowJobs>) && std::ranges::contiguous_range<Range> &&
                std::same_as<std::ranges::range_value_t<Range>, FlowJob>
  constexpr FlowJobs(const Range& jobs) noexcept  // NOLINT(google-explicit-constructor): a view, as `std::span`
      : first_(std::ranges::data(jobs)), size_(std::ranges::size(jobs)) {}

  [[nodiscard]] constexpr const FlowJob* data() const noexcept { return first_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr const FlowJob* begin() const noexcept { return first_; }
  [[nodiscard]] constexpr const FlowJob* end() const noexcept;

 private:
  const FlowJob* first_ = nullptr;
  std::size_t size_ = 0;
};

/// One node of a tree: the root, or a child of another node. What it points to must live until the verb returns.
struct FlowJob {
  std::string_view payload{};
  /// Minted by the client when absent. Give ids yourself (`Client::mint_job`) when you want to be able to repeat a call
  /// whose outcome you did not learn: with the same ids it completes what the first one began.
  std::optional<JobId> id{};
  std::optional<QueueName> queue{};                ///< the queue of the node's parent when absent
  ChildDeath on_death = ChildDeath::fails_parent;  ///< of this node, for its parent; not looked at in a root
  FlowJobs children{};                             ///< none: a leaf, ready to run at once
  RunOptions run{};
};

constexpr const FlowJob* FlowJobs::end() const noexcept { return first_ + size_; }

struct FlowOptions {
  std::optional<Milliseconds> deadline{};  ///< of the whole call, >= 1 ms; the client's, for each step, when absent
};

/// What became of a flow.
struct FlowAdded {
  JobId parent;
  /// Of the parent. `duplicate` and `present`: it was there already, and whatever of the flow was missing, has not ended
  /// and can still be told from what has is there now.
  Admitted verdict = Admitted::enqueued;
  /// The ids of all nodes, in the order of a walk that goes down first; the first is the parent's.
  std::vector<JobId> ids;
};

/// Results or errors by child, in no order.
using ChildTexts = std::vector<std::pair<JobId, std::string>>;

/// What one pass over an outbox came to.
struct Delivered {
  std::int64_t delivered = 0;  ///< records that their parent's queue has taken; they are out of the outbox
  std::int64_t failed = 0;     ///< records that could not be brought now; they stay
  /// Records that are none by the protocol: wrong fields, a name or an id that cannot be. They stay where they are, in
  /// nobody's way, until an operator looks at them.
  std::int64_t malformed = 0;
  std::int64_t read = 0;       ///< records looked at: as many as asked for means that there may be more
  std::optional<Error> error;  ///< of the first that failed
};

/// The flows whose parents are in one queue, and that queue's outbox. Cheap to copy; thread-safe; keeps the client's
/// core alive, not open: after `Client::close()` it answers `client_closed`.
class Flow {
 public:
  /// The root of a flow is admitted to that queue.
  explicit Flow(Queue queue) noexcept : queue_(std::move(queue)) {}
  [[nodiscard]] const QueueName& name() const noexcept { return queue_.name(); }

  /// The levels of a tree, the root's counted.
  static constexpr std::size_t kMaxLevels = 8;

  // Errors of all: those of `Queue`.

  /// Admits a tree. All of it is checked before anything is sent: depth (`flow_too_deep`), ids that occur twice
  /// (`flow_cycle`, naming the id), the root's queue, sizes of payloads (`invalid_argument`).
  ///
  /// A parent and up to 1,000 leaves in one queue: one script, `enqueue_flow`, all or nothing. Any other tree: level by
  /// level, a parent always before its children, scripts `hold_parent` for a node with children and
  /// `enqueue_flow_child` for a leaf. A root without children is an ordinary job (script `enqueue`): it has nothing to
  /// wait for. Keys: the rows, `:dependencies`, `pending` and `wake` of the queues.
  ///
  /// Idempotent while the rows exist, and safe to repeat with the same ids: what is there stays as it is, what is
  /// missing is admitted; a child that has ended and is recorded with its parent is left out. (One whose record is still
  /// in an outbox at that moment runs once more; it is counted once.)
  /// Errors: also wrong_kind (an id that is not JOB-namespaced, refused by the script that meets it: in a flow of one
  /// script nothing is written, else what was admitted before stays and its parent waits for ever: remove it), id_taken
  /// (naming an id that belongs to another job), out_of_memory, and as in `Queue::enqueue` when ids are minted.
  Reply<FlowAdded> add(const FlowJob& root, FlowOptions options = {}) const;
  /// Many flows, each as by `add`, all under way at once; one result each, in order. All are checked before anything is
  /// sent, and one bad tree refuses the whole call; an id may not occur in two of them. An empty span answers
  /// `empty_pipeline`.
  Reply<std::vector<Result<FlowAdded>>> add_bulk(std::span<const FlowJob> roots, FlowOptions options = {}) const;

  // Reads of a parent in this queue, also of one that is gone: its records outlive it. A child that gave no result has
  // its own id as its value.

  /// HGETALL of `:processed`: what the children that are done have given.
  Reply<ChildTexts> children_values(JobId parent) const;
  /// HGETALL of `:unsuccessful`: errors of children whose death is ignored.
  Reply<ChildTexts> ignored_failures(JobId parent) const;
  /// HGETALL of `:failed`: errors of the children that have failed the parent.
  Reply<ChildTexts> failures(JobId parent) const;
  /// GET of `:dependencies`: children outstanding; 0 when there is no counter.
  Reply<std::int64_t> dependencies(JobId parent) const;

  /// One pass over this queue's `flow:outbox`, up to `batch` (>= 1) records from its head: each is brought to its parent's
  /// queue (scripts `flow_deliver`, `flow_fail_deliver`), all at once, and then taken out by value, so that two who
  /// deliver at a time lose nothing. Workers of the queue do this by time.
  Reply<Delivered> deliver(std::uint32_t batch = 100, std::optional<Milliseconds> deadline = {}) const;

 private:
  Queue queue_;
};

static_assert(std::is_trivially_copyable_v<FlowJob> && std::is_trivially_copyable_v<FlowOptions>);

}  // namespace v1
}  // namespace echomq
