// Every key of a queue and of the deployment, from one table (protocol document 1, sections 2 and 3).
//
// `QueueKeys` makes the fixed keys of a queue once; keys with an id or a name in them are written into a small buffer
// on the caller's stack. `classify` reads a key back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "keyspace/slot.hpp"

namespace echomq {
inline namespace v1 {
namespace keyspace {

/// What a key is. The fixed keys of a queue come first: they are what `QueueKeys` holds ready.
enum class KeyType : std::uint8_t {
  pending,
  active,
  schedule,
  dead,
  ring,
  wake,
  paused,
  glimit,
  gactive,
  gweight,
  meta,
  limiter,
  metrics_completed,
  metrics_failed,
  metrics_completed_data,
  metrics_failed_data,
  repeat,
  flow_outbox,
  events,
  cancel,
  parked,
  metrics_repaired,
  ended,
  upkeep,
  retention,
  retention_swept,
  streams,
  log,
  logging,
  // With an id or a name.
  job,
  job_logs,
  job_lock,
  job_dependencies,
  job_processed,
  job_failed,
  job_unsuccessful,
  lane,
  dedup,
  repeat_record,
  stream,
  stream_archived,
  archive,
  result,
  once,
  once_ages,
  // Of the deployment.
  version,
  locks,
  bundle,
  migration,
  nodes,
  // The sibling family.
  cache,
  cache_base,
  cache_extension,
  cache_load,
  cache_loads,
  cache_tag,
  cache_tagdrop,
  cache_tagfloor,
  cache_tagdrops,
  cache_stats,
  unclassified,
};
inline constexpr auto kFixedKeys = static_cast<std::size_t>(KeyType::job);
inline constexpr auto kKeyTypes = static_cast<std::size_t>(KeyType::unclassified);

/// What kind of value the server holds under a key.
enum class ValueType : std::uint8_t { zset, list, set, hash, string, stream, channel, none };
/// The server's word (`TYPE`), `channel` for a pub/sub channel, `none` for a name that is only reserved.
[[nodiscard]] std::string_view to_string(ValueType type) noexcept;

/// One row of the table.
struct KeySpec {
  KeyType type;
  /// The type's name in `protocol/keys.json`: `metrics:failed`, `logs`.
  std::string_view name;
  /// The template in `protocol/keys.json`: `emq:{q}:job:<id>:logs`.
  std::string_view key;
  ValueType holds;
  /// Ours, not of the canonical keyspace.
  bool extension = false;
};
/// All key types, in the order of `KeyType`.
[[nodiscard]] std::span<const KeySpec, kKeyTypes> key_table() noexcept;
[[nodiscard]] const KeySpec& spec(KeyType type) noexcept;

/// The closed set of what hangs below a job's row.
enum class Subkey : std::uint8_t { logs, lock, dependencies, processed, failed, unsuccessful };
inline constexpr std::size_t kSubkeys = 6;
/// The subkey's word, without the colon before it.
[[nodiscard]] std::string_view to_string(Subkey subkey) noexcept;

inline constexpr std::string_view kVersionKey = "{emq}:version";
inline constexpr std::string_view kLocksKey = "{emq}:locks";
inline constexpr std::string_view kBundleKey = "{emq}:bundle";
inline constexpr std::string_view kNodesKey = "{emq}:nodes";  ///< extension: leases of minting node ids

/// The bytes of a key, held inline up to `kInline` of them, on the heap beyond. Views end with the object.
class KeyText {
 public:
  static constexpr std::size_t kInline = 200;

  /// The concatenation.
  template <typename... Parts>
  static KeyText of(const Parts&... parts) {
    KeyText key;
    char* at = key.make_room((std::string_view(parts).size() + ...));
    ((at = append(at, parts)), ...);
    return key;
  }

  [[nodiscard]] std::string_view view() const noexcept {
    return large_.empty() ? std::string_view(small_.data(), size_) : std::string_view(large_);
  }
  operator std::string_view() const noexcept { return view(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::string str() const { return std::string(view()); }

  KeyText(const KeyText& other) : size_(other.size_), large_(other.large_) {
    if (large_.empty())
      std::memcpy(small_.data(), other.small_.data(), size_);
  }
  KeyText& operator=(const KeyText& other) {
    if (this == &other)
      return *this;
    large_ = other.large_;
    size_ = other.size_;
    if (large_.empty())
      std::memcpy(small_.data(), other.small_.data(), size_);
    return *this;
  }
  ~KeyText() = default;

 private:
  KeyText() noexcept {}  // NOLINT: the buffer is left as it is
  [[nodiscard]] char* make_room(std::size_t size);
  [[nodiscard]] static char* append(char* at, std::string_view part) noexcept {
    if (!part.empty())
      std::memcpy(at, part.data(), part.size());
    return at + part.size();
  }

  std::array<char, kInline> small_;
  std::size_t size_ = 0;
  std::string large_;  // all of it, when it does not fit
};

/// The keys of one queue. Copyable; thread-safe once made; references live as long as the object.
class QueueKeys {
 public:
  explicit QueueKeys(const QueueName& queue);

  [[nodiscard]] const QueueName& queue() const noexcept { return queue_; }
  /// The slot that all keys of the queue share.
  [[nodiscard]] std::uint16_t slot() const noexcept { return slot_; }

  /// `emq:{q}:`, the prefix that scripts derive keys from; never holds a value.
  [[nodiscard]] const std::string& base() const noexcept { return base_; }
  /// `emq:{q}:job:`.
  [[nodiscard]] const std::string& job_prefix() const noexcept { return job_prefix_; }

  [[nodiscard]] const std::string& pending() const noexcept { return fixed(KeyType::pending); }
  [[nodiscard]] const std::string& active() const noexcept { return fixed(KeyType::active); }
  [[nodiscard]] const std::string& schedule() const noexcept { return fixed(KeyType::schedule); }
  [[nodiscard]] const std::string& dead() const noexcept { return fixed(KeyType::dead); }
  [[nodiscard]] const std::string& ring() const noexcept { return fixed(KeyType::ring); }
  [[nodiscard]] const std::string& wake() const noexcept { return fixed(KeyType::wake); }
  [[nodiscard]] const std::string& paused() const noexcept { return fixed(KeyType::paused); }
  [[nodiscard]] const std::string& glimit() const noexcept { return fixed(KeyType::glimit); }
  [[nodiscard]] const std::string& gactive() const noexcept { return fixed(KeyType::gactive); }
  [[nodiscard]] const std::string& gweight() const noexcept { return fixed(KeyType::gweight); }
  [[nodiscard]] const std::string& meta() const noexcept { return fixed(KeyType::meta); }
  [[nodiscard]] const std::string& limiter() const noexcept { return fixed(KeyType::limiter); }
  [[nodiscard]] const std::string& metrics_completed() const noexcept { return fixed(KeyType::metrics_completed); }
  [[nodiscard]] const std::string& metrics_failed() const noexcept { return fixed(KeyType::metrics_failed); }
  [[nodiscard]] const std::string& metrics_completed_data() const noexcept {
    return fixed(KeyType::metrics_completed_data);
  }
  [[nodiscard]] const std::string& metrics_failed_data() const noexcept { return fixed(KeyType::metrics_failed_data); }
  [[nodiscard]] const std::string& repeat() const noexcept { return fixed(KeyType::repeat); }
  [[nodiscard]] const std::string& flow_outbox() const noexcept { return fixed(KeyType::flow_outbox); }
  /// A channel, not a key.
  [[nodiscard]] const std::string& events() const noexcept { return fixed(KeyType::events); }
  /// Extension: a channel, on which running jobs are asked to stop.
  [[nodiscard]] const std::string& cancel() const noexcept { return fixed(KeyType::cancel); }
  /// Extension: when the periodic work of the queue was done last.
  [[nodiscard]] const std::string& upkeep() const noexcept { return fixed(KeyType::upkeep); }
  /// Extension: retention policies by stream, for whoever sweeps.
  [[nodiscard]] const std::string& retention() const noexcept { return fixed(KeyType::retention); }
  /// Extension: when which stream was swept last.
  [[nodiscard]] const std::string& retention_swept() const noexcept { return fixed(KeyType::retention_swept); }
  /// Extension: names of streams that subjects were appended to.
  [[nodiscard]] const std::string& streams() const noexcept { return fixed(KeyType::streams); }
  /// Extension: what became of the queue's jobs, a stream; and the hash whose existence turns that on.
  [[nodiscard]] const std::string& log() const noexcept { return fixed(KeyType::log); }
  [[nodiscard]] const std::string& logging() const noexcept { return fixed(KeyType::logging); }
  /// Extension: workers that sleep on `wake`.
  [[nodiscard]] const std::string& parked() const noexcept { return fixed(KeyType::parked); }
  /// Extension, a channel: ids of jobs whose `result` was just written.
  /// Extension, a channel: ids of jobs that have ended.
  [[nodiscard]] const std::string& ended() const noexcept { return fixed(KeyType::ended); }
  /// Any of the above by its type; `type` is one of the first `kFixedKeys`.
  [[nodiscard]] const std::string& fixed(KeyType type) const noexcept { return fixed_[static_cast<std::size_t>(type)]; }

  /// `emq:{q}:job:<id>`.
  [[nodiscard]] KeyText job(const BrandedId& id) const { return KeyText::of(job_prefix_, id.text()); }
  /// `emq:{q}:job:<id>:<subkey>`.
  [[nodiscard]] KeyText job_sub(const BrandedId& id, Subkey subkey) const {
    return KeyText::of(job_prefix_, id.text(), ":", to_string(subkey));
  }
  /// `emq:{q}:g:<group>:pending`.
  [[nodiscard]] KeyText lane(const BrandedId& group) const {
    return KeyText::of(base_, "g:", group.text(), ":pending");
  }
  /// Extension: `emq:{q}:result:<id>`.
  /// `emq:{q}:result:<id>`; extension.
  [[nodiscard]] KeyText result(const BrandedId& id) const { return KeyText::of(base_, "result:", id.text()); }
  /// `emq:{q}:de:<did>`.
  [[nodiscard]] KeyText dedup(const DedupId& id) const { return KeyText::of(base_, "de:", id.text()); }
  /// `emq:{q}:repeat:<name>`. The name is the caller's to check: other runtimes take any bytes.
  [[nodiscard]] KeyText repeat_record(std::string_view name) const { return KeyText::of(base_, "repeat:", name); }
  /// `emq:{q}:stream:<name>`. The name is the caller's to check: other runtimes take any bytes.
  [[nodiscard]] KeyText stream(std::string_view name) const { return KeyText::of(base_, "stream:", name); }
  /// `emq:{q}:stream:<name>:archived`.
  [[nodiscard]] KeyText stream_archived(std::string_view name) const {
    return KeyText::of(base_, "stream:", name, ":archived");
  }
  /// Extension: `emq:{q}:archive:<name>`, the lease of its archiver.
  [[nodiscard]] KeyText archive(std::string_view stream) const { return KeyText::of(base_, "archive:", stream); }
  /// Extension: `emq:{q}:once:<name>`, callers' keys of a stream's records, and `emq:{q}:once-ages:<name>`, when they were used.
  [[nodiscard]] KeyText once(std::string_view stream) const { return KeyText::of(base_, "once:", stream); }
  [[nodiscard]] KeyText once_ages(std::string_view stream) const { return KeyText::of(base_, "once-ages:", stream); }

 private:
  QueueName queue_;
  std::uint16_t slot_;
  std::string base_;
  std::string job_prefix_;
  std::array<std::string, kFixedKeys> fixed_;
};

/// `{emq}:migration:<q>`, reserved.
[[nodiscard]] KeyText migration_key(const QueueName& queue);

/// What a key says about itself. Views point into the key.
struct KeyInfo {
  KeyType type = KeyType::unclassified;
  /// The queue's name, for a cache row its table; empty for keys of the deployment.
  std::string_view queue;
  /// The job id, group, dedup id, cache id, or name of a repeat, stream or tag; empty for fixed keys.
  std::string_view part;
};
/// Reads a key. `unclassified` for everything that is not exactly of the grammar: a wrong queue name, an id that is no
/// branded id, an unknown subkey.
[[nodiscard]] KeyInfo classify(std::string_view key) noexcept;

}  // namespace keyspace
}  // namespace v1
}  // namespace echomq
