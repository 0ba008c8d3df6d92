// A timed wait on a 32-bit atomic: what `std::atomic::wait` lacks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace echomq {
inline namespace v1 {
namespace detail {

/// Sleeps while `word` holds `expected`, at most until `until`. May wake for no reason. False when time is up.
bool futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::steady_clock::time_point until) noexcept;
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

/// While one lives, this thread gathers the wakes that are asked for by `wake` and does them together: whoever has several
/// things for the same sleeper, wakes it once. The words may be gone by then, for only their addresses are used. One inside of
/// another leaves its wakes to that at its end.
class WakeLater {
 public:
  static constexpr std::size_t kMost = 8;  ///< one more, and all are woken before it

  WakeLater() noexcept;
  ~WakeLater();
  WakeLater(const WakeLater&) = delete;
  WakeLater& operator=(const WakeLater&) = delete;
  /// Wakes those gathered so far.
  void flush() noexcept;
  [[nodiscard]] std::span<std::atomic<std::uint32_t>* const> gathered() const noexcept {
    return std::span(words_).first(count_);
  }
  /// Others wake those gathered so far.
  void forget() noexcept { count_ = 0; }
  /// Of the scope of this thread; at once when there is none.
  static void wake(std::atomic<std::uint32_t>& word) noexcept;

 private:
  void gather(std::atomic<std::uint32_t>& word) noexcept;

  std::array<std::atomic<std::uint32_t>*, kMost> words_{};
  std::size_t count_ = 0;
  WakeLater* outer_;
};

/// Marks this thread as one of the library: blocking calls on it answer `would_deadlock`.
void mark_library_thread() noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace echomq
