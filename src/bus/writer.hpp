// Appends to one stream: the order of records, the minting of their ids, and what follows a refusal.
//
// Records wait in one queue; their ids are minted when a batch of them is handed to the connection, so ids and bytes have
// the same order whatever threads append.
//
// While nobody else writes, a batch is a run: plain XADDs in one write. The server does not stop at one that it refuses, so
// everything in flight has ids of one millisecond, one node and consecutive sequence numbers: no id that somebody else minted
// stands between two of them, and what is refused is always the rest. A run of another millisecond waits until nothing is in
// flight; so that this seldom happens, ids are minted ahead, and a run goes on for `kRunAge` though the clock has moved on.
//
// After a refusal, for a while, batches travel as script calls (`stream_append`), which stop at the first record that
// the stream refuses and name the stream's top. Two are in flight at most; the second says which record must stand before
// it, so that it cannot pass a batch that was refused. What was not appended goes back to the front of the queue and is minted
// again, above the top. What may stand already, after a lost answer, is looked up by the same script under its old id; where a later
// record of these stands, an earlier one that does not is refused: it would stand behind it.
//
// Records with a caller's key go by the script `stream_publish`, with nothing else in flight: which of them stand is known with its
// answer only.
//
// Hosts that take turns push each other's ids ahead of their clocks, by a millisecond a turn; so a refused writer waits a
// fraction of what that has added to the distance of the clocks before it goes on, with a bigger batch.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "bus/waiting_record.hpp"
#include "client/core.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// How often a record may be minted again. Each time it gets twice the berth, so the last has two seconds: a host that is
/// slower than its peers gets its turn, and `max_skew` still bounds how far ahead of its clock an id may be.
inline constexpr std::uint8_t kMostMints = 12;

/// Thread-safe.
class Writer : public std::enable_shared_from_this<Writer> {
 public:
  /// The writer of that stream over that core; one as long as anybody holds it.
  [[nodiscard]] static std::shared_ptr<Writer> of(const std::shared_ptr<client::Core>& core, const std::string& key,
                                                  std::uint16_t slot);
  ~Writer();

  /// Takes over the references of the records. Waits for room when the client's options say so; else, and on a library
  /// thread, records without room are answered `overloaded`.
  void append(std::span<WaitingRecord* const> records);

 private:
  class Batch;
  struct Settled {
    WaitingRecord* record;
    Result<EventId> result;
  };
  /// A record that was sent under that id.
  struct Sent {
    std::uint64_t number;
    EventId id;
  };
  using Lock = std::unique_lock<std::mutex>;
  enum class Pumped : std::uint8_t { by_appender, by_answer };

  Writer(std::shared_ptr<client::Core> core, std::string key, std::uint16_t slot);

  void pump(Pumped by);
  [[nodiscard]] Batch* next_batch(std::vector<Settled>& settled);
  [[nodiscard]] bool dropped(WaitingRecord& record, detail::Clock::time_point now, std::vector<Settled>& settled);
  [[nodiscard]] bool mint(WaitingRecord& record, std::vector<Settled>& settled);
  [[nodiscard]] std::optional<Result<std::uint64_t>> take_id(bool idle, detail::Clock::time_point now);
  [[nodiscard]] Result<void> mint_ahead();
  void run_answered(Batch& batch);
  void sort_out(Batch& batch, std::vector<Settled>& settled);
  void answered(Batch& batch, const resp::View& reply);
  void failed(Batch& batch, const Error& error);
  [[nodiscard]] bool take_ids(Batch& batch, const resp::View& reply);
  void stopped(Batch& batch, const resp::View& reply, std::vector<Settled>& settled);
  void refused(Batch& batch, std::size_t appended, const resp::View& reply, std::vector<Settled>& settled);
  [[nodiscard]] static Error told_of(const WaitingRecord& record, const Batch& batch, const Error& error);
  void take_back(Batch& batch, std::size_t from);
  [[nodiscard]] bool passed(Batch& batch, std::size_t appended, const resp::View& reply, std::vector<Settled>& settled);
  void note_given_up(const WaitingRecord& record);
  void note_later(Batch& batch);
  void go_on();
  void settle(std::vector<Settled>& settled);
  void settle_appended(Batch& batch);
  void release_room(std::size_t records, std::size_t bytes);
  [[nodiscard]] bool over_bound() const;
  [[nodiscard]] bool may_send() const;

  const std::shared_ptr<client::Core> core_;
  const std::string key_;
  const std::uint16_t slot_;

  std::mutex mutex_;
  std::condition_variable room_;
  // All of these are guarded by mutex_.
  std::deque<WaitingRecord*> waiting_;
  std::deque<WaitingRecord*> again_;  ///< taken back; they go before `waiting_` once nothing is in flight
  std::uint64_t appended_ = 0;        ///< records that were ever taken over
  std::uint64_t newest_sent_ = 0;     ///< the highest number that was ever sent
  std::vector<Sent> given_up_;        ///< answered `outcome_unknown`: they may stand before records that wait
  std::size_t held_ = 0;              ///< records not settled
  std::size_t held_bytes_ = 0;
  std::size_t in_flight_ = 0;
  bool running_ = false;      ///< what is in flight are runs
  bool keyed_ = false;        ///< what is in flight are records with callers' keys: nothing goes beside it
  std::vector<Batch*> runs_;  ///< in flight
  std::uint64_t losses_ = 0;  ///< runs whose answer was lost
  detail::Clock::time_point no_runs_until_{};
  // Minted ahead: consecutive.
  std::uint64_t ids_first_ = 0;
  std::size_t ids_ = 0;
  std::size_t ids_used_ = 0;
  std::size_t ids_wanted_ = 1;
  detail::Clock::time_point ids_minted_{};
  bool ids_apart_ = false;  ///< they do not follow what is in flight
  EventId last_sent_;       ///< the last record of the newest batch in flight
  bool halted_ = false;     ///< something in flight went wrong: nothing more is sent until all of it is answered
  bool paused_ = false;
  Milliseconds pause_{0};         ///< to be kept before the next batch
  std::int64_t usual_ahead_ = 0;  ///< by how many ms the top was ahead of this clock at least
  detail::Clock::time_point last_refusal_{};
  bool pumping_ = false;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
