// The shared state of one call: its request bytes, its answer, and whoever waits for it. Not for users.
//
// One allocation holds all of it. Exactly one party settles a call (`win()`); whoever wins stores the result and
// then calls `publish()`, which wakes the waiter or posts the continuation.
#pragma once

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <utility>

#include "echomq/error.hpp"
#include "echomq/executor.hpp"

namespace echomq {
inline namespace v1 {

namespace resp {
class View;
}  // namespace resp
namespace script {
struct ScriptSource;
}  // namespace script

namespace detail {

using Clock = std::chrono::steady_clock;

/// Whatever a blocked thread may drive in place of the library's own thread: a connection.
class Source {
 public:
  /// Reads and completes calls on this thread until `done(argument)` or `until`. False at once when somebody else
  /// is reading: the caller then waits for its own signal.
  virtual bool drive(bool (*done)(void*), void* argument, Clock::time_point until) = 0;
  /// Nobody on this thread will drive: the library's thread reads from now on.
  virtual void leave_to_library() noexcept = 0;
  /// Withdraws a call that is not written yet; a written one becomes `outcome_unknown`.
  virtual void cancel(class Call& call) = 0;

 protected:
  ~Source() = default;
};

/// Where the continuation of a call goes: the loop of a thread that runs a `Task`, or an executor.
class Target {
 public:
  virtual void post(Continuation continuation) = 0;

 protected:
  ~Target() = default;
};

class Call {
 public:
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy();
  }

  // The wire's side.

  /// Takes the one complete reply that answers this call. Called once, by the winner of `win()`.
  virtual void accept(const resp::View& reply) noexcept = 0;
  /// Takes one reply of a request of several commands, all but the last. Only the thread that reads calls it.
  virtual void part(const resp::View& reply) noexcept { (void)reply; }
  /// Ends the call with an error. Called once, by the winner of `win()`.
  virtual void fail(Error error) noexcept = 0;
  /// True for exactly one caller.
  [[nodiscard]] bool win() noexcept { return !settled_.exchange(true, std::memory_order_acq_rel); }
  [[nodiscard]] bool settled() const noexcept { return settled_.load(std::memory_order_acquire); }
  /// Makes the stored result visible and wakes who waits.
  void publish() noexcept;

  [[nodiscard]] bool written() const noexcept { return first_written != Clock::time_point{}; }

  // The waiter's side.

  [[nodiscard]] bool done() const noexcept { return phase_.load(std::memory_order_acquire) == kDone; }
  /// Registers what runs when the call is done; false when it is done already (nothing is registered).
  [[nodiscard]] bool on_done(Target* target, Continuation continuation) noexcept;
  /// Blocks until done or `until`; drives the connection when it is idle. False when `until` passed first.
  [[nodiscard]] bool wait(Clock::time_point until) noexcept;
  void cancel() noexcept {
    if (source != nullptr && !settled())
      source->cancel(*this);
  }

  // What the wire keeps of the call. Guarded by the connection that has it.

  static constexpr std::uint32_t kUnrouted = 0xFFFFFFFF;  ///< nobody has looked at its keys yet
  static constexpr std::uint32_t kAnySlot = 0xFFFFFFFE;   ///< no keys: any node of a cluster

  Call* next = nullptr;                          ///< of the connection's queue
  Source* source = nullptr;                      ///< what may be driven for it; lives as long as the client's core
  Target* default_target = nullptr;              ///< the client's executor
  const script::ScriptSource* script = nullptr;  ///< set when the request is an EVALSHA that may meet NOSCRIPT
  const char* request = nullptr;                 ///< encoded bytes, in the same allocation
  std::uint32_t request_size = 0;
  std::uint32_t slot = kUnrouted;   ///< of its keys; only a cluster asks
  std::uint64_t stream_offset = 0;  ///< where its bytes begin in what the connection has sent
  Clock::time_point deadline = Clock::time_point::max();
  Clock::time_point first_written{};
  Repeat repeat = Repeat::unsafe;  ///< whether a lost answer lets the wire send it again
  bool resent = false;             ///< the answer may be that of a second execution
  bool blocking = false;           ///< parks the connection (BLPOP): judged by its own deadline
  bool internal = false;           ///< the wire's own (PING, SCRIPT LOAD): not counted
  std::uint8_t script_loads = 0;   ///< how often NOSCRIPT was repaired for it
  std::uint8_t redirects = 0;      ///< how often another node was said to serve its slot
  /// What a node of a cluster has said about its commands instead of carrying them out.
  enum class Refusal : std::uint8_t {
    none,
    moved,      ///< another node serves the slot
    ask,        ///< the slot is on its way, and the keys have gone: this once, behind ASKING
    try_again,  ///< of its keys some have gone and some have not
  };
  Refusal refusal = Refusal::none;
  std::uint8_t pauses = 0;              ///< how often `try_again` was said
  bool asking = false;                  ///< goes out behind ASKING
  bool awaits_asking = false;           ///< the next reply is that of ASKING
  std::uint32_t answered_commands = 0;  ///< of several commands those that are answered, since it was last written
  std::uint32_t refused_commands = 0;   ///< behind these those that were refused
  std::uint32_t replies = 1;            ///< replies still awaited; all but the last go to `part`

 protected:
  Call() = default;
  virtual ~Call() = default;
  virtual void destroy() noexcept = 0;

 private:
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kDone = 1;
  static constexpr std::uint32_t kContinuation = 2;
  static constexpr std::uint32_t kWaiting = 3;

  std::atomic<std::uint32_t> references_{1};
  std::atomic<std::uint32_t> phase_{kPending};
  std::atomic<bool> settled_{false};
  Target* target_ = nullptr;
  Continuation continuation_{nullptr, nullptr};
};

/// A call whose answer is a `T`.
template <typename T>
class CallOf : public Call {
 public:
  void fail(Error error) noexcept override {
    result_.emplace(std::unexpected<Error>(std::move(error)));
    publish();
  }
  /// Once, after `done()`.
  [[nodiscard]] Result<T> take() { return std::move(*result_); }
  /// The answer, after `done()`, while nobody has taken it.
  [[nodiscard]] const Result<T>& peek() const noexcept { return *result_; }
  void store(Result<T> result) noexcept { result_.emplace(std::move(result)); }

 private:
  std::optional<Result<T>> result_;
};

/// An owning pointer to a call.
template <typename C>
class CallPointer {
 public:
  CallPointer() = default;
  /// Adopts the reference that the maker of the call holds.
  explicit CallPointer(C* adopted) noexcept : call_(adopted) {}
  CallPointer(CallPointer&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  CallPointer& operator=(CallPointer&& other) noexcept {
    std::swap(call_, other.call_);
    return *this;
  }
  ~CallPointer() {
    if (call_ != nullptr)
      call_->release();
  }
  [[nodiscard]] C* get() const noexcept { return call_; }
  C* operator->() const noexcept { return call_; }
  explicit operator bool() const noexcept { return call_ != nullptr; }
  [[nodiscard]] C* hand_over() noexcept { return std::exchange(call_, nullptr); }

 private:
  C* call_ = nullptr;
};

/// The loop of a thread that runs a `Task`: continuations of what the task awaits come back to this thread, which
/// drives the connection it last waited for instead of sleeping.
class LocalLoop final : public Target {
 public:
  LocalLoop() noexcept;
  ~LocalLoop();
  LocalLoop(const LocalLoop&) = delete;
  LocalLoop& operator=(const LocalLoop&) = delete;

  void post(Continuation continuation) override;
  /// Runs continuations until `finish()` was called.
  void run();
  /// Ends `run()`; from any thread.
  void finish() noexcept;
  /// Tells the loop which connection the task now waits for.
  void waits_for(Source* source) noexcept { source_ = source; }
  /// The loop of this thread, null when it runs no task.
  [[nodiscard]] static LocalLoop* current() noexcept;

 private:
  struct Queue;
  LocalLoop* outer_;
  Queue* queue_;
  Source* source_ = nullptr;
};

/// Whether this thread belongs to the library (I/O or callbacks): blocking on it would deadlock.
[[nodiscard]] bool on_library_thread() noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace echomq
