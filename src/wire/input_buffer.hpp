// The bytes received and not yet consumed: one growing block, moved down instead of copied around.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

namespace echomq {
inline namespace v1 {
namespace wire {

class InputBuffer {
 public:
  static constexpr std::size_t kUsual = std::size_t{64} << 10;

  [[nodiscard]] const char* data() const noexcept { return bytes_.get() + begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return end_ - begin_; }

  /// Room for at least `least` more bytes; what is in the buffer may move.
  [[nodiscard]] char* reserve(std::size_t least) {
    if (capacity_ - end_ < least) {
      const std::size_t used = size();
      if (capacity_ >= used + least && begin_ > 0) {
        std::memmove(bytes_.get(), bytes_.get() + begin_, used);
      } else {
        std::size_t grown = capacity_ == 0 ? kUsual : capacity_ * 2;
        while (grown < used + least)
          grown *= 2;
        auto larger = std::make_unique_for_overwrite<char[]>(grown);
        if (used > 0)
          std::memcpy(larger.get(), bytes_.get() + begin_, used);
        bytes_ = std::move(larger);
        capacity_ = grown;
      }
      begin_ = 0;
      end_ = used;
    }
    return bytes_.get() + end_;
  }
  [[nodiscard]] std::size_t room() const noexcept { return capacity_ - end_; }
  void commit(std::size_t count) noexcept { end_ += count; }
  void consume(std::size_t count) noexcept {
    begin_ += count;
    if (begin_ == end_) {
      begin_ = end_ = 0;
      // One huge reply must not keep its block for ever.
      if (capacity_ > 16 * kUsual) {
        bytes_.reset();
        capacity_ = 0;
      }
    }
  }
  void clear() noexcept { begin_ = end_ = 0; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
