// The threads that run synchronous loaders.
#include "cache/load_pool.hpp"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/detail/call.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

struct LoadPool::State {
  explicit State(std::size_t its_most) : most(its_most) {}

  static void run(const std::shared_ptr<State>& state) {
    (void)pthread_setname_np(pthread_self(), "echomq-load");
    for (;;) {
      Work work;
      {
        std::unique_lock lock(state->mutex);
        ++state->idle;
        state->wake.wait(lock, [&] { return state->closed || !state->waiting.empty(); });
        --state->idle;
        if (state->waiting.empty())
          return;
        work = std::move(state->waiting.front());
        state->waiting.pop_front();
      }
      work(Turn::run);
    }
  }

  const std::size_t most;
  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by mutex.
  std::deque<Work> waiting;
  std::vector<std::thread> threads;
  std::size_t idle = 0;
  bool closed = false;
};

LoadPool::LoadPool(std::size_t threads) : state_(std::make_shared<State>(threads)) {}
LoadPool::~LoadPool() { shutdown(); }

void LoadPool::submit(Work work) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->closed) {
      if (state_->idle <= state_->waiting.size() && state_->threads.size() < state_->most) {
        try {
          state_->threads.emplace_back([state = state_] { State::run(state); });
        } catch (const std::system_error&) {
          // The threads that there are have to do.
        }
      }
      if (!state_->threads.empty()) {
        state_->waiting.push_back(std::move(work));
        state_->wake.notify_one();
        return;
      }
    }
  }
  work(Turn::dropped);
}

void LoadPool::shutdown() {
  std::deque<Work> dropped;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    dropped.swap(state_->waiting);
    threads.swap(state_->threads);
    state_->wake.notify_all();
  }
  for (const Work& work : dropped)
    work(Turn::dropped);
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id() || detail::on_library_thread()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
