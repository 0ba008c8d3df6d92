// How a job is run, as names and values of its row: what admission scripts take.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/queue.hpp"
#include "queue/arguments.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Errors: invalid_argument naming the option and its value. `in` is the time until the job is due.
[[nodiscard]] Result<void> check_run(const RunOptions& run, std::optional<Milliseconds> in = {});

/// Name, value, name, value... Points into the options, and into itself.
class RunFields {
 public:
  static constexpr std::size_t kMost = 6;

  RunFields() = default;
  explicit RunFields(const RunOptions& run) { set(run); }
  RunFields(const RunFields&) = delete;
  RunFields& operator=(const RunFields&) = delete;

  void set(const RunOptions& run);
  [[nodiscard]] std::span<const std::string_view> parts() const noexcept { return {parts_.data(), size_}; }

 private:
  void add(std::string_view name, std::string_view value) noexcept {
    parts_[size_++] = name;
    parts_[size_++] = value;
  }

  std::array<Decimal, 4> numbers_{Decimal(0), Decimal(0), Decimal(0), Decimal(0)};
  std::array<std::string_view, 2 * kMost> parts_;
  std::size_t size_ = 0;
};

/// What follows id and payload in a record of `admit` in its mode `each`: group, mode, value, the number of fields, and
/// these. Points into what it was set from, and into itself.
class RecordTail {
 public:
  RecordTail() = default;
  RecordTail(const RecordTail&) = delete;
  RecordTail& operator=(const RecordTail&) = delete;

  void set(const std::optional<LaneId>& lane, std::optional<Instant> at, std::optional<Milliseconds> in,
           const RunOptions& run);
  [[nodiscard]] std::span<const std::string_view> parts() const noexcept { return {parts_.data(), size_}; }

 private:
  static constexpr std::size_t kHead = 4;

  RunFields fields_;
  Decimal value_{0};
  Decimal count_{0};
  std::array<std::string_view, kHead + 2 * RunFields::kMost> parts_;
  std::size_t size_ = 0;
};

/// The same for a job whose admission takes steps: owns its texts.
class OwnRunFields {
 public:
  OwnRunFields() = default;
  explicit OwnRunFields(const RunOptions& run) {
    if (!run.any())
      return;
    const RunFields fields(run);
    texts_.assign(fields.parts().begin(), fields.parts().end());
  }
  [[nodiscard]] bool empty() const noexcept { return texts_.empty(); }
  [[nodiscard]] const std::vector<std::string>& texts() const noexcept { return texts_; }
  void append_to(std::vector<std::string_view>& arguments) const {
    arguments.insert(arguments.end(), texts_.begin(), texts_.end());
  }

 private:
  std::vector<std::string> texts_;
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
