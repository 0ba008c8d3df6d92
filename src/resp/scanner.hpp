// Finds where a frame of the server's stream ends, however the stream is cut into chunks.
//
// Feed it the unconsumed bytes, always from the first byte of the current frame. It keeps offsets, not pointers, so the
// buffer may move between calls, and it never looks twice at what it has passed. A frame that it lets through is well
// formed in every byte: whoever reads it (view.hpp) need not check again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace resp {

/// What a frame may be at most. Beyond is an error: the stream is not a server's, or not for us.
struct Limits {
  std::size_t depth = 32;                           ///< nested aggregates, attributes included; at most 64
  std::uint64_t bulk = std::uint64_t{1} << 30;      ///< bytes of one string
  std::uint64_t elements = std::uint64_t{1} << 28;  ///< of one aggregate
  std::size_t line = std::size_t{64} << 10;         ///< bytes of a line: simple strings, errors, big numbers
  std::uint64_t frame = std::uint64_t{4} << 30;     ///< bytes of a whole frame
};

enum class Step : std::uint8_t {
  need_more,  ///< call again with more bytes behind the same ones
  frame,      ///< a frame is complete: `frame_size()`, `is_push()`
  error,      ///< not RESP, or beyond a limit: `error()`; the connection is of no more use
};

/// All types of RESP2 and RESP3. An attribute belongs to the value behind it: both are one frame.
class Scanner {
 public:
  using Step = resp::Step;

  Scanner() noexcept : Scanner(Limits{}) {}
  explicit Scanner(const Limits& limits) noexcept;

  /// Looks on in `[data, data + size)`, which begins with the current frame. After `frame` the next call begins a new
  /// one, so the caller drops `frame_size()` bytes in between. After `error` it answers `error` until `reset()`.
  [[nodiscard]] Step scan(const char* data, std::size_t size) noexcept;
  [[nodiscard]] Step scan(std::string_view bytes) noexcept { return scan(bytes.data(), bytes.size()); }

  /// The bytes of the frame just found.
  [[nodiscard]] std::size_t frame_size() const noexcept { return at_; }
  /// Whether the frame just found is out of band.
  [[nodiscard]] bool is_push() const noexcept { return push_; }
  /// Why the last step was `error`: a sentence, no bytes of the stream.
  [[nodiscard]] std::string_view error() const noexcept { return error_; }

  /// After `need_more`: how many bytes there must be from the frame's first byte on before a call can find anything
  /// new; what to make room for.
  [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }
  /// How far the frame is known; no byte before it is looked at again.
  [[nodiscard]] std::size_t position() const noexcept { return at_; }
  /// Forgets the current frame, for a new connection.
  void reset() noexcept;

 private:
  static constexpr std::size_t kMaxDepth = 64;
  enum class Form : std::uint8_t { counted, attribute, streamed, streamed_map, chunks };
  struct Level {
    std::uint64_t left;  // elements to come; of streamed ones: elements seen
    Form form;
  };
  enum class Found : std::uint8_t { yes, not_yet, broken };

  [[nodiscard]] Step fail(const char* why) noexcept;
  [[nodiscard]] Step wait_for(std::size_t bytes) noexcept;
  [[nodiscard]] Step scan_on(const char* data, std::size_t size) noexcept;
  [[nodiscard]] Found find_line(const char* data, std::size_t size, std::size_t& end) noexcept;
  [[nodiscard]] bool open(Form form, std::uint64_t elements) noexcept;
  [[nodiscard]] bool close_value() noexcept;

  Limits limits_;
  std::size_t at_ = 0;         // the header looked at next
  std::size_t line_seen_ = 0;  // how much of that header's line is known to hold no CR
  std::size_t wanted_ = 1;
  std::size_t depth_ = 0;
  const char* error_ = "";
  bool push_ = false;
  bool between_ = true;      // no frame is begun
  bool attributed_ = false;  // an attribute was read whose value is to come
  std::array<Level, kMaxDepth> levels_{};
};

}  // namespace resp
}  // namespace v1
}  // namespace echomq
