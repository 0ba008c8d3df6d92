// `Archiver`: folds the records of a stream into its archive, and then, by choice, trims the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "echomq/archive.hpp"
#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/retention.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// When what was written is made to survive a loss of power. The watermark moves only after that, except with `never`,
/// where a crash of the process loses nothing and a loss of power may lose what was folded last and trimmed.
enum class Durability : std::uint8_t { each_fold, interval, never };

struct ArchiverOptions {
  /// What is kept on the stream; the rest goes once it is archived (`archived_only` is always on here). Absent: nothing
  /// is trimmed here.
  std::optional<RetentionPolicy> retention{};
  /// How often the background thread folds; >= 10 ms.
  Milliseconds period{1000};
  /// Only records whose entry ids are so old, by this host's clock, are folded; >= 0.
  Milliseconds settle{0};
  /// A frame, the unit that is compressed and read: at most so many records, and cut when its lines reach so many
  /// bytes; >= 1.
  std::uint32_t frame_records = 1000;
  std::uint32_t frame_bytes = 1U << 20;
  /// A file is sealed and the next one begun when it has reached so many bytes, compressed; >= 1.
  std::uint64_t segment_bytes = std::uint64_t{64} << 20;
  int level = 3;  ///< of zstd, 1 to 19
  Durability durability = Durability::each_fold;
  Milliseconds sync_interval{1000};  ///< for `Durability::interval`; >= 1 ms
  /// How long the stream stays this archiver's when it says nothing more (it died); 1 s to 1 h. Renewed while it folds.
  Milliseconds lease{30000};
  /// Begins an empty archive behind a watermark that stands already. Without it that is an error: records up to it are
  /// in an archive, and not in this one.
  bool continue_at_watermark = false;
  /// Told of each step of a fold, on the thread that folds: `read`, `written`, `indexed`, `synced`, `marked`,
  /// `trimmed`.
  std::function<void(std::string_view step)> on_step{};
  Log log{};  ///< errors of the background thread, each kind once in a row
};

/// What a fold, or all folds of an archiver, have done.
struct FoldReport {
  std::uint64_t folded = 0;   ///< records
  std::uint64_t trimmed = 0;  ///< records
  std::uint64_t bytes = 0;    ///< written, compressed
  std::uint64_t cut = 0;      ///< bytes of torn tails that were cut off, to be folded again
};

struct ArchiverStats {
  FoldReport total;
  std::uint64_t folds = 0;
  std::uint64_t held = 0;    ///< folds that found another archiver at work
  std::uint64_t errors = 0;  ///< folds that failed otherwise
  /// Of the last fold, or of the stop, which makes durable and counts what was written; absent when all is well.
  std::optional<Error> failure;
};

/// One archiver of a stream. Of several in any processes one is at work, the others stand by (script `archive_lease`);
/// what two write at the same time all the same does not count twice: files are locked, objects made only if absent,
/// the watermark is moved by the holder of the lease from where it stood (`archive_mark`).
///
/// A crash at any moment loses nothing: the watermark follows the files, the stream is trimmed by the watermark only, a
/// torn tail of a file is cut off and folded again. Move-only; the destructor stops it.
class Archiver {
 public:
  /// Takes nothing yet. Errors: invalid_argument, naming the option.
  [[nodiscard]] static Result<Archiver> make(const Stream& stream, std::shared_ptr<SegmentStore> store,
                                             ArchiverOptions options = {});
  Archiver(Archiver&&) noexcept;
  Archiver& operator=(Archiver&&) noexcept;
  ~Archiver();

  /// Folds all that is there now, and trims. Errors: held (another archiver is at work), broken (the watermark is
  /// beyond the files, files are damaged or another stream's, or the stream ends before they do), storage_failed, broken_state (an entry whose id is no record's, such as
  /// of before 2024: it and what follows cannot be archived), and those of `Stream`.
  [[nodiscard]] Result<FoldReport> fold();
  /// Folds again and again on a thread of its own.
  void start();
  /// Ends the thread, makes durable what was written, and gives the lease back.
  void stop();
  [[nodiscard]] ArchiverStats stats() const;

 private:
  class Work;
  explicit Archiver(std::unique_ptr<Work> work) noexcept;
  std::unique_ptr<Work> work_;
};

}  // namespace v1
}  // namespace echomq
