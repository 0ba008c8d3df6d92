// `Stream`: an append-only log of records beside a queue; and `StreamGroup`: consumers that share one.
//
// Every verb starts at once and gives a `Reply` (reply.hpp). Option structs are trivially copyable views: what they point
// at must live until the verb returns, not longer. A handle costs no round trip; the stream is made by its first record,
// or by the first group.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"

namespace echomq {
inline namespace v1 {

using Milliseconds = std::chrono::milliseconds;
/// An instant in Unix milliseconds. For streams it is the time at which a record's id was minted.
using Instant = UnixMillis;

/// The name of a stream within its queue: 1 to 255 bytes, not ending in `:archived`, which is the key of its watermark.
class StreamName : public detail::InlineName<255> {
 public:
  [[nodiscard]] static constexpr bool is_valid(std::string_view text) noexcept {
    return !text.empty() && text.size() <= kMaxSize && !text.ends_with(":archived");
  }
  /// A literal, checked by the compiler.
  template <std::size_t N>
  consteval StreamName(const char (&literal)[N]) : InlineName(checked({literal, N - 1})) {}  // NOLINT
  /// Errors: invalid_argument; the text names the value.
  [[nodiscard]] static Result<StreamName> parse(std::string_view text);

 private:
  constexpr explicit StreamName(std::string_view text) noexcept : InlineName(text) {}
  static consteval std::string_view checked(std::string_view text) {
    if (!is_valid(text))
      throw "not a stream name: 1 to 255 bytes that do not end in `:archived`";
    return text;
  }
};

/// One field of a record to append: name and value, any bytes.
using Field = std::pair<std::string_view, std::string_view>;

/// A record as it stands on the stream.
struct Record {
  /// The receipt. Absent in entries that somebody made without the protocol: no `id` field, or one that is no EVT id.
  std::optional<EventId> id;
  /// The server's entry id, `<ms>-<tail>`; follows from `id` in records of the protocol.
  std::string entry;
  /// In the order of writing, repeated names too; without the receipt and what it hides (later fields named `id`).
  std::vector<std::pair<std::string, std::string>> fields;

  /// The first value of that name, null when there is none.
  [[nodiscard]] const std::string* find(std::string_view name) const noexcept;
};

/// How long the keys of records that are appended `once` are remembered. All who append to a stream should use the same.
struct OnceWindow {
  /// So many keys, the oldest go first; 1 to 10,000,000. About 150 bytes each in the server, beside the key itself.
  std::uint32_t most = 100'000;
  /// So long, by the server's clock; 0: until they go by number. >= 0.
  Milliseconds age{std::chrono::hours{24}};

  friend constexpr bool operator==(const OnceWindow&, const OnceWindow&) noexcept = default;
};

/// How one record is appended.
struct AppendOptions {
  /// A record id of the caller's, such as one that another system gave. It is sent as it is: when the stream's newest
  /// record is not older, the answer is `nonmonotonic`. Absent: minted at the moment of sending.
  std::optional<EventId> id{};
  /// How far above this client's clock a minted id may be pushed to stand above what other hosts have written; >= 0.
  /// Ids of everything that this client mints afterwards are pushed with it.
  Milliseconds max_skew{5000};
  std::optional<Milliseconds> deadline{};  ///< of the call, >= 1 ms; the client's when absent
  /// A key of the caller's, 1 to 512 bytes, such as the id of the request that the record tells of: when a record was appended under
  /// it within `window`, the answer is the id of that one, and nothing is written, whoever appended it and however often. Empty: none. Not
  /// with `id`; with at most 497 fields.
  std::string_view once = {};
  OnceWindow window{};
};

/// One record of a batch. The views must live until `append_many` returns.
struct NewRecord {
  std::span<const Field> fields{};
  std::string_view once = {};  ///< as in `AppendOptions`
};

struct AppendManyOptions {
  Milliseconds max_skew{5000};
  std::optional<Milliseconds> deadline{};
  OnceWindow window{};  ///< of records with `once`
};

enum class Direction : std::uint8_t { oldest_first, newest_first };

struct ReadOptions {
  std::uint32_t count = 1000;  ///< of one page; >= 1
  Direction direction = Direction::oldest_first;
  std::optional<Milliseconds> deadline{};
};

/// Some records, and where the next ones are.
struct Page {
  std::vector<Record> records;
  /// Bounds of what is left, to be read by `read` in the same direction; absent when nothing was left.
  std::optional<std::pair<std::string, std::string>> rest;
};

/// How exact a trim is. Approximate ones remove whole nodes of the server's tree (100 entries by default) and may
/// leave up to one node too much; they cost a fraction.
enum class Trim : std::uint8_t { exact, approximate };

/// What a retention rule keeps of a stream.
class Window {
 public:
  enum class Kind : std::uint8_t { newest, since, last };

  /// The newest `count` records.
  [[nodiscard]] static constexpr Window newest(std::uint64_t count, Trim how = Trim::exact) noexcept {
    return {Kind::newest, how, count, 0};
  }
  /// Records minted at `instant` or later.
  [[nodiscard]] static constexpr Window since(Instant instant, Trim how = Trim::exact) noexcept {
    return {Kind::since, how, 0, instant.time_since_epoch().count()};
  }
  /// Records of the last `age`, counted back from the moment of the sweep.
  [[nodiscard]] static constexpr Window last(Milliseconds age, Trim how = Trim::exact) noexcept {
    return {Kind::last, how, 0, age.count()};
  }

  [[nodiscard]] constexpr Kind kind() const noexcept { return kind_; }
  [[nodiscard]] constexpr Trim how() const noexcept { return how_; }
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  /// The instant, or the age.
  [[nodiscard]] constexpr std::int64_t milliseconds() const noexcept { return milliseconds_; }

 private:
  constexpr Window(Kind kind, Trim how, std::uint64_t count, std::int64_t milliseconds) noexcept
      : kind_(kind), how_(how), count_(count), milliseconds_(milliseconds) {}

  Kind kind_;
  Trim how_;
  std::uint64_t count_;
  std::int64_t milliseconds_;
};

/// What the server says about a stream.
struct StreamInfo {
  bool exists = false;
  std::uint64_t length = 0;
  std::string top = "0-0";          ///< the highest entry id ever; later records must be above it
  std::string max_deleted = "0-0";  ///< the highest entry id that was removed alone (XDEL); trims do not move it
  std::uint64_t appended = 0;       ///< entries ever added, as far as the server knows
  std::uint64_t groups = 0;
  std::string first = {};  ///< the oldest entry id that is there; empty when there is none
};

/// What the server says about a consumer group.
struct GroupInfo {
  std::string name;
  std::uint64_t consumers = 0;
  std::uint64_t pending = 0;
  std::string last_delivered;
  /// Entries not delivered yet; absent when the server cannot tell.
  std::optional<std::uint64_t> lag;
};

/// What the server says about a consumer of a group.
struct ConsumerInfo {
  std::string name;
  std::uint64_t pending = 0;
  Milliseconds idle{};  ///< since it last asked for anything
  /// Since it was last given anything, or acknowledged; absent when it never was, or the server is older than 7.2.
  std::optional<Milliseconds> inactive;
};

/// Whether to remove what entries are pending in. They are handed out no more then.
enum class Removal : std::uint8_t {
  when_idle,  ///< refused while entries are pending
  forced,
};

/// What became of it.
struct GroupRemoval {
  bool removed = false;
  /// Entries that were pending: they are lost to the group when it was removed, and why it was not, when it was not. 0 and
  /// not removed: there was nothing to remove.
  std::uint64_t pending = 0;
};

class StreamGroup;

/// One stream of a queue. Cheap to copy; thread-safe; keeps the client's core alive, not open.
class Stream {
 public:
  [[nodiscard]] const QueueName& queue() const noexcept;
  [[nodiscard]] std::string_view name() const noexcept;

  // Thread safety: any number of threads may call any verb of one handle at the same time.
  // Errors of all: invalid_argument (naming the argument and its value; nothing is sent), client_closed, forked,
  // overloaded, timeout, unreachable, outcome_unknown, and those of the server: out_of_memory, loading, read_only,
  // no_permission, server_error (WRONGTYPE when the key is no stream).

  /// Appends one record and gives its id, the receipt. XADD with the entry id of the record id and `id` as first field.
  ///
  /// Ids are minted at the moment of sending, so appenders of one client never refuse each other, and the stream has
  /// the records of one thread in the order of its calls. What comes while others are on their way travels together
  /// (extension script `stream_append`). When another host's newest record is not older, the id is minted again above
  /// it, a bounded number of times; then, or when that is more than `max_skew` ahead of this client's clock, the answer is
  /// `nonmonotonic`, whose text says by how much.
  /// A record that had to be sent again after a lost connection stands once; `outcome_unknown` when that cannot be known,
  /// because the stream was trimmed meanwhile. Records wait for their turn, so a read may overtake those that are not
  /// answered yet; `max_in_flight` of the client bounds them by stream too. A deadline that ends while earlier records of
  /// the stream wait for the server is noticed when those are answered.
  /// With `once` the record goes by the extension script `stream_publish`, which keeps the keys beside the stream
  /// (`emq:{q}:once:<name>` and `emq:{q}:once-ages:<name>`); what is appended while one of these is on its way waits for it.
  /// Errors: also nonmonotonic, node_lease_lost, minter_exhausted.
  Reply<EventId> append(std::span<const Field> fields, AppendOptions options = {}) const;
  /// Appends many, as by as many `append`s in a row; one result each, in order. An empty span answers `empty_pipeline`;
  /// one bad argument refuses the whole call before any wire. Not atomic: see the results.
  Reply<std::vector<Result<EventId>>> append_many(std::span<const NewRecord> records,
                                                  AppendManyOptions options = {}) const;

  // Reads. A page has at most `count` records; an absent stream is an empty page.

  /// XRANGE or XREVRANGE by raw bounds: `-`, `+`, `<ms>`, `<ms>-<tail>`, with `(` before it exclusive. `from` is the
  /// older bound in both directions.
  Reply<Page> read(std::string_view from = "-", std::string_view to = "+", ReadOptions options = {}) const;
  /// Records minted from `begin` to `end`, both included, exact to the millisecond; `begin` <= `end`.
  Reply<Page> read_window(Instant begin, Instant end, ReadOptions options = {}) const;
  /// Records minted at `begin` or later.
  Reply<Page> read_since(Instant begin, ReadOptions options = {}) const;
  /// Records behind that one.
  Reply<Page> read_after(EventId id, ReadOptions options = {}) const;
  Reply<std::uint64_t> length() const;
  Reply<StreamInfo> info() const;
  /// Empty for an absent stream.
  Reply<std::vector<GroupInfo>> groups() const;

  // Trims: give how many were removed, 0 for an absent stream. Consumer groups are not looked at.

  /// Keeps the newest `count` records.
  Reply<std::uint64_t> trim_to(std::uint64_t count, Trim how = Trim::exact) const;
  /// Removes what was minted before the instant.
  Reply<std::uint64_t> trim_before(Instant instant, Trim how = Trim::exact) const;
  /// Removes the record and all older ones: what an archive may do with its watermark.
  Reply<std::uint64_t> trim_through(EventId id, Trim how = Trim::exact) const;

  // The archive's watermark (`emq:{q}:stream:<name>:archived`): records up to it are in an archive, and may still be on
  // the stream; later ones are on the stream only.

  Reply<void> put_archived(EventId id) const;
  /// Empty when nothing was archived. Errors: broken_state for a value that is no EVT id.
  Reply<std::optional<EventId>> archived() const;
  /// Whether there was one.
  Reply<bool> clear_archived() const;

  /// A consumer group of this stream. Errors: invalid_argument when the name is empty or longer than 255 bytes.
  [[nodiscard]] Result<StreamGroup> group(std::string_view name) const;

  struct State;
  explicit Stream(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] const State& internal() const noexcept { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Entry id bounds of an instant: the first and the last that can be minted in its millisecond. Errors: invalid_argument
/// for instants before 1970.
[[nodiscard]] Result<std::string> minid_floor(Instant instant);
[[nodiscard]] Result<std::string> maxid_ceil(Instant instant);
/// The position of a reader or a group that has everything minted before the instant behind it. Errors: invalid_argument for
/// instants before 1970.
[[nodiscard]] Result<std::string> position_before(Instant instant);

/// What is kept of one stream.
struct RetentionRule {
  Stream stream;
  Window window;
};

struct RetentionSweep {
  std::uint64_t trimmed = 0;  ///< records removed
  std::uint64_t calls = 0;    ///< trims made, failed ones too
  /// One result a rule, in order.
  std::vector<Result<std::uint64_t>> results;
};

/// Trims all streams by their rules, all at once; a failed one does not stop the others. An empty policy sends nothing.
/// `now` is what `Window::last` counts back from; absent: this host's clock. Errors: invalid_argument, naming the rule.
[[nodiscard]] Reply<RetentionSweep> sweep_retention(std::span<const RetentionRule> rules,
                                                    std::optional<Instant> now = {});

/// Where a new group begins.
enum class GroupStart : std::uint8_t {
  head,    ///< with the oldest record
  latest,  ///< with what comes from now on
};

/// An entry that a consumer holds. `record` is absent when it was removed from the stream meanwhile: acknowledge it, or
/// it stays pending for ever.
struct Delivery {
  std::string entry;
  std::optional<Record> record;
};

struct GroupReadOptions {
  std::uint32_t count = 100;  ///< >= 1
  std::optional<Milliseconds> deadline{};
};

/// What `claim_idle` took over.
struct IdleClaim {
  std::vector<Delivery> entries;
  /// Entries that were removed from the stream; the server has taken them off the pending list.
  std::vector<std::string> deleted;
  /// Where to go on; `0-0` when the whole pending list was looked through.
  std::string next = "0-0";
};

/// One row of the pending list.
struct PendingEntry {
  std::string entry;
  std::string consumer;
  Milliseconds idle{};
  std::uint64_t deliveries = 0;
};

struct PendingOptions {
  std::string_view from = "-";
  std::string_view to = "+";
  std::uint32_t count = 100;       ///< >= 1
  Milliseconds min_idle{0};        ///< >= 0
  std::string_view consumer = {};  ///< empty: of all
  std::optional<Milliseconds> deadline{};
};

/// A consumer group of a stream: single commands, none of which waits. `GroupConsumer` (group_consumer.hpp) is the loop
/// over them. Copyable, thread-safe.
///
/// Errors of all: as for `Stream`, and `no_group` when the stream or the group is gone (it was deleted, or the server
/// flushed): `create` makes both again. Consumer names are 1 to 255 bytes.
class StreamGroup {
 public:
  [[nodiscard]] const Stream& stream() const noexcept { return stream_; }
  [[nodiscard]] std::string_view name() const noexcept { return name_; }

  /// XGROUP CREATE ... MKSTREAM. False when the group exists: then it keeps its position.
  Reply<bool> create(GroupStart start) const;
  /// The same, beginning behind that entry.
  Reply<bool> create_behind(std::string_view entry) const;
  /// XREADGROUP `>`: entries that nobody was given yet. Never sent again: after a lost answer they are pending.
  Reply<std::vector<Delivery>> read_new(std::string_view consumer, GroupReadOptions options = {}) const;
  /// XREADGROUP from `after` (`0` at first): what this consumer holds already, behind that entry. Raises their delivery
  /// counts.
  Reply<std::vector<Delivery>> read_own(std::string_view consumer, std::string_view after = "0",
                                        GroupReadOptions options = {}) const;
  /// XAUTOCLAIM: takes over entries that were not touched for `min_idle`, beginning at `from`; looks through at most ten
  /// times `count` pending entries a call.
  Reply<IdleClaim> claim_idle(std::string_view consumer, Milliseconds min_idle, std::string_view from = "0-0",
                              GroupReadOptions options = {}) const;
  /// XACK; gives how many were pending. An empty span sends nothing.
  Reply<std::uint64_t> acknowledge(std::span<const std::string_view> entries) const;
  /// XCLAIM ... JUSTID of entries in hand: they are not idle any more, their delivery counts stay. Gives those that this
  /// consumer holds now; removed ones are missing. An empty span sends nothing.
  Reply<std::vector<std::string>> refresh(std::string_view consumer, std::span<const std::string_view> entries) const;
  /// XGROUP SETID: what is handed out as new from now on. Entries that are pending stay so: they come as they were, and once
  /// more where the group is set back. The server may not know the lag until the group has caught up.
  Reply<void> reset(GroupStart start) const;
  /// The same, to behind that entry.
  Reply<void> reset_behind(std::string_view entry) const;
  /// The same, to records minted at `begin` or later.
  Reply<void> reset_since(Instant begin) const;
  /// XINFO CONSUMERS.
  Reply<std::vector<ConsumerInfo>> consumers() const;
  /// Removes the group; refused while entries are pending, unless forced. Extension script `stream_group_remove`. A running
  /// `GroupConsumer` makes its group again.
  Reply<GroupRemoval> remove(Removal how = Removal::when_idle) const;
  /// Removes one consumer, such as one of a host that is gone; the same holds. What it has pending, others take over when it is left
  /// there.
  Reply<GroupRemoval> remove_consumer(std::string_view consumer, Removal how = Removal::when_idle) const;
  /// XPENDING by range.
  Reply<std::vector<PendingEntry>> pending(PendingOptions options = {}) const;

 private:
  friend class Stream;
  StreamGroup(Stream stream, std::string_view name) : stream_(std::move(stream)), name_(name) {}

  Stream stream_;
  std::string name_;
};

// g++ 12 corrupts temporaries of other aggregates in `co_await` expressions: options stay trivially copyable.
static_assert(std::is_trivially_copyable_v<StreamName> && std::is_trivially_copyable_v<AppendOptions> &&
              std::is_trivially_copyable_v<AppendManyOptions> && std::is_trivially_copyable_v<NewRecord> &&
              std::is_trivially_copyable_v<ReadOptions> && std::is_trivially_copyable_v<Window> &&
              std::is_trivially_copyable_v<GroupReadOptions> && std::is_trivially_copyable_v<PendingOptions> &&
              std::is_trivially_copyable_v<std::optional<EventId>>);

}  // namespace v1
}  // namespace echomq
