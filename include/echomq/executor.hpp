// Where continuations run: the seam between the library's threads and the user's.
#pragma once

#include <functional>

namespace echomq {
inline namespace v1 {

/// A continuation that is ready to run: run it exactly once, on whatever thread. Two words, trivially copyable.
class Continuation {
 public:
  using Function = void (*)(void*) noexcept;
  constexpr Continuation(Function function, void* argument) noexcept : function_(function), argument_(argument) {}
  void operator()() const noexcept { function_(argument_); }

 private:
  Function function_;
  void* argument_;
};

/// Takes a continuation and runs it later, on a thread that is not the caller's. It is called on the thread that
/// reads the socket, so it must not block and must not run the continuation itself. Must be thread-safe.
using Post = std::function<void(Continuation)>;

}  // namespace v1
}  // namespace echomq
