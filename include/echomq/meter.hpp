// `Meter`: named measurements from whoever makes them to whoever listens, within one process. Nothing of it is on the wire.
//
// Names are those of the protocol: `job.add`, `job.start`, `job.complete`, `job.fail`, `job.retry`, `worker.start`,
// `worker.stop`, `rate_limit.hit`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace echomq {
inline namespace v1 {

/// One event. All of it is valid for the call of the handler only.
struct Measured {
  std::string_view event;
  std::span<const std::pair<std::string_view, std::int64_t>> values;      ///< such as `duration`
  std::span<const std::pair<std::string_view, std::string_view>> labels;  ///< such as `queue`, `job_id`

  /// The value of that name, null when there is none.
  [[nodiscard]] const std::int64_t* value(std::string_view name) const noexcept;
  /// The label of that name; empty when there is none.
  [[nodiscard]] std::string_view label(std::string_view name) const noexcept;
};

/// Copies share their listeners. Thread-safe; handlers run in the thread that emits, side by side.
class Meter {
  struct State;

 public:
  using Handler = std::function<void(const Measured&)>;

  /// Listens until it is destroyed. A call that has begun by then ends on its own.
  class Attachment {
   public:
    Attachment() = default;
    Attachment(Attachment&& other) noexcept;
    Attachment& operator=(Attachment&& other) noexcept;
    ~Attachment();

   private:
    friend class Meter;
    Attachment(std::weak_ptr<State> state, std::uint64_t number) : state_(std::move(state)), number_(number) {}
    std::weak_ptr<State> state_;
    std::uint64_t number_ = 0;
  };

  Meter();

  /// Calls `handler` for every event of that name.
  [[nodiscard]] Attachment attach(std::string_view event, Handler handler) const;
  /// Gives the number of handlers that took it. One that throws is counted in `failures`, and the others still get theirs.
  std::size_t emit(const Measured& measured) const;
  [[nodiscard]] std::uint64_t failures() const noexcept;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
