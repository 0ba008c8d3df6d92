// `GroupConsumer`: one consumer of a stream's group, in a loop on a thread of its own.
//
// It makes the group, handles first what it held when it last ended, in one pass, then takes over what other consumers
// left idle and reads what is new. Delivery is at least once: handlers must bear a second run, the record's id tells.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// A record in the hands of a consumer.
struct StreamMessage {
  const Record& record;
  /// How often the entry was handed out: 1 for a new one.
  std::uint64_t attempts;
  std::string_view group;
};

enum class Handled : std::uint8_t {
  done,    ///< acknowledged
  failed,  ///< stays pending: it comes back, to whatever consumer, after its `retry_delay`
};

/// Called on the consumer's thread, one record at a time; with `concurrency` or `order_key` on as many threads. An exception counts
/// as `failed`.
using StreamHandler = std::function<Handled(const StreamMessage&)>;

struct GroupConsumerOptions {
  GroupStart start = GroupStart::latest;  ///< of a group that does not exist yet
  /// How long an entry must lie untouched before another consumer may take it over; 1 to 999,999,999,999. What this consumer holds is
  /// refreshed every third of it, also while a handler runs, which may take as long as it likes; only a consumer that cannot reach the
  /// server for so long, or whose process stands still, is overtaken.
  Milliseconds min_idle{30000};
  Milliseconds beat{1000};  ///< how often an idle consumer looks for idle entries, and at most for new ones; > 0
  /// Entries a read; >= 1. A look for idle entries goes through ten times as many pending ones; where there are more and none is idle,
  /// through 10,000 a look, and a second or a `beat` apart.
  std::uint32_t count = 100;
  /// An entry that fails when it is handed out so often, or was handed out so often to consumers that died over it, goes to
  /// `dead_stream` and is acknowledged. 0: it comes back for ever. An entry that waited behind others in the hands of a consumer that
  /// died has been handed out once, unseen: use 2 or more.
  std::uint32_t max_attempts = 0;
  /// A stream of the same queue; absent: the stream's name with `:dead` behind it. Its records have the fields `origin`
  /// (entry id), `origin_id` (receipt, when there was one), `group`, `attempts`, and then the record's own. One that dies in the
  /// moment in which its consumer does may stand twice.
  std::optional<StreamName> dead_stream{};
  /// How long a record that failed waits until it is handed out again: this long after its first failure, doubled each time up to
  /// `retry_delay_max`, or for ever the same where that is shorter. 0: `min_idle`. >= 0. Other records do not wait for it. Whatever
  /// consumer looks first gets it then; a look comes once a `beat`. When its consumer dies meanwhile it comes back after `min_idle`.
  Milliseconds retry_delay{0};
  Milliseconds retry_delay_max{300'000};
  /// How many records are handled at once; 1 to 1000.
  std::uint32_t concurrency = 1;
  /// The key of a record: those of one key are handled one at a time and in the order of the stream, also when one of them fails:
  /// then those behind it wait until it was done or has died, and it is handed out again by this consumer. It holds for what this
  /// consumer is given: where a key must have one order in all of the group, let one consumer run, or have a stream for each part
  /// of the keys. Records that it takes over from a dead consumer come behind what it has in hand. Absent: with `concurrency` there is no order. An
  /// exception makes the key empty.
  std::function<std::string(const Record&)> order_key = {};
  /// With `concurrency` or `order_key`: no more are read while so many are in hand, those that wait behind a failed one
  /// included; >= 1.
  std::uint32_t max_held = 1000;
  Log log{};  ///< errors of the loop, each kind once in a row
};

struct GroupConsumerStats {
  std::uint64_t handled = 0;
  std::uint64_t failed = 0;
  std::uint64_t taken_over = 0;   ///< entries of other consumers, or its own failed ones, after `min_idle`
  std::uint64_t deleted = 0;      ///< pending entries that were removed from the stream, acknowledged unseen
  std::uint64_t groups_made = 0;  ///< at the start, and again after NOGROUP
  std::uint64_t errors = 0;       ///< commands that failed
  std::uint64_t buried = 0;       ///< entries that went to the dead stream
  std::uint64_t lost = 0;  ///< entries in hand that other consumers have taken over, those that ran by then included
  std::uint64_t held = 0;  ///< now: entries in hand that run or wait for their turn (with `concurrency` or `order_key`)
  std::uint64_t delayed = 0;  ///< now: entries that failed here and are kept from others until their time
};

/// Move-only; the destructor stops it.
class GroupConsumer {
 public:
  /// Makes the group when it is missing and starts the loop. `consumer` is this consumer's name: one that starts again
  /// under its old name finds what it held. Errors: invalid_argument (naming the argument), and those of the first
  /// `XGROUP CREATE`, such as server_error for a key that is no stream.
  [[nodiscard]] static Result<GroupConsumer> start(const StreamGroup& group, std::string_view consumer,
                                                   StreamHandler handler, GroupConsumerOptions options = {});
  GroupConsumer(GroupConsumer&&) noexcept;
  GroupConsumer& operator=(GroupConsumer&&) noexcept;
  ~GroupConsumer();

  /// Lets the record in hand end, acknowledges what was done, and returns. What was read and not handled stays pending
  /// for this name. Not from the handler: there it only asks, and returns at once.
  void stop();
  [[nodiscard]] GroupConsumerStats stats() const;

 private:
  class Loop;
  explicit GroupConsumer(std::shared_ptr<Loop> loop) noexcept;
  std::shared_ptr<Loop> loop_;
};

}  // namespace v1
}  // namespace echomq
