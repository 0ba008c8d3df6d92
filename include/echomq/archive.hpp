// The archive of a stream: what it lies in, and reading it, alone or together with the live stream.
//
// Files that any tool reads: one JSON object a line, compressed by zstd (`zstdcat`), with an index of JSON lines beside
// them; docs/archive.md has the format. `Archiver` (archiver.hpp) writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// What goes wrong with archives alone; `error.code == ArchiveErrc::held`. Stable numbers, category `echomq.archive`.
enum class ArchiveErrc : int {
  held = 1,            ///< another archiver has the stream's lease, or its files
  broken = 2,          ///< files that do not fit their checksums, each other, the stream or its watermark
  storage_failed = 3,  ///< the file system, or whatever else an archive lies in, refused
};
[[nodiscard]] const std::error_category& archive_error_category() noexcept;
[[nodiscard]] inline std::error_code make_error_code(ArchiveErrc code) noexcept {
  return {static_cast<int>(code), archive_error_category()};
}

/// Where the archive of one stream lies: named objects of bytes. A local folder (`LocalSegments`), or an object store
/// of your own.
///
/// Calls come from one thread at a time. Errors: storage_failed, whose text names the object.
class SegmentStore {
 public:
  struct Object {
    std::string name;
    std::uint64_t size = 0;
  };
  enum class Put : std::uint8_t { if_absent, replace };

  SegmentStore() = default;
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;
  virtual ~SegmentStore() = default;

  /// All objects, in whatever order. Names are 1 to 64 bytes of letters, digits, `.`, `-`.
  [[nodiscard]] virtual Result<std::vector<Object>> list() = 0;
  /// Up to `size` bytes from `offset`; fewer only at the object's end.
  [[nodiscard]] virtual Result<std::string> get(std::string_view name, std::uint64_t offset, std::uint64_t size) = 0;
  /// Atomic and durable: once it returns the object is there whole, and nobody ever sees half of it. False when it was
  /// to be made only if absent and is there: of several that try, one succeeds (object stores: `If-None-Match: *`).
  /// That is what keeps two archivers from writing the same records.
  [[nodiscard]] virtual Result<bool> put(std::string_view name, std::string_view bytes, Put how) = 0;
  [[nodiscard]] virtual Result<void> remove(std::string_view name) = 0;

  /// Whether objects can grow. Where they cannot, each fold makes an object of its own: fold seldom then.
  [[nodiscard]] virtual bool appends() const noexcept { return false; }
  /// Adds to an object that has `at` bytes now, or makes it. Not atomic: a crash may leave a part.
  [[nodiscard]] virtual Result<void> append(std::string_view name, std::uint64_t at, std::string_view bytes);
  /// Shortens an object.
  [[nodiscard]] virtual Result<void> cut(std::string_view name, std::uint64_t size);
  /// What was appended survives a loss of power.
  [[nodiscard]] virtual Result<void> sync(std::string_view name);
  /// Keeps other archivers out as long as the answer lives. Errors: held. Stores whose objects do not grow need none.
  [[nodiscard]] virtual Result<std::shared_ptr<void>> lock();
};

/// A folder of the file system. One folder is for one stream.
class LocalSegments final : public SegmentStore {
 public:
  /// How objects are made: grown in place, or each at once as an object store does.
  enum class Growth : std::uint8_t { append, whole };

  /// Makes the folder when it is missing. Errors: storage_failed.
  [[nodiscard]] static Result<std::shared_ptr<LocalSegments>> open(std::string folder, Growth growth = Growth::append);
  /// For reading only: a missing folder is an error.
  [[nodiscard]] static Result<std::shared_ptr<LocalSegments>> open_existing(std::string folder);

  [[nodiscard]] Result<std::vector<Object>> list() override;
  [[nodiscard]] Result<std::string> get(std::string_view name, std::uint64_t offset, std::uint64_t size) override;
  [[nodiscard]] Result<bool> put(std::string_view name, std::string_view bytes, Put how) override;
  [[nodiscard]] Result<void> remove(std::string_view name) override;
  [[nodiscard]] bool appends() const noexcept override { return growth_ == Growth::append; }
  [[nodiscard]] Result<void> append(std::string_view name, std::uint64_t at, std::string_view bytes) override;
  [[nodiscard]] Result<void> cut(std::string_view name, std::uint64_t size) override;
  [[nodiscard]] Result<void> sync(std::string_view name) override;
  /// By `flock`, of a file in the folder: ends with the process, however that ends. None with `Growth::whole`.
  [[nodiscard]] Result<std::shared_ptr<void>> lock() override;

 private:
  LocalSegments(std::string folder, Growth growth);
  [[nodiscard]] Result<std::string> path_of(std::string_view name) const;
  [[nodiscard]] Result<void> sync_folder() const;

  const std::string folder_;
  const Growth growth_;
  std::uint64_t temporaries_ = 0;
  std::uint64_t instance_ = 0;        ///< random
  std::vector<std::string> lasting_;  ///< names whose place in the folder is durable
};

/// What part of a history is read, and which way.
struct HistoryRange {
  /// Raw bounds as those of `Stream::read`: `-`, `+`, `<ms>`, `<ms>-<tail>`, with `(` before it exclusive. `from` is
  /// the older one.
  std::string from = "-";
  std::string to = "+";
  Direction direction = Direction::oldest_first;

  /// Records minted from `begin` to `end`, both included; either may be absent. Errors: invalid_argument before 1970.
  [[nodiscard]] static Result<HistoryRange> between(std::optional<Instant> begin, std::optional<Instant> end);
};

/// Reads an archive, a frame at a time; of the index only what it needs. What an archiver adds meanwhile may or may not
/// be seen. Move-only.
class ArchiveReader {
 public:
  /// Errors: invalid_argument, storage_failed.
  [[nodiscard]] static Result<ArchiveReader> open(std::shared_ptr<SegmentStore> store, const HistoryRange& range = {});
  ArchiveReader(ArchiveReader&&) noexcept;
  ArchiveReader& operator=(ArchiveReader&&) noexcept;
  ~ArchiveReader();

  /// The next record; empty at the end. Errors: storage_failed; broken, naming the object and the place, also where a file in the range
  /// does not reach the next one.
  [[nodiscard]] Result<std::optional<Record>> next();

 private:
  struct State;
  explicit ArchiveReader(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// Reads the archive and the live stream as one history: each record once, in order, whatever an archiver folds and
/// trims meanwhile. Move-only. Blocking: not for the client's own threads.
class HistoryReader {
 public:
  /// `store` null: the live stream alone. Errors: invalid_argument.
  [[nodiscard]] static Result<HistoryReader> open(const Stream& stream, std::shared_ptr<SegmentStore> store,
                                                  const HistoryRange& range = {});
  HistoryReader(HistoryReader&&) noexcept;
  HistoryReader& operator=(HistoryReader&&) noexcept;
  ~HistoryReader();

  /// The next record; empty at the end. Errors: those of `ArchiveReader` and of `Stream`; broken when records count as
  /// archived that this archive does not have, when it is another stream's, and when the stream ends before its archive.
  [[nodiscard]] Result<std::optional<Record>> next();

 private:
  struct State;
  explicit HistoryReader(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// What `verify_archive` has found.
struct ArchiveReport {
  std::uint64_t segments = 0;
  std::uint64_t frames = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;          ///< compressed
  std::uint64_t raw_bytes = 0;      ///< of the lines
  std::string first, last;          ///< entry ids; empty for an empty archive
  std::vector<std::string> faults;  ///< sentences; empty when all is well
};

/// Reads all of it: checksums of frames and of sealed files, order of records, and that each file begins where the one
/// before it ends. Errors: storage_failed.
[[nodiscard]] Result<ArchiveReport> verify_archive(SegmentStore& store);

}  // namespace v1
}  // namespace echomq

template <>
struct std::is_error_code_enum<echomq::ArchiveErrc> : std::true_type {};
