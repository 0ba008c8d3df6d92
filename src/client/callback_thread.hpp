// The default executor: one thread that runs continuations in order.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/executor.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// Runs continuations on a thread of its own, or hands them to the user's `Post`.
class CallbackThread final : public detail::Target {
 public:
  explicit CallbackThread(Post post) : post_(std::move(post)) {}
  ~CallbackThread() { stop(); }
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  void post(Continuation continuation) override;
  /// Runs what is queued, then ends the thread. Called on that thread itself, it leaves the rest to it.
  void stop();

 private:
  void run();

  const Post post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Continuation> queue_;  // guarded by mutex_
  bool stopping_ = false;            // guarded by mutex_
  bool started_ = false;             // guarded by mutex_
  std::thread thread_;               // started with the first continuation
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
