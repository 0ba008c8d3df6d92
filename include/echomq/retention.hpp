// Retention: how much of a stream is kept, whom it must not be taken from, and who sees to it.
//
// A `RetentionPolicy` is applied by `retain`, once, or by `StreamSweeper`s, again and again. Policies live in the code,
// or on the server beside the stream (`put_retention`), so that whatever host sweeps applies the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// What is kept of a stream. Several limits together: what any of them does not keep may go. None at all keeps
/// everything.
struct RetentionLimits {
  /// The newest so many records.
  std::optional<std::uint64_t> count{};
  /// Records whose entry ids are not older than this, by the server's clock; >= 0.
  std::optional<Milliseconds> age{};
  /// The newest records whose names and values are so many bytes together, reckoned from the mean of some thirty
  /// records across the stream times its length. What the server needs around them (about ten to thirty bytes a record)
  /// and consumer groups are not counted.
  std::optional<std::uint64_t> bytes{};

  friend bool operator==(const RetentionLimits&, const RetentionLimits&) = default;
};

/// Whose records stay until they are acknowledged.
enum class GroupGuard : std::uint8_t {
  none,   ///< groups are not looked at
  all,    ///< of every group that the stream has
  named,  ///< of the groups named; one that does not exist yet has seen nothing, so all is kept for it
};

/// One stream's retention. In coroutines give it a name before it is used in a `co_await` expression (g++ 12).
struct RetentionPolicy {
  RetentionLimits keep{};
  /// Approximate removes whole nodes of the server's tree and may leave up to one node (100 entries by default) too
  /// much.
  Trim how = Trim::approximate;
  GroupGuard guard = GroupGuard::none;
  /// For `GroupGuard::named`; at most 900, of 1 to 255 bytes.
  std::vector<std::string> groups{};
  /// Beyond these records go whether groups have seen them or not: what a dead consumer can cost. None: the guard is
  /// absolute.
  RetentionLimits hard{};
  /// Nothing goes that is behind the archive's watermark, whatever the limits say; without a watermark nothing goes at
  /// all.
  bool archived_only = false;

  /// As it stands on the server: a JSON object of the members `keep` and `hard` (each of `count`, `age_ms`, `bytes`),
  /// `exact`, `groups` (`"all"`, or a list of names), `archive`. Errors: invalid_argument for anything else, a member
  /// that is not known here too: it may be a guard.
  [[nodiscard]] static Result<RetentionPolicy> parse(std::string_view json);
  [[nodiscard]] std::string text() const;

  friend bool operator==(const RetentionPolicy&, const RetentionPolicy&) = default;
};

/// Why records beyond the limits stay.
enum class HeldBy : std::uint8_t { nothing, groups, archive };

struct Retained {
  std::uint64_t removed = 0;
  HeldBy held_by = HeldBy::nothing;
  /// A bound of calls was reached: there is more to remove.
  bool more = false;
};

/// Removes from the stream what the policy does not keep: script `stream_retain`, which looks and removes in one step,
/// up to 10,000 entries a call and limit, so that the server is not held up; called again while there is more, at most
/// `most_calls` times (10 million entries by default). Errors: those of `Stream`; invalid_argument for a policy that
/// cannot be.
[[nodiscard]] Reply<Retained> retain(const Stream& stream, const RetentionPolicy& policy,
                                     std::uint32_t most_calls = 1000);

// The policy of a stream for a whole fleet: hash `emq:{q}:retention`, field: the stream's name.

[[nodiscard]] Reply<void> put_retention(const Stream& stream, const RetentionPolicy& policy);
/// Empty when there is none. Errors: broken_state for one that cannot be read.
[[nodiscard]] Reply<std::optional<RetentionPolicy>> get_retention(const Stream& stream);
/// Whether there was one.
[[nodiscard]] Reply<bool> clear_retention(const Stream& stream);

/// A policy in the code.
struct StreamPolicy {
  Stream stream;
  RetentionPolicy policy;
};

struct StreamSweeperOptions {
  /// Queues whose policies on the server are applied too. Such a policy wins over one in the code for the same stream.
  std::vector<QueueName> queues{};
  /// How often each stream is swept, by whichever host; >= 10 ms. Sweepers of one queue should agree on it.
  Milliseconds period{1000};
  Log log{};  ///< errors, each kind once in a row
};

/// What a sweeper has done so far.
struct StreamSweeperStats {
  std::uint64_t rounds = 0;
  std::uint64_t swept = 0;    ///< streams whose turn came to this sweeper, each time
  std::uint64_t removed = 0;  ///< records
  std::uint64_t held = 0;     ///< sweeps that left records beyond the limits, for a guard's sake
  std::uint64_t errors = 0;   ///< failed commands, and policies that cannot be read: those streams are left alone
};

/// Sweeps streams by their policies on a thread of its own. Run one in every process, or several: each stream is swept
/// by one of them a period (script `retention_take`), and when that one dies by another in the next. All streams of a
/// round travel together. Move-only; the destructor stops it.
class StreamSweeper {
 public:
  /// Errors: invalid_argument, naming the option or the policy.
  [[nodiscard]] static Result<StreamSweeper> start(const Client& client, std::vector<StreamPolicy> policies,
                                                   StreamSweeperOptions options = {});
  StreamSweeper(StreamSweeper&&) noexcept;
  StreamSweeper& operator=(StreamSweeper&&) noexcept;
  ~StreamSweeper();

  /// Waits for the round that is under way.
  void stop();
  [[nodiscard]] StreamSweeperStats stats() const;

 private:
  class Loop;
  explicit StreamSweeper(std::unique_ptr<Loop> loop) noexcept;
  std::unique_ptr<Loop> loop_;
};

}  // namespace v1
}  // namespace echomq
