// All waits of a client for the ends of jobs of one queue: one pair of subscriptions, one table, looks in batches.
//
// An end is told on a channel (`emq:{q}:ended`, or by a peer on `emq:{q}:events`); what it was is always looked up by the
// script `ended`. The order makes sure that no end is missed: subscribe, look, and look again at whatever is told, at
// everything after the link was lost, and at each job once a beat.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "echomq/client.hpp"
#include "echomq/detail/call.hpp"
#include "echomq/queue.hpp"
#include "keyspace/keys.hpp"
#include "resp/view.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// What is kept of an ended job: `completed` or `dead`, a NUL, the text. Empty when the bytes are none of these.
[[nodiscard]] std::optional<Ended> read_kept(JobId id, std::string_view bytes);

/// One wait. Never on the wire itself.
class WaitCall final : public detail::CallOf<Ended> {
 public:
  using Clock = detail::Clock;

  WaitCall(const client::Core& core, JobId job, WaitOptions options);

  void accept(const resp::View&) noexcept override {}
  /// Ends the wait unless it has ended.
  void finish(Result<Ended> result) noexcept;

  JobId id;  ///< known once the job is admitted
  const Clock::time_point until;
  const Milliseconds beat;
  Clock::time_point due{};  ///< when the table has to look at it next; guarded by the table
  /// The look that was on its way when the wait began: the job may have been admitted, again or at all, behind it. Likewise.
  std::uint64_t older_look = 0;

 private:
  ~WaitCall() override = default;
  void destroy() noexcept override { delete this; }
};

class WaitHub : public std::enable_shared_from_this<WaitHub> {
 public:
  using Clock = detail::Clock;
  using Waiting = detail::CallPointer<WaitCall>;

  /// The one of that core and queue.
  [[nodiscard]] static std::shared_ptr<WaitHub> of(const std::shared_ptr<client::Core>& core, const QueueName& queue);

  WaitHub(const std::shared_ptr<client::Core>& core, const QueueName& queue);
  WaitHub(const WaitHub&) = delete;
  WaitHub& operator=(const WaitHub&) = delete;
  ~WaitHub();

  /// Subscribes ahead of a wait, so that it need not begin with that.
  void warm_up();
  void wait(Waiting call);

 private:
  enum class Phase : std::uint8_t { idle, subscribing, live };
  /// All waits for one job.
  struct Watched {
    std::vector<Waiting> calls;
    bool asked = false;      ///< a look is queued or on its way
    std::uint64_t sent = 0;  ///< the look that it is in when that is on its way, else 0
    bool again = false;      ///< told of meanwhile: what comes back may be from before
  };
  struct Look {
    std::optional<std::string> state;
    std::optional<std::string> last_error;
    std::optional<std::string> kept;
  };
  using Looks = std::vector<Look>;
  /// Waits that have ended, to be told once the lock is gone.
  using Endings = std::vector<std::pair<Waiting, Result<Ended>>>;

  static constexpr std::size_t kLookJobs = 100;
  static constexpr std::size_t kLooksOnTheWay = 8;
  /// The longest without a look at whether the client was closed.
  static constexpr Milliseconds kTick{50};
  /// After a look that failed for a passing reason.
  static constexpr Milliseconds kAgain{200};
  /// After a subscription that did.
  static constexpr Milliseconds kSubscribeAgain{500};
  /// How long the subscriptions outlive the last wait.
  static constexpr std::chrono::seconds kLinger{5};

  void subscribe();
  void subscribed(std::optional<Subscription>& place, Result<Subscription> subscription);
  void told(std::string_view id);
  void told_of_event(std::string_view message);
  void look_at_all();
  void look_at(JobId id, Watched& watched);  // mutex_ held
  void send_looks();
  void looked(std::uint64_t number, const std::vector<JobId>& ids, Result<Looks> looks);
  void set_due(WaitCall& call, Clock::time_point when);  // mutex_ held
  /// Takes the waits of a job out of the table: all, or those that began before this look was sent; the others get one more.
  void end(JobId id, const Result<Ended>& how, Endings& endings, std::uint64_t look = 0);  // mutex_ held
  void fail_all(const Error& why);
  [[nodiscard]] bool to_subscribe(Clock::time_point now);  // mutex_ held
  static void tell(Endings endings) noexcept;
  /// Sees to it that a tick comes no later than `when`.
  void tick_by(Clock::time_point when);
  void tick(Clock::time_point planned);

  const std::weak_ptr<client::Core> core_;
  const keyspace::QueueKeys keys_;

  std::mutex mutex_;
  Phase phase_ = Phase::idle;                                // guarded by mutex_
  std::uint8_t unconfirmed_ = 0;                             // guarded by mutex_
  std::optional<Error> refusal_;                             // guarded by mutex_; of a subscription
  std::optional<Subscription> ended_;                        // guarded by mutex_
  std::optional<Subscription> events_;                       // guarded by mutex_
  std::unordered_map<JobId, Watched> watched_;               // guarded by mutex_
  std::set<std::pair<Clock::time_point, WaitCall*>> due_;    // guarded by mutex_; of calls in watched_
  std::deque<JobId> to_look_;                                // guarded by mutex_
  std::size_t looks_ = 0;                                    // guarded by mutex_; on the way
  std::uint64_t last_look_ = 0;                              // guarded by mutex_; its number
  Clock::time_point next_tick_ = Clock::time_point::max();   // guarded by mutex_
  Clock::time_point idle_since_ = Clock::time_point::max();  // guarded by mutex_
  /// When waits without a subscription ask for it again.
  Clock::time_point subscribe_at_ = Clock::time_point::min();  // guarded by mutex_
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
