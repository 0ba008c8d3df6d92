// The threads that run synchronous loaders. Started with the first load.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace echomq {
inline namespace v1 {
namespace cache {

class LoadPool {
 public:
  enum class Turn : std::uint8_t { run, dropped };
  using Work = std::function<void(Turn)>;

  explicit LoadPool(std::size_t threads);
  ~LoadPool();
  LoadPool(const LoadPool&) = delete;
  LoadPool& operator=(const LoadPool&) = delete;

  /// Runs `work` when a thread is free; as `dropped`, on the caller's thread, once the pool is shut or when the system
  /// gives no thread at all.
  void submit(Work work);
  /// Drops what waits and joins the threads, but for the caller when it is one of them: that one ends by itself. On a thread of the library,
  /// which what they run may wait for, none is joined.
  void shutdown();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
