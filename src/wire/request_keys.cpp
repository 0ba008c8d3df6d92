// The keys of commands: a table of those whose keys are not "the first argument", and the few that need a look.
#include "wire/request_keys.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <utility>

#include "keyspace/slot.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

enum class Keys : std::uint8_t {
  none,
  range,    // from `first` to `last` (negative: from the end) by `step`
  counted,  // a number of keys at `first`, the keys behind it, and one more at `last` when that is not 0
  streams,  // the first half of what follows STREAMS
  stored,   // at `first`, and behind each STORE or STOREDIST
  inner,    // at 2 when the subcommand is one of an object (OBJECT ENCODING key)
};

struct Row {
  std::string_view name;
  Keys keys = Keys::none;
  std::int8_t first = 0;
  std::int8_t last = 0;
  std::int8_t step = 1;
};

// Sorted by name. tests/server/cluster_server_test.cpp holds it against the server's own COMMAND.
constexpr std::array kRows = {
    Row{"ACL"},
    Row{"ASKING"},
    Row{"AUTH"},
    Row{"BGREWRITEAOF"},
    Row{"BGSAVE"},
    Row{"BITOP", Keys::range, 2, -1},
    Row{"BLMOVE", Keys::range, 1, 2},
    Row{"BLMPOP", Keys::counted, 2},
    Row{"BLPOP", Keys::range, 1, -2},
    Row{"BRPOP", Keys::range, 1, -2},
    Row{"BRPOPLPUSH", Keys::range, 1, 2},
    Row{"BZMPOP", Keys::counted, 2},
    Row{"BZPOPMAX", Keys::range, 1, -2},
    Row{"BZPOPMIN", Keys::range, 1, -2},
    Row{"CLIENT"},
    Row{"CLUSTER"},
    Row{"COMMAND"},
    Row{"CONFIG"},
    Row{"COPY", Keys::range, 1, 2},
    Row{"DBSIZE"},
    Row{"DEBUG"},
    Row{"DEL", Keys::range, 1, -1},
    Row{"DISCARD"},
    Row{"ECHO"},
    Row{"EVAL", Keys::counted, 2},
    Row{"EVALSHA", Keys::counted, 2},
    Row{"EVALSHA_RO", Keys::counted, 2},
    Row{"EVAL_RO", Keys::counted, 2},
    Row{"EXEC"},
    Row{"EXISTS", Keys::range, 1, -1},
    Row{"FAILOVER"},
    Row{"FCALL", Keys::counted, 2},
    Row{"FCALL_RO", Keys::counted, 2},
    Row{"FLUSHALL"},
    Row{"FLUSHDB"},
    Row{"FUNCTION"},
    Row{"GEORADIUS", Keys::stored, 1},
    Row{"GEORADIUSBYMEMBER", Keys::stored, 1},
    Row{"GEOSEARCHSTORE", Keys::range, 1, 2},
    Row{"HELLO"},
    Row{"INFO"},
    Row{"KEYS"},
    Row{"LASTSAVE"},
    Row{"LATENCY"},
    Row{"LCS", Keys::range, 1, 2},
    Row{"LMOVE", Keys::range, 1, 2},
    Row{"LMPOP", Keys::counted, 1},
    Row{"LOLWUT"},
    Row{"MEMORY", Keys::inner},
    Row{"MGET", Keys::range, 1, -1},
    Row{"MIGRATE", Keys::range, 3, 3},
    Row{"MODULE"},
    Row{"MONITOR"},
    Row{"MSET", Keys::range, 1, -1, 2},
    Row{"MSETNX", Keys::range, 1, -1, 2},
    Row{"MULTI"},
    Row{"OBJECT", Keys::inner},
    Row{"PFCOUNT", Keys::range, 1, -1},
    Row{"PFDEBUG", Keys::range, 2, 2},
    Row{"PFMERGE", Keys::range, 1, -1},
    Row{"PFSELFTEST"},
    Row{"PING"},
    Row{"PSUBSCRIBE"},
    Row{"PSYNC"},
    Row{"PUBLISH"},
    Row{"PUBSUB"},
    Row{"PUNSUBSCRIBE"},
    Row{"QUIT"},
    Row{"RANDOMKEY"},
    Row{"READONLY"},
    Row{"READWRITE"},
    Row{"RENAME", Keys::range, 1, 2},
    Row{"RENAMENX", Keys::range, 1, 2},
    Row{"REPLCONF"},
    Row{"REPLICAOF"},
    Row{"RESET"},
    Row{"ROLE"},
    Row{"RPOPLPUSH", Keys::range, 1, 2},
    Row{"SAVE"},
    Row{"SCAN"},
    Row{"SCRIPT"},
    Row{"SDIFF", Keys::range, 1, -1},
    Row{"SDIFFSTORE", Keys::range, 1, -1},
    Row{"SELECT"},
    Row{"SHUTDOWN"},
    Row{"SINTER", Keys::range, 1, -1},
    Row{"SINTERCARD", Keys::counted, 1},
    Row{"SINTERSTORE", Keys::range, 1, -1},
    Row{"SLAVEOF"},
    Row{"SLOWLOG"},
    Row{"SMOVE", Keys::range, 1, 2},
    Row{"SORT", Keys::stored, 1},
    Row{"SSUBSCRIBE", Keys::range, 1, -1},
    Row{"SUBSCRIBE"},
    Row{"SUNION", Keys::range, 1, -1},
    Row{"SUNIONSTORE", Keys::range, 1, -1},
    Row{"SUNSUBSCRIBE", Keys::range, 1, -1},
    Row{"SWAPDB"},
    Row{"SYNC"},
    Row{"TIME"},
    Row{"TOUCH", Keys::range, 1, -1},
    Row{"UNLINK", Keys::range, 1, -1},
    Row{"UNSUBSCRIBE"},
    Row{"UNWATCH"},
    Row{"WAIT"},
    Row{"WAITAOF"},
    Row{"WATCH", Keys::range, 1, -1},
    Row{"XGROUP", Keys::inner},
    Row{"XINFO", Keys::inner},
    Row{"XREAD", Keys::streams},
    Row{"XREADGROUP", Keys::streams},
    Row{"ZDIFF", Keys::counted, 1},
    Row{"ZDIFFSTORE", Keys::counted, 2, 1},
    Row{"ZINTER", Keys::counted, 1},
    Row{"ZINTERCARD", Keys::counted, 1},
    Row{"ZINTERSTORE", Keys::counted, 2, 1},
    Row{"ZMPOP", Keys::counted, 1},
    Row{"ZRANGESTORE", Keys::range, 1, 2},
    Row{"ZUNION", Keys::counted, 1},
    Row{"ZUNIONSTORE", Keys::counted, 2, 1},
};
static_assert(std::ranges::is_sorted(kRows, {}, &Row::name));
constexpr Row kOneKey{"", Keys::range, 1, 1};
constexpr std::size_t kLongestName = 24;

[[nodiscard]] char upper(char c) noexcept { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
[[nodiscard]] bool same_word(std::string_view text, std::string_view word) noexcept {
  return std::ranges::equal(text, word, {}, upper);
}

[[nodiscard]] const Row& row_of(std::string_view name) noexcept {
  std::array<char, kLongestName> letters;
  if (name.size() > letters.size())
    return kOneKey;
  std::ranges::transform(name, letters.begin(), upper);
  const std::string_view word(letters.data(), name.size());
  const auto found = std::ranges::lower_bound(kRows, word, {}, &Row::name);
  return found != kRows.end() && found->name == word ? *found : kOneKey;
}

/// Reads the commands of a request that this library encoded itself, so nothing in it is broken.
class Reader {
 public:
  explicit Reader(std::string_view bytes) noexcept : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  [[nodiscard]] bool done() const noexcept { return at_ == end_; }
  /// The number of parts of the next command.
  [[nodiscard]] std::size_t command() noexcept { return number(); }
  [[nodiscard]] std::string_view part() noexcept {
    const std::size_t size = number();
    const std::string_view text(at_, size);
    at_ += size + 2;
    return text;
  }
  [[nodiscard]] std::string_view rest() const noexcept { return {at_, end_}; }

 private:
  [[nodiscard]] std::size_t number() noexcept {
    std::size_t value = 0;
    at_ = std::from_chars(at_ + 1, end_, value).ptr + 2;
    return value;
  }
  const char* at_;
  const char* end_;
};

/// The slot so far, and the key that said so.
class Agreement {
 public:
  [[nodiscard]] bool add(std::string_view key) {
    const std::string_view tag = keyspace::hashtag(key);
    if (slot_ != detail::Call::kAnySlot && tag == keyspace::hashtag(first_))
      return true;
    const std::uint32_t slot = keyspace::slot(key);
    if (slot_ == detail::Call::kAnySlot) {
      slot_ = slot;
      first_ = key;
      return true;
    }
    other_ = key;
    return slot == slot_;
  }
  [[nodiscard]] std::uint32_t slot() const noexcept { return slot_; }
  [[nodiscard]] Error error() const {
    const auto shown = [](std::string_view key) { return "'" + std::string(key.substr(0, 128)) + "'"; };
    return {Errc::cross_slot, "the keys " + shown(first_) + " and " + shown(other_) + " are in different slots",
            Repeat::safe};
  }

 private:
  std::uint32_t slot_ = detail::Call::kAnySlot;
  std::string_view first_;
  std::string_view other_;
};

[[nodiscard]] std::size_t parse_count(std::string_view text) noexcept {
  std::size_t value = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Which of the parts are keys is decided part by part, in one walk.
[[nodiscard]] bool add_command(Reader& reader, Agreement& keys) {
  const std::size_t count = reader.command();
  if (count == 0)
    return true;
  const Row& row = row_of(reader.part());
  const std::size_t first = static_cast<std::size_t>(row.first);
  std::size_t last = static_cast<std::size_t>(row.last);
  if (row.keys == Keys::range && row.last < 0)
    last = count - std::min(count, static_cast<std::size_t>(-row.last));
  std::size_t counted_end = 0;  // of counted keys and of streams: one behind the last
  std::size_t streams_at = 0;
  bool is_key_next = false;
  bool fits = true;
  for (std::size_t index = 1; index < count; ++index) {
    const std::string_view part = reader.part();
    bool is_key = std::exchange(is_key_next, false);
    switch (row.keys) {
      case Keys::none: break;
      case Keys::range:
        is_key = index >= first && index <= last && (index - first) % static_cast<std::size_t>(row.step) == 0;
        break;
      case Keys::counted:
        is_key = index == last || (index > first && index < counted_end);
        if (index == first)
          counted_end = first + 1 + std::min(parse_count(part), count);
        break;
      case Keys::streams:
        is_key = streams_at != 0 && index < counted_end;
        if (streams_at == 0 && same_word(part, "STREAMS")) {
          streams_at = index;
          counted_end = index + 1 + (count - index - 1) / 2;
        }
        break;
      case Keys::stored:
        is_key = is_key || index == first;
        is_key_next = !is_key && (same_word(part, "STORE") || same_word(part, "STOREDIST"));
        break;
      case Keys::inner:
        is_key_next = index == 1 && !same_word(part, "HELP") && !same_word(part, "DOCTOR") &&
                      !same_word(part, "STATS") && !same_word(part, "PURGE") && !same_word(part, "MALLOC-STATS");
        break;
    }
    fits = fits && (!is_key || keys.add(part));
  }
  return fits;
}

}  // namespace

Result<std::uint32_t> slot_of_request(std::string_view request) {
  Reader reader(request);
  Agreement keys;
  while (!reader.done()) {
    if (!add_command(reader, keys))
      return fail(keys.error());
  }
  return keys.slot();
}

std::uint32_t commands_of_request(std::string_view request) noexcept {
  Reader reader(request);
  std::uint32_t commands = 0;
  for (; !reader.done(); ++commands) {
    for (std::size_t left = reader.command(); left > 0; --left)
      (void)reader.part();
  }
  return commands;
}

std::string_view request_behind(std::string_view request, std::uint32_t commands) noexcept {
  Reader reader(request);
  for (; commands > 0 && !reader.done(); --commands) {
    for (std::size_t left = reader.command(); left > 0; --left)
      (void)reader.part();
  }
  return reader.rest();
}

bool is_transaction(std::string_view request) noexcept { return request.starts_with("*1\r\n$5\r\nMULTI\r\n"); }

}  // namespace wire
}  // namespace v1
}  // namespace echomq
