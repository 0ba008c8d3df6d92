// A record that is to be appended and has no answer yet, and what one of `append_many` adds up to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/stream.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// The answer of `append_many`; complete when its last record is.
class ManyAppends final : public detail::CallOf<std::vector<Result<EventId>>> {
 public:
  explicit ManyAppends(std::size_t records) : results_(records), left_(records) {}
  void accept(const resp::View&) noexcept override {}
  void set(std::size_t index, Result<EventId> result);

 private:
  void destroy() noexcept override { delete this; }

  std::vector<Result<EventId>> results_;
  std::atomic<std::size_t> left_;
};

/// What a record that is appended once at most carries.
struct OnceKey {
  std::string key;
  std::string keys;  ///< the hash of the stream's window
  std::string ages;  ///< its zset
  OnceWindow window;
};

/// One record that is not settled yet. Its fields stand encoded behind it.
class WaitingRecord final : public detail::CallOf<EventId> {
 public:
  static WaitingRecord* make(std::span<const Field> fields, Milliseconds max_skew, detail::Clock::time_point deadline);
  /// Its answer goes to place `index` of `many`, which is retained.
  void answer_to(ManyAppends& many, std::size_t index) noexcept;

  void accept(const resp::View&) noexcept override {}
  /// Gives the answer and drops the writer's reference.
  void settle(Result<EventId> result);
  /// The same in two steps, for one that stands under its id.
  void answer_appended();
  void tell();
  [[nodiscard]] bool withdrawn() const noexcept { return many_ == nullptr && settled(); }

  [[nodiscard]] std::string_view encoded() const noexcept { return {request, request_size}; }
  /// Texts of the XADD behind its entry id, the `id` pair included.
  [[nodiscard]] std::size_t texts() const noexcept { return 2 + 2 * std::size_t{fields_}; }
  /// More than one script argument list may hold.
  [[nodiscard]] bool oversize() const noexcept { return texts() > 996; }

  // The writer's.
  std::uint64_t number = 0;  ///< in the order of the calls
  std::optional<EventId> id;
  std::uint64_t value = 0;     ///< of the id, where this client minted it
  bool refused_alone = false;  ///< as a plain XADD: it may be there already, after a lost answer
  bool maybe_there = false;    ///< it was written under this id, and may be so again
  bool overtaken = false;      ///< a later record stands: when it is not there itself, it cannot be appended any more
  std::uint8_t mints = 0;
  Milliseconds max_skew{};
  std::unique_ptr<const OnceKey> once;  ///< seldom there

 private:
  WaitingRecord() = default;
  ~WaitingRecord() override = default;
  void destroy() noexcept override;

  bool answered_ = false;
  std::uint32_t fields_ = 0;
  ManyAppends* many_ = nullptr;
  std::size_t index_ = 0;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
