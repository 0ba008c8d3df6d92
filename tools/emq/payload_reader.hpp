// Payloads from a file or a pipe: whole, or one a line in batches of bounded size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/error.hpp"

namespace emq {

/// The largest payload that is accepted: what a server takes in one string.
inline constexpr std::size_t kMaxPayload = (std::size_t{512} << 20) - 1024;

/// All that a descriptor has. Errors: invalid_argument.
[[nodiscard]] echomq::Result<std::string> read_all(int fd, std::string_view name);

/// From here on a first SIGINT or SIGTERM ends the reading, so that what was sent can be waited for and told. A second one
/// ends the process.
void stop_reading_on_signal();
/// Whether one has come.
[[nodiscard]] bool interrupted() noexcept;

/// Some lines, without their ends, in one piece of memory.
class LineBatch {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return ends_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return text_.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t index) const noexcept {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(text_).substr(begin, ends_[index] - begin);
  }
  void clear() noexcept {
    text_.clear();
    ends_.clear();
  }
  void append(std::string_view part) { text_ += part; }
  void end_line() { ends_.push_back(text_.size()); }
  [[nodiscard]] std::size_t open_line() const noexcept { return text_.size() - (ends_.empty() ? 0 : ends_.back()); }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;
};

class LineReader {
 public:
  LineReader(int fd, std::string name, char separator) : fd_(fd), name_(std::move(name)), separator_(separator) {}

  /// Fills the batch with lines until it has `max_lines`, or `max_bytes`, or the input pauses or ends. A last line
  /// without an end counts. False once there is nothing more. Errors: invalid_argument; `cancelled` when a signal came.
  [[nodiscard]] echomq::Result<bool> next(LineBatch& batch, std::size_t max_lines, std::size_t max_bytes);

  [[nodiscard]] std::uint64_t lines() const noexcept { return lines_; }

 private:
  int fd_;
  std::string name_;
  char separator_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::uint64_t lines_ = 0;
  bool ended_ = false;
};

}  // namespace emq
