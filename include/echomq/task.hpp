// `Task<T>`: the coroutine type for those without a framework of their own.
//
// A task starts when it is awaited or when `get()` runs it. `get()` runs the whole coroutine on the calling thread
// and drives the connection from there, so that a `co_await` costs no hop to another thread.
#pragma once

#include <atomic>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "echomq/detail/call.hpp"

namespace echomq {
inline namespace v1 {

template <typename T>
class Task;

namespace detail {

/// What the promise of any `Task` has: who continues when it ends, and whether it ended while being started.
class TaskPromiseBase {
 public:
  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }

  struct FinalAwaiter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> self) const noexcept {
      self.promise().finish();
    }
    void await_resume() const noexcept {}
  };
  [[nodiscard]] FinalAwaiter final_suspend() const noexcept { return {}; }

  /// Registers who continues. False when the task has ended already.
  [[nodiscard]] bool set_waiter(std::coroutine_handle<> waiter) noexcept {
    waiter_ = waiter;
    return !ended_or_awaited_.exchange(true, std::memory_order_acq_rel);
  }
  void set_loop(LocalLoop* loop) noexcept { loop_ = loop; }

 private:
  void finish() noexcept {
    if (loop_ != nullptr) {
      loop_->finish();
      return;
    }
    // The second of {end, await} goes on; a task that ends while it is being started lets its starter go on.
    if (ended_or_awaited_.exchange(true, std::memory_order_acq_rel))
      waiter_.resume();
  }

  std::coroutine_handle<> waiter_;
  LocalLoop* loop_ = nullptr;
  std::atomic<bool> ended_or_awaited_{false};
};

template <typename T>
class TaskPromise : public TaskPromiseBase {
 public:
  [[nodiscard]] Task<T> get_return_object() noexcept;
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }
  template <typename U>
    requires std::is_constructible_v<T, U&&>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  [[nodiscard]] T take() {
    if (exception_)
      std::rethrow_exception(exception_);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  std::exception_ptr exception_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  [[nodiscard]] Task<void> get_return_object() noexcept;
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }
  void return_void() noexcept {}
  void take() {
    if (exception_)
      std::rethrow_exception(exception_);
  }

 private:
  std::exception_ptr exception_;
};

}  // namespace detail

/// A coroutine that gives a `T`. Lazy, move-only; destroying a task that has not ended destroys its frame, so keep it
/// until it has. An exception of the body comes out of `get()` or of the `co_await`.
template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::TaskPromise<T>;

  explicit Task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_)
      handle_.destroy();
  }

  /// Runs the task on this thread until it ends; everything it awaits continues here. Not on a library thread.
  T get() {
    {
      detail::LocalLoop loop;
      handle_.promise().set_loop(&loop);
      handle_.resume();
      loop.run();
    }
    return handle_.promise().take();
  }

  // Awaiting starts the task on this thread. A task that ends at once does not suspend its caller.
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> waiter) noexcept {
    handle_.resume();
    return handle_.promise().set_waiter(waiter);
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {
template <typename T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<TaskPromise<T>>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise<void>>::from_promise(*this));
}
}  // namespace detail

}  // namespace v1
}  // namespace echomq
