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
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "echomq/batch.hpp"
#include "echomq/flow.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"
#include "events/cancel_watch.hpp"
#include "events/publisher.hpp"
#include "keyspace/keys.hpp"
#include "queue/exchange.hpp"
#include "queue/flow_deliver.hpp"
#include "worker/alarms.hpp"
#include "worker/blocks.hpp"
#include "worker/control_core.hpp"
#include "worker/gather.hpp"
#include "worker/held_index.hpp"
#include "worker/inbox.hpp"
#include "worker/job.hpp"
#include "worker/observers.hpp"
#include "worker/outcome.hpp"
#include "worker/pool.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Checks the options, then starts the threads. With `batch` (checked before; its `worker` does not count) the handler
  /// is called with the carrier of a whole batch.
  [[nodiscard]] static Result<std::shared_ptr<Engine>> start(const Queue& queue, AnyHandler handler,
                                                             WorkerOptions options,
                                                             std::optional<BatchWorkerOptions> batch = {});
  /// Closes the engine; in a forked child it is left as it is, since the threads that it would join do not exist there.
  static void let_go(std::shared_ptr<Engine> engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] StopReport stop(Milliseconds deadline);
  [[nodiscard]] WorkerStats stats() const;
  [[nodiscard]] BatchWorkerStats batch_stats() const;
  [[nodiscard]] Milliseconds default_stop_deadline() const { return options_.stop_deadline; }
  void cancel(JobId id) { inbox_->cancel(id); }
  /// Stops and joins. False in a child process, where the threads do not exist and the engine must not be destroyed.
  [[nodiscard]] bool close();

 private:
  struct Counters {
    std::atomic<std::uint64_t> claimed{0}, completed{0}, retried{0}, dead{0}, delayed{0}, handed_back{0},
        settles_refused{0}, leases_lost{0}, recovered{0}, dead_stalled{0}, promoted{0}, delivered{0}, wakes{0},
        errors{0}, unsettled{0}, timed_out{0}, cancelled{0}, expired{0}, fired{0}, batches{0};
    std::atomic<std::uint32_t> running{0}, leaked{0}, prefetched{0}, batches_running{0};
  };
  using JobPtr = std::shared_ptr<JobState>;
  using Jobs = std::vector<JobPtr>;
  /// What the `park` script says: waits from now, none when there is nothing to wait for.
  struct Look {
    bool claimable = false;
    std::optional<Milliseconds> due;
    std::optional<Milliseconds> lapse;
  };

  /// What the `upkeep` script says: which work is this worker's to do now, and when to ask again.
  struct Turn {
    bool sweep = false;
    bool outbox = false;
    bool repeats = false;
    Milliseconds next{0};
    std::vector<std::string> lanes;  ///< whose count of jobs in flight is wrong
  };

  /// The claim that waits behind the BLPOP.
  struct Ride {
    UnixMillis clock_then{};  ///< as the engine's own, when it was made
    TimePoint sent_then{};
    JobPtr begun;  ///< begun before the control thread has heard of it
  };

  Engine(const Queue& queue, WorkerOptions options, std::optional<BatchWorkerOptions> batch);

  [[nodiscard]] static events::PublisherOptions publishing_of(const WorkerOptions& options);

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

  // Control thread: exchanges, which settle and claim in one call (engine_exchange.cpp).
  void exchange_more();
  [[nodiscard]] bool send_exchange();
  [[nodiscard]] Jobs next_settles();
  [[nodiscard]] queue::Settlement settlement_of(const JobPtr& job);
  [[nodiscard]] Milliseconds exchange_deadline(bool settles, bool claims) const;
  void exchanged(const Jobs& settles, std::size_t asked, TimePoint sent, bool crossed, Result<queue::Exchanged> answer);
  /// What a claim gave, by a server that ran it at `at` or later. `crossed`: a claim by the other connection may have come between.
  /// `running`: its only job, when a handler's thread has begun it.
  void taken(TimePoint at, queue::Exchanged& answer, bool crossed, const JobPtr& running = nullptr);
  [[nodiscard]] JobPtr begin(queue::TakenJob taken, TimePoint sent, bool crossed);
  /// Earlier runs of the job that are still here have lost it to the claim with this token. False when a later one is here.
  [[nodiscard]] bool is_newest(const JobId& id, Token token);
  /// On any thread.
  [[nodiscard]] JobPtr make_job(queue::TakenJob taken) const;
  void hold(const JobPtr& job, TimePoint sent);
  /// As `begin`, of a job that a handler's thread has begun.
  void adopt(const JobPtr& running, TimePoint sent);
  void tell_claimed();
  void tune(TimePoint sent);
  void pause_claims(Milliseconds pause);
  [[nodiscard]] bool may_claim() const { return !stopping_ && !claims_paused_ && !parked_ && !dry_ && !sick(); }
  [[nodiscard]] bool sick() const { return leaked_ >= options_.max_leaked; }
  [[nodiscard]] bool full() const { return gather_ ? gather_full() : handed_ >= slots(); }
  [[nodiscard]] std::size_t slots() const {
    return options_.concurrency - std::min<std::size_t>(stuck_, options_.concurrency);
  }
  [[nodiscard]] std::size_t room() const;
  /// Settles, and claims, of one call.
  [[nodiscard]] std::size_t bite() const;
  /// How many runs that ended are worth being woken for.
  [[nodiscard]] std::size_t worthwhile() const;

  // Control thread: parking (engine_park.cpp).
  void look();
  void looked(const Result<Look>& answer);
  void nothing_claimable();
  void wait_for_token();
  void ridden(std::size_t asked, const Ride& ride, Result<queue::Exchanged> answer);
  /// On the thread that reads the answer: a handler's thread that waited for it begins a plain job by itself.
  void begin_at_once(Ride& ride, queue::Exchanged& answer) const;
  [[nodiscard]] static TimePoint time_of(UnixMillis claimed_at, UnixMillis clock_then, TimePoint sent_then,
                                         TimePoint now);
  void new_work();
  void leave_parking();
  void take_name_out();
  void tokens_taken(std::uint64_t tokens);
  void pass_token_on();
  void pass_foreign_token();

  // Control thread: leases (engine_lease.cpp).
  void renew();
  void renewed(const Jobs& jobs, TimePoint sent, const Result<std::vector<JobId>>& answer);
  void lapse();
  void set_lapse_alarm();
  /// Those in hand with this id of which `which(const JobState&)` says yes.
  template <typename Which>
  [[nodiscard]] Jobs held_of(const JobId& id, Which which) const;
  [[nodiscard]] static TimePoint lease_of(const JobState& job);
  /// Whether a later run of its job is in hand.
  [[nodiscard]] bool is_here_again(const JobState& job) const;
  void lose(const JobPtr& job, Loss loss, std::string_view why);

  // Control thread: runs whose time is over, and cancelled ones (engine_limit.cpp).
  void cancelled(JobId id);
  /// False when no run of it is here to be ended.
  bool cancel_runs(const JobId& id);
  /// Whatever claims in flight give may have been asked to end before it is here.
  void ask_when_claimed();
  void ask_for_marks();
  void check_limits();
  void ask_to_stop(JobState& job, StopCause cause);
  void give_up(const JobPtr& job);
  void leaks(const JobPtr& job);
  void leak_returned(const JobPtr& job);
  /// A handler that does nothing but hand back does not get its jobs again at once.
  void note_end(const Outcome& outcome);
  /// Jobs that were fetched ahead and find no slot go back.
  void watch_queued();
  void return_queued();

  // Control thread: batches (engine_batch.cpp).
  [[nodiscard]] std::size_t free_batches() const;
  /// Jobs that free slots have a use for, and of all slots.
  [[nodiscard]] std::size_t gather_cap() const { return free_batches() * batch_->max_size; }
  [[nodiscard]] std::size_t gather_most() const { return std::size_t{options_.concurrency} * batch_->max_size; }
  [[nodiscard]] bool gather_full() const;
  [[nodiscard]] std::size_t gather_room() const;
  void gather(Jobs& jobs);
  void hand_out_batches();
  void begin_batch(Jobs members);
  void batch_ended(const JobState& carrier);
  void give_up_batch(BatchRun& batch);
  void leave_batch(JobState& job);
  void count_batches();
  /// Takes a job back that no handler has begun. False when one has.
  [[nodiscard]] bool withdraw(const JobPtr& job);

  // Control thread: settling (engine_settle.cpp).
  void ended(Ended run);
  void run_ended(const JobPtr& job, Outcome outcome);
  void decide(JobState& job);
  void settle(const JobPtr& job);
  void settled(const JobPtr& job, queue::Settled verdict);
  void settle_refused(const JobPtr& job, std::string_view why, bool gone);
  void settle_failed(const JobPtr& job, const Error& error, bool in_company);
  void repeat_settles();
  void finish_job(const JobPtr& job, queue::Settled verdict);
  void announce(const JobState& job, queue::Settled verdict);
  /// `failed`, then `dead`, of a job that no run of this worker ended.
  void tell_death(const JobId& id, std::string_view why);
  void tell_expired(const queue::Exchanged& claim);
  void drop(const JobPtr& job);
  void tell_settled(const JobPtr& job, JobVerdict verdict, std::string_view text = {});
  [[nodiscard]] Milliseconds settle_deadline() const;
  [[nodiscard]] Milliseconds backoff_after(const JobState& job);

  // Control thread: release by time (engine_release.cpp).
  void promote();
  void upkeep();
  void sweep();
  void fire();
  void mend_lane(const std::string& lane);
  void deliver();
  void tell_delivered(const Delivered& pass);
  void tell_fallen(const std::vector<queue::FallenParent>& parents);
  void next_promote();
  /// It sleeps no more, and knows of no jobs that become due from now on.
  void promote_while_busy();

  // Control thread: stopping (engine_stop.cpp).
  void begin_stop(TimePoint deadline);
  void advance_stop();
  void hand_back_all();
  void finish();

  const WorkerOptions options_;
  const std::optional<BatchWorkerOptions> batch_;  ///< of a worker of batches
  const pid_t process_ = ::getpid();
  const Queue queue_;                           ///< the handlers': blocking calls
  const std::shared_ptr<Observers> observers_;  ///< null: nobody watches
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<client::Core> core_;  ///< answers into the inbox
  const Queue verbs_;                         ///< the control thread's, over `core_`
  const std::shared_ptr<RidingCore> rides_;   ///< of the claim behind the BLPOP
  const Queue riding_verbs_;                  ///< over `rides_`
  const keyspace::QueueKeys keys_;
  const std::string name_;  ///< this worker's in `parked`
  Counters counters_;
  events::EventPublisher publisher_;
  std::unique_ptr<events::CancelWatch> cancels_;
  std::unique_ptr<HandlerPool> pool_;
  std::thread control_;
  std::atomic<bool> begins_at_once_{true};  ///< not once it stops

  mutable std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;  // guarded by mutex_
  StopReport report_;     // guarded by mutex_ once stopped

  // Control thread only.
  TimePoint now_ = Clock::now();
  Alarms alarms_;
  std::mt19937_64 random_{std::random_device{}()};
  const std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  Jobs held_;                     ///< each knows its index
  HeldIndex by_id_;               ///< of the same jobs
  Jobs ready_;                    ///< of those, the ones whose end goes out next
  Jobs submitted_;                ///< empty between turns
  std::vector<Job> claimed_;      ///< likewise, and only when somebody watches
  std::optional<Gather> gather_;  ///< of a worker of batches
  std::size_t batches_ = 0;       ///< with the pool: each takes a slot
  std::unique_ptr<client::WakeWatch> watch_;
  /// Answers that came while their call was being made.
  std::vector<std::move_only_function<void()>> deferred_;
  bool calling_ = false;
  bool finished_ = false;
  std::size_t calls_ = 0;         ///< in flight, of whatever kind
  std::size_t handed_ = 0;        ///< jobs with the pool: they take a slot each, or wait for one
  std::size_t asked_ = 0;         ///< jobs that claims in flight may give
  std::size_t exchanges_ = 0;     ///< in flight
  std::size_t claims_ = 0;        ///< of those, the ones that claim
  std::size_t prefetch_ = 0;      ///< jobs beyond the slots
  std::size_t leaked_ = 0;        ///< handlers that were given up and still run
  std::size_t stuck_ = 0;         ///< of those, the ones whose thread could not be replaced: each takes a slot
  Clock::duration round_trip_{};  ///< of an exchange, a moving average
  bool lanes_first_ = false;
  bool dry_ = false;          ///< the last claim found nothing more
  std::size_t renewals_ = 0;  ///< in flight

  bool closed_ = false;         ///< the client is: nothing more can be claimed
  bool claims_paused_ = false;  ///< after an error, until Alarm::claim
  Milliseconds claim_pause_{0};
  bool looking_ = false;
  bool look_again_ = false;  ///< a token came beside the look in flight, and a claim that found nothing
  bool parked_ = false;
  bool riding_ = false;            ///< a claim waits behind the BLPOP, or for a place there
  std::uint64_t rides_ended_ = 0;  ///< answers to claims that waited there
  UnixMillis clock_then_{};        ///< the server's at a claim that was sent at `sent_then_`
  TimePoint sent_then_ = TimePoint::min();
  bool named_ = false;                   ///< `parked` of the queue may hold our name
  TimePoint passed_ = TimePoint::min();  ///< when a token that stood for work of others was passed on
  bool token_owed_ = false;              ///< a token was taken and its work is not known to be done
  unsigned fruitless_ = 0;               ///< looks in a row that promised a job which no claim found
  bool promoting_ = false;
  bool sweeping_ = false;
  bool delivering_ = false;
  bool firing_ = false;
  bool keeping_up_ = false;
  Milliseconds beat_;                 ///< what `beat` is now
  bool by_beat_ = false;              ///< the look in flight is the beat's
  std::uint64_t begun_then_ = 0;      ///< runs begun when `Alarm::queued` was set
  Milliseconds marks_pause_{0};       ///< after a failed asking for such requests
  unsigned hand_backs_ = 0;           ///< by handlers, with no other end of a run between
  bool hurry_ = false;                ///< the next exchange goes out however small it is
  bool gated_ = false;                ///< the last claim was refused by the queue's ceiling
  Milliseconds outbox_pause_{0};      ///< until the outbox is looked at again; short after there were records
  std::int64_t malformed_told_ = 0;   ///< records in the outbox that are none, as last logged
  TimePoint due_ = TimePoint::max();  ///< the earliest scheduled job known
  /// Jobs of claims sent before then, or that the claim behind the BLPOP gives, are asked for requests to cancel.
  TimePoint marks_before_ = TimePoint::min();
  bool marks_ride_ = false;

  bool stopping_ = false;
  TimePoint stop_by_ = TimePoint::max();
  bool expired_ = false;                      ///< the stop deadline has passed: all was handed back
  TimePoint answers_by_ = TimePoint::max();   ///< when the answers of that are no longer waited for
  TimePoint handlers_by_ = TimePoint::max();  ///< when handlers are no longer waited for
  TimePoint linger_by_ = TimePoint::max();    ///< when calls without a job are no longer waited for
  StopReport stop_report_;
};

template <typename Which>
Engine::Jobs Engine::held_of(const JobId& id, Which which) const {
  Jobs found;
  by_id_.each_of(id, [&](const JobState& job) {
    if (which(job))
      found.push_back(held_[job.held.index]);
  });
  return found;
}

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
