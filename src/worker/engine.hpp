// The engine of one worker: one control thread that talks to the server, and a pool of threads that run handlers.
//
// Everything below "control thread" is touched by that thread alone, so it needs no lock. The thread never waits for
// the server: every call continues in the inbox. It sleeps until there is mail or an alarm is due, handles all of it,
// and then asks itself once what to do next (`advance`).
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "echomq/flow.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"
#include "keyspace/keys.hpp"
#include "worker/alarms.hpp"
#include "worker/control_core.hpp"
#include "worker/held.hpp"
#include "worker/inbox.hpp"
#include "worker/job.hpp"
#include "worker/pool.hpp"
#include "worker/turns.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Checks the options, then starts the threads.
  [[nodiscard]] static Result<std::shared_ptr<Engine>> start(const Queue& queue, Handler handler,
                                                             WorkerOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] StopReport stop(Milliseconds deadline);
  [[nodiscard]] WorkerStats stats() const;
  [[nodiscard]] Milliseconds default_stop_deadline() const { return options_.stop_deadline; }
  /// Stops and joins. False in a child process, where the threads do not exist and the engine must not be destroyed.
  [[nodiscard]] bool close();

 private:
  struct Counters {
    std::atomic<std::uint64_t> claimed{0}, completed{0}, retried{0}, dead{0}, delayed{0}, handed_back{0},
        settles_refused{0}, leases_lost{0}, recovered{0}, dead_stalled{0}, promoted{0}, delivered{0}, wakes{0},
        errors{0}, unsettled{0};
    std::atomic<std::uint32_t> running{0}, leaked{0};
  };
  enum class Verdict : std::uint8_t { completed, retried, dead, delayed, handed_back };
  /// What the `park` script says: waits from now, none when there is nothing to wait for.
  struct Look {
    bool claimable = false;
    std::optional<Milliseconds> due;
    std::optional<Milliseconds> lapse;
  };

  Engine(const Queue& queue, WorkerOptions options);

  // Any thread.
  [[nodiscard]] bool forked() const noexcept { return ::getpid() != process_; }
  [[nodiscard]] bool on_own_thread() const noexcept;

  // Control thread: the loop (engine.cpp).
  void run();
  void ring_alarms();
  void advance();
  template <typename T, typename F>
  void when(Reply<T> reply, F then);
  void call_failed(const Error& error, std::string_view what);
  void log(LogLevel level, std::string_view event, const JobState* job, std::string_view text);
  /// Between three quarters and all of the period, so that workers of one queue fall out of step.
  [[nodiscard]] Milliseconds spread(Milliseconds period);
  [[nodiscard]] Milliseconds at_random(Milliseconds most);

  // Control thread: claiming and parking (engine_claim.cpp).
  void claim_more();
  void send_claim(Source source);
  void claimed(Source source, TimePoint sent, Result<std::optional<ClaimedJob>> answer);
  void begin(ClaimedJob claimed, TimePoint sent);
  void pause_claims();
  void look();
  void looked(const Result<Look>& answer);
  void nothing_claimable();
  void new_work();
  void leave_parking();
  void take_name_out();
  void tokens_taken(std::uint64_t tokens);
  void pass_token_on();
  [[nodiscard]] bool full() const { return handed_ >= options_.concurrency; }
  [[nodiscard]] std::size_t room() const;

  // Control thread: leases (engine_lease.cpp).
  void renew();
  void renewed(const std::vector<std::shared_ptr<JobState>>& jobs, TimePoint sent,
               const Result<std::vector<JobId>>& answer);
  void lapse();
  void set_lapse_alarm();
  void lose(HeldJob& held, Loss loss, std::string_view why);

  // Control thread: settling (engine_settle.cpp).
  void ended(Ended run);
  void settle(HeldJob& held);
  void settled(const std::shared_ptr<JobState>& job, Result<Verdict> answer);
  void settle_failed(HeldJob& held, const Error& error);
  void repeat_settles();
  void finish_job(const std::shared_ptr<JobState>& job, Verdict verdict);
  void drop(const JobState* job);
  void tell_settled(const std::shared_ptr<JobState>& job, std::string_view verdict);
  [[nodiscard]] Reply<Retried> kill(const JobState& job, std::string_view error, Milliseconds deadline);
  [[nodiscard]] Milliseconds settle_deadline() const;
  [[nodiscard]] Milliseconds backoff_after(const JobState& job);

  // Control thread: release by time (engine_release.cpp).
  void promote();
  void sweep();
  void deliver();
  void tell_delivered(const Delivered& pass);
  void next_promote();
  void next_sweep();

  // Control thread: stopping (engine_stop.cpp).
  void begin_stop(TimePoint deadline);
  void advance_stop();
  void hand_back_all();
  void finish();

  const WorkerOptions options_;
  const pid_t process_ = ::getpid();
  const Queue queue_;  ///< the handlers': blocking calls
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<client::Core> core_;  ///< answers into the inbox
  const Queue verbs_;                         ///< the control thread's, over `core_`
  const keyspace::QueueKeys keys_;
  const std::string name_;  ///< this worker's in `parked`
  Counters counters_;
  std::unique_ptr<HandlerPool> pool_;
  std::thread control_;

  mutable std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;  // guarded by mutex_
  StopReport report_;     // guarded by mutex_ once stopped

  // Control thread only.
  TimePoint now_ = Clock::now();
  Alarms alarms_;
  Turns turns_;
  std::mt19937_64 random_{std::random_device{}()};
  std::unordered_map<const JobState*, HeldJob> held_;
  std::unique_ptr<client::WakeWatch> watch_;
  /// Answers that came while their call was being made.
  std::vector<std::move_only_function<void()>> deferred_;
  bool calling_ = false;
  bool finished_ = false;
  std::size_t calls_ = 0;     ///< in flight, of whatever kind
  std::size_t handed_ = 0;    ///< jobs with the pool: they take a slot each
  std::size_t renewals_ = 0;  ///< in flight

  bool closed_ = false;         ///< the client is: nothing more can be claimed
  bool claims_paused_ = false;  ///< after an error, until Alarm::claim
  Milliseconds claim_pause_{0};
  bool looking_ = false;
  bool parked_ = false;
  bool named_ = false;       ///< `parked` of the queue may hold our name
  bool token_owed_ = false;  ///< a token was taken and its work is not known to be done
  unsigned fruitless_ = 0;   ///< looks in a row that promised a job which no claim found
  bool promoting_ = false;
  bool sweeping_ = false;
  bool delivering_ = false;
  Milliseconds outbox_pause_{0};      ///< until the outbox is looked at again; short after there were records
  std::int64_t malformed_told_ = 0;   ///< records in the outbox that are none, as last logged
  TimePoint due_ = TimePoint::max();  ///< the earliest scheduled job known

  bool stopping_ = false;
  TimePoint stop_by_ = TimePoint::max();
  bool expired_ = false;                      ///< the stop deadline has passed: all was handed back
  TimePoint answers_by_ = TimePoint::max();   ///< when the answers of that are no longer waited for
  TimePoint handlers_by_ = TimePoint::max();  ///< when handlers are no longer waited for
  TimePoint linger_by_ = TimePoint::max();    ///< when calls without a job are no longer waited for
  StopReport stop_report_;
};

/// Makes a call whose answer runs `then(Result<T>)` on the control thread, never from within this function.
template <typename T, typename F>
void Engine::when(Reply<T> reply, F then) {
  ++calls_;
  calling_ = true;
  // The inbox is known to the call by its address, so the continuation keeps it. The engine is touched only while the
  // inbox is open, which is while its control thread runs.
  std::move(reply).then([this, inbox = inbox_, then = std::move(then)](Result<T> result) mutable {
    if (inbox->closed())
      return;
    if (calling_) {
      deferred_.emplace_back([this, then = std::move(then), result = std::move(result)]() mutable {
        --calls_;
        then(std::move(result));
      });
      return;
    }
    --calls_;
    then(std::move(result));
  });
  calling_ = false;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
