// What all tails of a client share: one XREAD that waits on the server for all their streams (in a cluster, one a slot).
//
// Readers of one stream share its cursor. One that is behind it catches up by XRANGE pages of its own and joins when it has
// come there; nothing is kept for it meanwhile. Once a second the streams of which records came are looked at between two
// XREADs, whether some were removed before they were read. The next XREAD is sent when the records of the last one were handed over, so
// nothing piles up. A reader of a stream that the running XREAD does not name wakes it by CLIENT UNBLOCK.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "bus/gap_watch.hpp"
#include "client/core.hpp"
#include "echomq/tail.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

class TailMux;

/// Some records of one stream, parsed once for all its readers.
struct TailBatch {
  std::vector<std::pair<EntryNumber, Record>> records;
};

/// One followed stream of one tail.
struct TailReader {
  TailReader(const Stream& of, std::weak_ptr<Tail::State> owner) : stream(of), tail(std::move(owner)) {}

  const Stream stream;
  const std::weak_ptr<Tail::State> tail;
  std::shared_ptr<TailMux> mux;
  std::size_t place = 0;  ///< in its tail
  EntryNumber began;      ///< behind which
  EntryNumber behind;     ///< moved by the executor, one delivery at a time
  GapWatch watch{{}};     ///< while it catches up
  bool told = false;      ///< that it cannot be read, while it catches up; there is one page under way at a time
  // Guarded by the mux.
  bool joined = false;
  bool left = false;
};

/// Thread-safe.
class TailMux : public std::enable_shared_from_this<TailMux> {
 public:
  /// That of the core, or in a cluster of the stream's slot; one as long as anybody holds it.
  [[nodiscard]] static std::shared_ptr<TailMux> of(const std::shared_ptr<client::Core>& core, std::uint16_t slot);
  ~TailMux();

  /// From its `behind` on.
  void join(const std::shared_ptr<TailReader>& reader);
  void leave(TailReader& reader);

 private:
  struct Followed {
    Followed(EntryNumber from, GapWatch with) : cursor(from), watch(std::move(with)) {}
    EntryNumber cursor;
    GapWatch watch;
    detail::Clock::time_point looked{};  ///< for gaps
    EntryNumber reached;  ///< the stream's top has been there: what is up to here stands, or will never come
    std::vector<std::shared_ptr<TailReader>> readers;
    bool asked = false;   ///< in the running XREAD, behind this cursor
    bool broken = false;  ///< left out until it can be read again
  };
  struct Part {
    std::string key;
    TailBatch batch;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Parts = std::vector<Part>;

  TailMux(std::shared_ptr<client::Core> core, std::uint32_t slot);

  [[nodiscard]] static Result<Parts> read_parts(const resp::View& reply);
  /// Sends the next XREAD, now or when it is time.
  void go_on(Lock& lock);
  void ask(Lock& lock);
  void ask_each(Lock& lock, const std::vector<const std::string*>& keys, const std::vector<std::string>& cursors);
  void arrived(Result<Parts> parts);
  void deliver(const Parts& parts);
  /// Looks at the streams whose time has come, and then goes on.
  void look_for_gaps();
  void failed(Lock& lock, const Error& error);
  void look_for_broken(Milliseconds wait);
  void look_again(const std::string& key, const Stream& stream);
  void wake(Lock& lock);
  void catch_up(const std::shared_ptr<TailReader>& reader);
  void caught_up(const std::shared_ptr<TailReader>& reader, Result<Page> page, const Result<StreamInfo>& info,
                 EntryNumber noted);
  void resume_later(Milliseconds wait);
  void resume();
  [[nodiscard]] std::unique_ptr<client::Line> make_line();
  void connected(std::int64_t connection);
  void wake_again();
  void tell(const std::vector<std::shared_ptr<TailReader>>& readers, const Error& why);

  const std::shared_ptr<client::Core> core_;
  const std::uint32_t slot_;  ///< `Call::kAnySlot` where there is one server

  std::mutex mutex_;
  // All of these are guarded by mutex_.
  std::map<std::string, Followed, std::less<>> followed_;
  std::set<std::string, std::less<>> to_look_;  ///< of which something was read, or may have been missed
  std::shared_ptr<client::Line> line_;          ///< absent while there is none to have: asks ten times a second then
  bool running_ = false;  ///< an XREAD is under way, its records are handed over, or the next one waits for its time
  bool blocked_ = false;  ///< it may be waiting on the server
  bool waking_ = false;
  bool wanted_ = false;  ///< a stream has come that the running XREAD does not name
  bool beside_ = false;  ///< the next XREAD goes over the client's own connections: the slot is on its way
  bool can_unblock_ = true;
  std::uint64_t round_ = 0;  ///< of XREADs that may wait on the server
  unsigned tries_ = 0;
  std::int64_t connection_ = 0;  ///< its CLIENT ID, 0 when it is not known
  bool was_connected_ = false;   ///< `line_`, before
  bool anew_ = false;            ///< it was lost and is back: all streams are looked at before the next XREAD
  detail::Clock::time_point not_before_{};
  Milliseconds backoff_{0};
};

/// Hands the records to the reader's tail; what is not behind its position is passed over.
void deliver_to(TailReader& reader, const TailBatch& batch);
void tell_error(TailReader& reader, const Error& why);
void tell_gap(TailReader& reader, const MissedRecords& gap);

}  // namespace bus
}  // namespace v1
}  // namespace echomq
