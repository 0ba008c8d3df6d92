// How a call is made: its request encoded into the same allocation as its state, its answer decoded by a callable.
#pragma once

#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "echomq/detail/call.hpp"
#include "echomq/error.hpp"
#include "resp/encode.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// How one call travels. Trivially copyable.
struct CallSettings {
  /// Whether a lost answer lets the wire send the request again. Safe: reads, admissions by id, settles by token.
  Repeat repeat = Repeat::unsafe;
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;
  /// A command that parks its connection (BLPOP).
  bool blocking = false;
  /// Counted against a bound of the caller's own: the connection's neither stops nor refuses it.
  bool past_bound = false;
  /// Past that bound too, but sent as any call: by the caller's thread when it can be.
  bool never_refused = false;
};

/// What the decoder of a call sees.
struct Answer {
  const resp::View& view;
  /// The request was sent more than once: "gone" or "duplicate" may be the echo of the first execution.
  bool resent;
};

/// The error of an error reply: refusal classes and well-known server words by prefix, the text as it came.
[[nodiscard]] Error to_error(std::string_view server_text);

/// A call whose answer `Decode` turns into a `Result<T>`; an error reply never reaches the decoder unless
/// `kWantsErrors` (then it decodes every reply).
template <typename T, typename Decode, bool kWantsErrors = false>
class BoundCall final : public detail::CallOf<T> {
 public:
  static BoundCall* make(std::span<const std::string_view> parts, Decode decode) {
    const std::size_t size = resp::encoded_size(parts);
    BoundCall* call = allocate(size, std::move(decode));
    resp::encode_to(call->bytes(), parts);
    return call;
  }
  /// For a request of several commands encoded by the caller into `bytes()` (`replies` answers are awaited).
  static BoundCall* allocate(std::size_t size, Decode decode) {
    void* memory = ::operator new(sizeof(BoundCall) + size);
    auto* call = ::new (memory) BoundCall(std::move(decode));
    call->request = call->bytes();
    call->request_size = static_cast<std::uint32_t>(size);
    return call;
  }
  [[nodiscard]] char* bytes() noexcept { return reinterpret_cast<char*>(this + 1); }

  void accept(const resp::View& reply) noexcept override {
    if constexpr (!kWantsErrors) {
      if (reply.is_error()) {
        this->store(std::unexpected<Error>(to_error(reply.error_text())));
        this->publish();
        return;
      }
    }
    this->store(decode_(Answer{reply, this->resent}));
    this->publish();
  }

 private:
  explicit BoundCall(Decode decode) : decode_(std::move(decode)) {}
  void destroy() noexcept override {
    this->~BoundCall();
    ::operator delete(static_cast<void*>(this));
  }
  ~BoundCall() override = default;

  Decode decode_;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
