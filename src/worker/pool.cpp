// The threads that run handlers.
#include "worker/pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "worker/outcome.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {
thread_local const Engine* served = nullptr;
}  // namespace

const Engine* HandlerPool::serves() noexcept { return served; }
void HandlerPool::set_serves(const Engine* owner) noexcept { served = owner; }

struct HandlerPool::State {
  struct Seat {
    std::thread thread;
    bool busy = false;
  };

  State(Handler its_handler, std::shared_ptr<Inbox> its_inbox, const Engine* its_owner)
      : handler(std::move(its_handler)), inbox(std::move(its_inbox)), owner(its_owner) {}

  static void run(const std::shared_ptr<State>& state, std::size_t seat);

  const Handler handler;
  const std::shared_ptr<Inbox> inbox;
  const Engine* const owner;

  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by mutex.
  std::deque<std::shared_ptr<JobState>> waiting;
  std::vector<Seat> seats;
  bool closed = false;
};

void HandlerPool::State::run(const std::shared_ptr<State>& state, std::size_t seat) {
  served = state->owner;
  for (;;) {
    std::shared_ptr<JobState> job;
    {
      std::unique_lock lock(state->mutex);
      state->wake.wait(lock, [&] { return state->closed || !state->waiting.empty(); });
      if (state->closed)
        return;
      job = std::move(state->waiting.front());
      state->waiting.pop_front();
      state->seats[seat].busy = true;
    }
    Job seen(job);
    Outcome outcome = run_handler(state->handler, seen);
    {
      const std::lock_guard lock(state->mutex);
      state->seats[seat].busy = false;
    }
    state->inbox->ended(std::move(job), std::move(outcome));
  }
}

HandlerPool::HandlerPool(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

HandlerPool::~HandlerPool() { shutdown(); }

Result<std::unique_ptr<HandlerPool>> HandlerPool::start(std::size_t threads, Handler handler,
                                                        std::shared_ptr<Inbox> inbox, const Engine* owner) {
  auto state = std::make_shared<State>(std::move(handler), std::move(inbox), owner);
  std::unique_ptr<HandlerPool> pool(new HandlerPool(state));
  std::unique_lock lock(state->mutex);
  state->seats.resize(threads);
  for (std::size_t seat = 0; seat < threads; ++seat) {
    try {
      state->seats[seat].thread = std::thread([state, seat] { State::run(state, seat); });
    } catch (const std::system_error& error) {
      lock.unlock();
      return fail(Errc::invalid_argument, "concurrency: the system gives no more than " + std::to_string(seat) +
                                              " threads of " + std::to_string(threads) + ": " + error.what());
    }
  }
  return pool;
}

void HandlerPool::submit(std::shared_ptr<JobState> job) {
  const std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(std::move(job));
  state_->wake.notify_one();
}

bool HandlerPool::withdraw(const JobState* job) {
  const std::lock_guard lock(state_->mutex);
  const auto found = std::find_if(state_->waiting.begin(), state_->waiting.end(),
                                  [job](const auto& waiting) { return waiting.get() == job; });
  if (found == state_->waiting.end())
    return false;
  state_->waiting.erase(found);
  return true;
}

std::size_t HandlerPool::shutdown() {
  std::vector<std::thread> idle;
  std::size_t busy = 0;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->waiting.clear();
    for (State::Seat& seat : state_->seats) {
      if (!seat.thread.joinable())
        continue;
      if (seat.busy || seat.thread.get_id() == std::this_thread::get_id()) {
        seat.thread.detach();
        busy += seat.busy ? 1 : 0;
      } else {
        idle.push_back(std::move(seat.thread));
      }
    }
    state_->wake.notify_all();
  }
  for (std::thread& thread : idle)
    thread.join();
  return busy;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
