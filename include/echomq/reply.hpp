// `Reply<T>`: the answer of a call that has already started.
//
// A call that talks to the server starts at once and gives a `Reply`; a loop of such calls is one pipeline without
// anyone asking. Take the answer in whichever way fits: `.get()`, `co_await`, `.then(f)`, `.get_for(d)`; or let it
// go with `.detach()`.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "echomq/detail/call.hpp"
#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {

/// The answer of one call: a `Result<T>`, now or later.
///
/// Move-only. Exactly one of `get`, a `get_for` that has the answer, `co_await`, `then` or `detach` takes it. One
/// allocation at most, none when the answer was known at once (bad input, closed client).
/// Thread safety: a `Reply` belongs to one thread at a time; the answer may come on any.
/// Dropping a `Reply` is the same as `detach()`: the call goes on.
template <typename T>
class [[nodiscard]] Reply {
 public:
  using value_type = T;

  /// An answer that is known already.
  Reply(Result<T> ready) : ready_(std::move(ready)) {}  // NOLINT(google-explicit-constructor): `return fail(...)`
  Reply(std::unexpected<Error> error) : ready_(Result<T>(std::move(error))) {}  // NOLINT(google-explicit-constructor)
  explicit Reply(detail::CallPointer<detail::CallOf<T>> call) noexcept : call_(std::move(call)) {}

  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&&) noexcept = default;
  ~Reply() = default;

  /// Whether the answer is here.
  [[nodiscard]] bool ready() const noexcept { return !call_ || call_->done(); }

  /// Waits for the answer. On an idle connection this thread reads the socket itself.
  /// Errors: those of the call, and `would_deadlock` on a thread of the library.
  [[nodiscard]] Result<T> get() {
    if (call_ && !call_->done()) {
      if (detail::on_library_thread())
        return blocked();
      (void)call_->wait(detail::Clock::time_point::max());
    }
    return take();
  }

  /// Waits no longer than `limit`; the call itself goes on and can still be taken later.
  [[nodiscard]] std::optional<Result<T>> get_for(std::chrono::nanoseconds limit) {
    if (call_ && !call_->done()) {
      if (detail::on_library_thread())
        return blocked();
      if (!call_->wait(detail::Clock::now() + limit))
        return std::nullopt;
    }
    return take();
  }

  /// Runs `f(Result<T>)` on the client's executor when the answer is here, also when it is here already.
  /// Whoever calls this keeps the client, or what was made of it (a queue, a worker, a table), until it has returned.
  /// An exception that leaves `f` ends the process.
  template <std::invocable<Result<T>> F>
  void then(F f) && {
    struct Bound {
      detail::CallPointer<detail::CallOf<T>> call;
      F function;
      static void run(void* self) noexcept {
        std::unique_ptr<Bound> bound(static_cast<Bound*>(self));
        bound->function(bound->call->take());
      }
    };
    if (!call_) {
      f(std::move(*ready_));
      return;
    }
    detail::CallOf<T>* call = call_.get();
    auto bound = std::make_unique<Bound>(std::move(call_), std::move(f));
    const Continuation continuation(&Bound::run, bound.get());
    Bound* raw = bound.release();
    if (!call->on_done(call->default_target, continuation)) {
      if (call->default_target != nullptr) {
        call->default_target->post(continuation);
      } else {
        Bound::run(raw);
      }
    }
  }

  /// Lets the call go on without anyone waiting for its answer.
  void detach() && {
    call_ = {};
    ready_.reset();
  }

  /// Ends the call if its request is not written yet (`cancelled`); a written one ends with `outcome_unknown`.
  void cancel() noexcept {
    if (call_)
      call_->cancel();
  }

  // An awaiter for any coroutine that takes awaiters. `await_suspend` gives bool, so that a million ready answers
  // need no more stack than one.
  [[nodiscard]] bool await_ready() const noexcept { return ready(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> coroutine) noexcept {
    detail::Target* target = call_->default_target;
    if (detail::LocalLoop* loop = detail::LocalLoop::current(); loop != nullptr) {
      loop->waits_for(call_->source);
      target = loop;
    }
    return call_->on_done(target, Continuation(&resume, coroutine.address()));
  }
  [[nodiscard]] Result<T> await_resume() { return take(); }

 private:
  static void resume(void* address) noexcept { std::coroutine_handle<>::from_address(address).resume(); }

  [[nodiscard]] Result<T> take() {
    if (call_) {
      detail::CallPointer<detail::CallOf<T>> call = std::move(call_);
      return call->take();
    }
    if (!ready_)
      return fail(Errc::invalid_argument, "the answer of this Reply was taken before");
    Result<T> out = std::move(*ready_);
    ready_.reset();
    return out;
  }
  [[nodiscard]] static Result<T> blocked() {
    return fail(Errc::would_deadlock, "use co_await or then() on a thread of the library");
  }

  detail::CallPointer<detail::CallOf<T>> call_;
  std::optional<Result<T>> ready_;
};

}  // namespace v1
}  // namespace echomq
