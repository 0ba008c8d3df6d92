// A coroutine that nobody waits for: it begins at once, and its frame goes when it ends. It must not throw.
#pragma once

#include <coroutine>
#include <exception>

namespace echomq {
inline namespace v1 {
namespace client {

struct Detached {
  struct Promise {
    [[nodiscard]] Detached get_return_object() const noexcept { return {}; }
    [[nodiscard]] std::suspend_never initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
  using promise_type = Promise;
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
