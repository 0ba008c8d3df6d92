// The threads that run handlers.
#include "worker/pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "client/detached.hpp"
#include "worker/gather.hpp"
#include "worker/observers.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

/// A run that does not take longer may be over before its control thread, woken, has come to anything.
constexpr std::chrono::microseconds kShortRun{100};

thread_local const Engine* served = nullptr;
thread_local bool attending_now = false;
thread_local std::shared_ptr<JobState> begun_here;

/// A queue in a ring that grows and never shrinks, so that a steady flow allocates nothing.
class JobRing {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  void push(std::shared_ptr<JobState> job) {
    if (size_ == slots_.size())
      grow();
    slots_[(head_ + size_++) % slots_.size()] = std::move(job);
  }
  [[nodiscard]] std::shared_ptr<JobState> pop() {
    std::shared_ptr<JobState> job = std::move(slots_[head_]);
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return job;
  }
  [[nodiscard]] bool remove(const JobState* job) {
    for (std::size_t i = 0; i < size_; ++i) {
      if (slots_[(head_ + i) % slots_.size()].get() != job)
        continue;
      for (; i + 1 < size_; ++i)
        slots_[(head_ + i) % slots_.size()] = std::move(slots_[(head_ + i + 1) % slots_.size()]);
      slots_[(head_ + --size_) % slots_.size()].reset();
      return true;
    }
    return false;
  }
  void clear() {
    while (!empty())
      (void)pop();
  }

 private:
  void grow() {
    std::vector<std::shared_ptr<JobState>> larger(std::max<std::size_t>(16, 2 * slots_.size()));
    for (std::size_t i = 0; i < size_; ++i)
      larger[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<std::shared_ptr<JobState>> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

/// The members of a batch begin with their carrier.
void mark_begun(JobState& job, TimePoint begun) {
  job.begun.store(begun, std::memory_order_relaxed);
  if (!job.batch)
    return;
  for (const std::shared_ptr<JobState>& member : job.batch->members)
    member->begun.store(begun, std::memory_order_relaxed);
}

}  // namespace

const Engine* HandlerPool::serves() noexcept { return served; }
void HandlerPool::set_serves(const Engine* owner) noexcept { served = owner; }
bool HandlerPool::attends(const Engine* owner) noexcept { return attending_now && served == owner && !begun_here; }
void HandlerPool::begin_here(std::shared_ptr<JobState> job) noexcept { begun_here = std::move(job); }

struct HandlerPool::State {
  struct Seat {
    std::thread thread;
    std::atomic<const JobState*> runs{nullptr};  ///< set with the lock held
    bool abandoned = false;                      ///< another thread has its place
  };

  State(AnyHandler its_handler, std::shared_ptr<Inbox> its_inbox, const Engine* its_owner,
        std::shared_ptr<Observers> its_observers, std::size_t its_slots)
      : handler(std::move(its_handler)),
        inbox(std::move(its_inbox)),
        owner(its_owner),
        observers(std::move(its_observers)),
        slots(its_slots) {
    (void)::pthread_sigmask(SIG_SETMASK, nullptr, &signals);
  }
  ~State() {
    if (bell >= 0)
      ::close(bell);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  static void run(const std::shared_ptr<State>& state, Seat& seat);
  static client::Detached drive(std::shared_ptr<State> state, std::shared_ptr<JobState> job);
  /// Throws std::system_error; called with the lock held.
  static void add_seat(const std::shared_ptr<State>& state) {
    Seat& seat = state->seats.emplace_back();
    try {
      seat.thread = std::thread([state, &seat] { run(state, seat); });
    } catch (...) {
      state->seats.pop_back();
      throw;
    }
  }
  /// Called with the lock held, as the next two.
  [[nodiscard]] bool idle() const {
    return waiting.empty() || !begins || taken.load(std::memory_order_relaxed) >= slots;
  }
  void take_slot(JobState& job) {
    taken.fetch_add(1, std::memory_order_relaxed);
    job.in_slot.store(true, std::memory_order_relaxed);
  }
  void wake_one() {
    if (waking || (idle() && (attending || !lent)))
      return;
    if (sleeping > 0) {
      waking = true;
      wake.notify_one();
    } else if (attending && !idle()) {
      ring();
    }
  }
  void ring() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(bell, &one, sizeof one);
  }
  /// Gives the job that has begun meanwhile, if any. It comes first: whoever was to be woken then is `held`.
  [[nodiscard]] std::shared_ptr<JobState> attend(std::unique_lock<std::mutex>& lock, detail::HeldWakes& held) {
    attending = true;
    std::function<void(int)> attendant = std::exchange(lent, nullptr);
    std::shared_ptr<detail::LateWakes> late = runs_shortly() ? late_wakes : nullptr;
    lock.unlock();
    {
      detail::WakeLater wakes;
      attending_now = true;
      attendant(bell);
      attending_now = false;
      if (begun_here && late)
        held.hold(wakes, std::move(late));
    }
    lock.lock();
    attending = false;
    std::uint64_t rung = 0;  // by the pool, or by the connection that cannot be written to
    if (!begun_here && ::read(bell, &rung, sizeof rung) > 0 && !lent && !closed)
      lent = std::move(attendant);  // called away, so there is something to wait for still
    lock.unlock();
    attendant = nullptr;  // may be the last to let a connection go
    lock.lock();
    return std::exchange(begun_here, nullptr);
  }
  /// Whether it was the one slot that others wait for; then somebody is to be woken. A run that was given up has none any more.
  [[nodiscard]] bool leave_slot(JobState& job) {
    return job.in_slot.exchange(false, std::memory_order_acq_rel) &&
           taken.fetch_sub(1, std::memory_order_acq_rel) >= slots;
  }
  /// And nobody could begin what the control thread would claim meanwhile. Called with the lock held.
  [[nodiscard]] bool runs_shortly() const noexcept {
    const auto mean = std::chrono::nanoseconds(mean_run.load(std::memory_order_relaxed));
    const bool alone = seats.size() == 1 && (std::holds_alternative<Handler>(handler) || slots == 1);
    return alone && mean.count() > 0 && mean < kShortRun;
  }
  void measured(TimePoint start) noexcept {
    const auto took = std::chrono::nanoseconds(Clock::now() - start).count();
    const auto before = mean_run.load(std::memory_order_relaxed);
    mean_run.store(before == 0 ? std::max<std::int64_t>(took, 1) : before + (took - before) / 16,
                   std::memory_order_relaxed);
  }

  const AnyHandler handler;
  const std::shared_ptr<Inbox> inbox;
  const Engine* const owner;
  const std::shared_ptr<Observers> observers;  ///< null: nobody watches
  const std::size_t slots;
  sigset_t signals{};  ///< what the thread that started the pool blocks; a thread of a later seat would block all
  std::atomic<std::int64_t> mean_run{0};
  std::atomic<std::uint64_t> begun{0};
  std::atomic<std::size_t> suspended{0};  ///< coroutines that have begun and not ended
  std::atomic<std::size_t> taken{0};      ///< of those, the ones that were not given up; rises with the lock held

  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by mutex.
  JobRing waiting;
  std::list<Seat> seats;  ///< a seat stays where it is as long as its thread lives
  std::size_t sleeping = 0;
  bool waking = false;            ///< a thread was called and has not come yet
  std::function<void(int)> lent;  ///< what the next idle thread attends
  std::shared_ptr<detail::LateWakes> late_wakes;
  bool attending = false;  ///< a thread does
  int bell = -1;           ///< calls it away; made when it is first needed
  bool begins = true;
  bool closed = false;
};

client::Detached HandlerPool::State::drive(std::shared_ptr<State> state, std::shared_ptr<JobState> job) {
  Job seen(job);
  Outcome outcome;
  try {
    outcome = co_await std::get<AsyncHandler>(state->handler)(seen);
  } catch (...) {
    outcome = outcome_of(std::current_exception());
  }
  state->measured(job->begun.load(std::memory_order_relaxed));
  if (state->observers)
    state->observers->ended(job, outcome);
  state->suspended.fetch_sub(1, std::memory_order_release);
  if (state->leave_slot(*job)) {
    const std::lock_guard lock(state->mutex);
    state->wake_one();
  }
  state->inbox->ended(std::move(job), std::move(outcome));
}

void HandlerPool::State::run(const std::shared_ptr<State>& state, Seat& seat) {
  served = state->owner;
  (void)::pthread_sigmask(SIG_SETMASK, &state->signals, nullptr);
  const auto* plain = std::get_if<Handler>(&state->handler);
  for (;;) {
    std::shared_ptr<JobState> job;
    detail::HeldWakes held;
    {
      std::unique_lock lock(state->mutex);
      if (seat.abandoned) {
        state->seats.remove_if([&seat](const Seat& its) { return &its == &seat; });
        return;
      }
      while (!state->closed && state->idle() && !job) {
        if (state->lent && !state->attending) {
          job = state->attend(lock, held);
          continue;
        }
        ++state->sleeping;
        state->wake.wait(lock);
        --state->sleeping;
        state->waking = false;
      }
      if (state->closed)
        return;
      if (!job)
        job = state->waiting.pop();
      if (plain == nullptr)
        state->take_slot(*job);
      seat.runs.store(job.get(), std::memory_order_relaxed);
      state->begun.store(state->begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      state->wake_one();
    }
    const TimePoint begun = Clock::now();
    mark_begun(*job, begun);
    if (state->observers)
      state->observers->started(job);
    if (plain == nullptr) {
      state->suspended.fetch_add(1, std::memory_order_relaxed);
      drive(state, std::move(job));
      seat.runs.store(nullptr, std::memory_order_release);
      continue;
    }
    Job seen(job);
    Outcome outcome = run_handler(*plain, seen);
    state->measured(begun);
    if (state->observers)
      state->observers->ended(job, outcome);
    // Before it is told: whoever hears of the end may count who still runs.
    seat.runs.store(nullptr, std::memory_order_release);
    state->inbox->ended(std::move(job), std::move(outcome));
  }
}

HandlerPool::HandlerPool(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

HandlerPool::~HandlerPool() { shutdown(); }

Result<std::unique_ptr<HandlerPool>> HandlerPool::start(std::size_t threads, AnyHandler handler,
                                                        std::shared_ptr<Inbox> inbox, const Engine* owner,
                                                        std::shared_ptr<Observers> observers, std::size_t slots) {
  auto state = std::make_shared<State>(std::move(handler), std::move(inbox), owner, std::move(observers), slots);
  std::unique_ptr<HandlerPool> pool(new HandlerPool(state));
  std::unique_lock lock(state->mutex);
  for (std::size_t seat = 0; seat < threads; ++seat) {
    try {
      State::add_seat(state);
    } catch (const std::system_error& error) {
      lock.unlock();
      return fail(Errc::invalid_argument, "concurrency: the system gives no more than " + std::to_string(seat) +
                                              " threads of " + std::to_string(threads) + ": " + error.what());
    }
  }
  return pool;
}

void HandlerPool::submit(std::span<std::shared_ptr<JobState>> jobs) {
  const std::lock_guard lock(state_->mutex);
  for (std::shared_ptr<JobState>& job : jobs)
    state_->waiting.push(std::move(job));
  state_->wake_one();
}

void HandlerPool::lend(std::function<void(int bell)> attendant, std::shared_ptr<detail::LateWakes> late) {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed)
    return;
  if (attendant && state_->bell < 0)
    state_->bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state_->bell < 0)
    return;  // nobody could call the thread away
  std::swap(state_->lent, attendant);
  state_->late_wakes = std::move(late);
  state_->wake_one();
}

void HandlerPool::begin_no_more() {
  const std::lock_guard lock(state_->mutex);
  state_->begins = false;
}

bool HandlerPool::withdraw(const JobState* job) {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting.remove(job);
}

HandlerPool::Abandoned HandlerPool::abandon(JobState* job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->leave_slot(*job))
    state_->wake_one();
  if (state_->closed)
    return Abandoned::nobody;
  const auto seat = std::find_if(state_->seats.begin(), state_->seats.end(), [job](const State::Seat& its) {
    return its.runs.load(std::memory_order_acquire) == job && !its.abandoned;
  });
  if (seat == state_->seats.end())
    return Abandoned::nobody;
  try {
    State::add_seat(state_);
  } catch (const std::system_error&) {
    return Abandoned::stuck;
  }
  seat->abandoned = true;
  seat->thread.detach();
  return Abandoned::replaced;
}

std::chrono::nanoseconds HandlerPool::mean_run() const noexcept {
  return std::chrono::nanoseconds(state_->mean_run.load(std::memory_order_relaxed));
}

std::uint64_t HandlerPool::begun() const noexcept { return state_->begun.load(std::memory_order_relaxed); }

std::size_t HandlerPool::seats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->seats.size();
}

std::size_t HandlerPool::shutdown() {
  std::vector<std::thread> idle;
  std::size_t busy = 0;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->waiting.clear();
    state_->lent = nullptr;
    if (state_->attending)
      state_->ring();
    for (State::Seat& seat : state_->seats) {
      const bool runs = seat.runs.load(std::memory_order_acquire) != nullptr;
      busy += runs ? 1 : 0;
      if (!seat.thread.joinable())
        continue;
      if (runs || seat.thread.get_id() == std::this_thread::get_id()) {
        seat.thread.detach();
      } else {
        idle.push_back(std::move(seat.thread));
      }
    }
    state_->wake.notify_all();
  }
  for (std::thread& thread : idle)
    thread.join();
  // A coroutine's first part may run on a busy thread: it is counted once.
  return std::holds_alternative<AsyncHandler>(state_->handler) ? state_->suspended.load(std::memory_order_acquire)
                                                               : busy;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
