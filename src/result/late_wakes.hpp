// Wakes that may come a moment late.
//
// To wake a thread on an idle processor costs whoever does it as much as a few calls of the kernel, and on a virtual machine as much as
// half a round trip to a server on it (10 to 20 us). A thread that has something more urgent in hand keeps its wakes here meanwhile and
// does them when that is done. Should it take longer, the library's thread does them, at the next tick of a connection. (A timer for
// it is no way out: on a virtual machine it costs as much to set.)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "result/futex.hpp"

namespace echomq {
inline namespace v1 {
namespace detail {

/// Thread-safe. The words may be gone when they are woken, for only their addresses are used.
class LateWakes {
 public:
  using Word = std::atomic<std::uint32_t>;

  /// Takes the wakes over. False when nobody would do them in time: they are left to the caller.
  [[nodiscard]] bool keep(std::span<Word* const> words) noexcept;
  /// Does those of them that have not been done.
  void wake(std::span<Word* const> words) noexcept;
  /// Does all that are kept. The library's thread calls it now and then.
  void ring() noexcept;
  /// Nothing is taken any more; what was, is woken.
  void close() noexcept;

 private:
  std::mutex mutex_;
  std::vector<Word*> kept_;            // guarded by mutex_
  std::atomic<std::size_t> count_{0};  // of them; written with mutex_ held
  bool closed_ = false;                // guarded by mutex_
};

/// What one thread has kept with them.
class HeldWakes {
 public:
  HeldWakes() = default;
  ~HeldWakes() { wake(); }
  HeldWakes(const HeldWakes&) = delete;
  HeldWakes& operator=(const HeldWakes&) = delete;
  /// Takes what `gathered` has; where `late` does not take it, that is woken at once.
  void hold(WakeLater& gathered, std::shared_ptr<LateWakes> late) noexcept;
  void wake() noexcept;

 private:
  std::array<LateWakes::Word*, WakeLater::kMost> words_{};
  std::size_t count_ = 0;
  std::shared_ptr<LateWakes> late_;
};

}  // namespace detail
}  // namespace v1
}  // namespace echomq
