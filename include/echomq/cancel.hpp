// `CancelToken`: a request to stop, passed within one process. Purely local: nothing of it is on the wire.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace echomq {
inline namespace v1 {

/// What `CancelToken::throw_if_cancelled` throws. Out of a handler it is a retry with this text, as any exception.
class Cancelled : public std::runtime_error {
 public:
  explicit Cancelled(std::string reason);
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::string reason_;
};

/// Copies share one request; tokens made apart do not touch each other. Thread-safe.
class CancelToken {
 public:
  CancelToken();

  /// Asks for a stop. A request that nobody has taken yet is replaced.
  void cancel(std::string reason = {}) const;
  /// Takes the request: its reason, or nothing. A second call gives nothing until somebody cancels again.
  [[nodiscard]] std::optional<std::string> take() const;
  /// Takes the request as an exception: `Cancelled`, "job cancelled: <reason>".
  void throw_if_cancelled() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
