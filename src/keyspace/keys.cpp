// The table of keys, and reading a key back.
#include "keyspace/keys.hpp"

#include <cassert>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace keyspace {
namespace {

constexpr std::array<KeySpec, kKeyTypes> kTable{{
    {KeyType::pending, "pending", "emq:{q}:pending", ValueType::zset},
    {KeyType::active, "active", "emq:{q}:active", ValueType::zset},
    {KeyType::schedule, "schedule", "emq:{q}:schedule", ValueType::zset},
    {KeyType::dead, "dead", "emq:{q}:dead", ValueType::zset},
    {KeyType::ring, "ring", "emq:{q}:ring", ValueType::list},
    {KeyType::wake, "wake", "emq:{q}:wake", ValueType::list},
    {KeyType::paused, "paused", "emq:{q}:paused", ValueType::set},
    {KeyType::glimit, "glimit", "emq:{q}:glimit", ValueType::hash},
    {KeyType::gactive, "gactive", "emq:{q}:gactive", ValueType::hash},
    {KeyType::gweight, "gweight", "emq:{q}:gweight", ValueType::hash},
    {KeyType::meta, "meta", "emq:{q}:meta", ValueType::hash},
    {KeyType::limiter, "limiter", "emq:{q}:limiter", ValueType::string},
    {KeyType::metrics_completed, "metrics:completed", "emq:{q}:metrics:completed", ValueType::hash},
    {KeyType::metrics_failed, "metrics:failed", "emq:{q}:metrics:failed", ValueType::hash},
    {KeyType::metrics_completed_data, "metrics:completed:data", "emq:{q}:metrics:completed:data", ValueType::list},
    {KeyType::metrics_failed_data, "metrics:failed:data", "emq:{q}:metrics:failed:data", ValueType::list},
    {KeyType::repeat, "repeat", "emq:{q}:repeat", ValueType::zset},
    {KeyType::flow_outbox, "flow:outbox", "emq:{q}:flow:outbox", ValueType::list},
    {KeyType::events, "events", "emq:{q}:events", ValueType::channel},
    {KeyType::cancel, "cancel", "emq:{q}:cancel", ValueType::channel, true},
    {KeyType::parked, "parked", "emq:{q}:parked", ValueType::zset, true},
    {KeyType::metrics_repaired, "metrics:repaired", "emq:{q}:metrics:repaired", ValueType::hash, true},
    {KeyType::ended, "ended", "emq:{q}:ended", ValueType::channel, true},
    {KeyType::upkeep, "upkeep", "emq:{q}:upkeep", ValueType::hash, true},
    {KeyType::retention, "retention", "emq:{q}:retention", ValueType::hash, true},
    {KeyType::retention_swept, "retention:swept", "emq:{q}:retention:swept", ValueType::hash, true},
    {KeyType::streams, "streams", "emq:{q}:streams", ValueType::zset, true},
    {KeyType::log, "log", "emq:{q}:log", ValueType::stream, true},
    {KeyType::logging, "logging", "emq:{q}:logging", ValueType::hash, true},
    {KeyType::job, "job", "emq:{q}:job:<id>", ValueType::hash},
    {KeyType::job_logs, "logs", "emq:{q}:job:<id>:logs", ValueType::list},
    {KeyType::job_lock, "lock", "emq:{q}:job:<id>:lock", ValueType::string},
    {KeyType::job_dependencies, "dependencies", "emq:{q}:job:<id>:dependencies", ValueType::string},
    {KeyType::job_processed, "processed", "emq:{q}:job:<id>:processed", ValueType::hash},
    {KeyType::job_failed, "failed", "emq:{q}:job:<id>:failed", ValueType::hash},
    {KeyType::job_unsuccessful, "unsuccessful", "emq:{q}:job:<id>:unsuccessful", ValueType::hash},
    {KeyType::lane, "lane", "emq:{q}:g:<group>:pending", ValueType::zset},
    {KeyType::dedup, "de", "emq:{q}:de:<dedup id>", ValueType::string},
    {KeyType::repeat_record, "repeat:record", "emq:{q}:repeat:<name>", ValueType::hash},
    {KeyType::stream, "stream", "emq:{q}:stream:<name>", ValueType::stream},
    {KeyType::stream_archived, "stream:archived", "emq:{q}:stream:<name>:archived", ValueType::string},
    {KeyType::archive, "archive", "emq:{q}:archive:<name>", ValueType::hash, true},
    {KeyType::result, "result", "emq:{q}:result:<id>", ValueType::string, true},
    {KeyType::once, "once", "emq:{q}:once:<name>", ValueType::hash, true},
    {KeyType::once_ages, "once-ages", "emq:{q}:once-ages:<name>", ValueType::zset, true},
    {KeyType::version, "version", "{emq}:version", ValueType::string},
    {KeyType::locks, "locks", "{emq}:locks", ValueType::none},
    {KeyType::bundle, "bundle", "{emq}:bundle", ValueType::none},
    {KeyType::migration, "migration", "{emq}:migration:<q>", ValueType::none},
    {KeyType::nodes, "nodes", "{emq}:nodes", ValueType::hash, true},
    {KeyType::cache, "cache", "ecc:{<table>}:<id>", ValueType::string},
    {KeyType::cache_base, "cache:base", "ecc:{<table>}:", ValueType::none},
    {KeyType::cache_extension, "cache:extension", "eccx:{<table>}:", ValueType::none, true},
    {KeyType::cache_load, "cache:load", "eccx:{<table>}:load:<id>", ValueType::string, true},
    {KeyType::cache_loads, "cache:loads", "eccx:{<table>}:loads", ValueType::channel, true},
    {KeyType::cache_tag, "cache:tag", "eccx:{<table>}:tag:<name>", ValueType::zset, true},
    {KeyType::cache_tagdrop, "cache:tagdrop", "eccx:{<table>}:tagdrop:<name>", ValueType::zset, true},
    {KeyType::cache_tagfloor, "cache:tagfloor", "eccx:{<table>}:tagfloor:<name>", ValueType::string, true},
    {KeyType::cache_tagdrops, "cache:tagdrops", "eccx:{<table>}:tagdrops", ValueType::string, true},
    {KeyType::cache_stats, "cache:stats", "eccx:{<table>}:stats:<id>", ValueType::string, true},
}};

constexpr std::string_view kQueueHead = "emq:{q}:";
constexpr std::string_view kJobHead = "emq:{q}:job:<id>:";

consteval bool table_is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].type) != i)
      return false;
    const bool fixed = kTable[i].key.starts_with(kQueueHead) && kTable[i].key.find('<') == std::string_view::npos;
    if (fixed != (i < kFixedKeys))
      return false;
  }
  for (std::size_t i = 0; i < kSubkeys; ++i) {
    if (!kTable[static_cast<std::size_t>(KeyType::job_logs) + i].key.starts_with(kJobHead))
      return false;
  }
  return static_cast<std::size_t>(KeyType::unclassified) == kKeyTypes;
}
static_assert(table_is_in_order());

constexpr KeySpec kUnclassified{KeyType::unclassified, "unclassified", "", ValueType::none};

/// What stands behind `emq:{q}:` in the table.
[[nodiscard]] constexpr std::string_view suffix(KeyType type) noexcept {
  return kTable[static_cast<std::size_t>(type)].key.substr(kQueueHead.size());
}
[[nodiscard]] constexpr std::string_view word(Subkey subkey) noexcept {
  const auto row = static_cast<std::size_t>(KeyType::job_logs) + static_cast<std::size_t>(subkey);
  return kTable[row].key.substr(kJobHead.size());
}
static_assert(word(Subkey::logs) == "logs" && word(Subkey::unsuccessful) == "unsuccessful");

[[nodiscard]] constexpr bool is_id(std::string_view text) noexcept {
  std::uint64_t value = 0;
  return detail::check_id(text, value) == detail::IdFault::none;
}

/// Takes `prefix` off the front of `text` when it is there.
[[nodiscard]] constexpr bool take(std::string_view& text, std::string_view prefix) noexcept {
  if (!text.starts_with(prefix))
    return false;
  text.remove_prefix(prefix.size());
  return true;
}

[[nodiscard]] KeyInfo classify_cache(std::string_view rest) noexcept {
  const std::size_t close = rest.find("}:");
  if (close == std::string_view::npos || close == 0 || rest.find('}') != close)
    return {};
  const std::string_view part = rest.substr(close + 2);
  if (part.empty())
    return {KeyType::cache_base, rest.substr(0, close), {}};
  if (!is_id(part))
    return {};
  return {KeyType::cache, rest.substr(0, close), part};
}

[[nodiscard]] KeyInfo classify_cache_extension(std::string_view rest) noexcept {
  const std::size_t close = rest.find("}:");
  if (close == std::string_view::npos || close == 0 || rest.find('}') != close)
    return {};
  const std::string_view table = rest.substr(0, close);
  rest.remove_prefix(close + 2);
  if (rest.empty())
    return {KeyType::cache_extension, table, {}};
  if (rest == "loads")
    return {KeyType::cache_loads, table, {}};
  if (rest == "tagdrops")
    return {KeyType::cache_tagdrops, table, {}};
  if (take(rest, "load:"))
    return is_id(rest) ? KeyInfo{KeyType::cache_load, table, rest} : KeyInfo{};
  if (take(rest, "stats:"))
    return is_id(rest) ? KeyInfo{KeyType::cache_stats, table, rest} : KeyInfo{};
  constexpr std::pair<std::string_view, KeyType> kByTag[] = {
      {"tag:", KeyType::cache_tag}, {"tagdrop:", KeyType::cache_tagdrop}, {"tagfloor:", KeyType::cache_tagfloor}};
  for (const auto& [head, type] : kByTag) {
    if (take(rest, head))
      return detail::is_name(rest, 120) ? KeyInfo{type, table, rest} : KeyInfo{};
  }
  return {};
}

[[nodiscard]] KeyInfo classify_reserve(std::string_view key) noexcept {
  if (take(key, "ecc:{"))
    return classify_cache(key);
  if (take(key, "eccx:{"))
    return classify_cache_extension(key);
  for (const KeyType type : {KeyType::version, KeyType::locks, KeyType::bundle, KeyType::nodes}) {
    if (key == spec(type).key)
      return {type, {}, {}};
  }
  if (take(key, "{emq}:migration:") && QueueName::is_valid(key))
    return {KeyType::migration, {}, key};
  return {};
}

/// A key with an id or a name in it; `rest` is what stands behind the queue's prefix.
[[nodiscard]] std::pair<KeyType, std::string_view> classify_variable(std::string_view rest) noexcept {
  constexpr std::pair<KeyType, std::string_view> kNone{KeyType::unclassified, {}};
  if (take(rest, "job:")) {
    const std::string_view id = rest.substr(0, BrandedId::kSize);
    if (!is_id(id))
      return kNone;
    rest.remove_prefix(BrandedId::kSize);
    if (rest.empty())
      return {KeyType::job, id};
    if (!take(rest, ":"))
      return kNone;
    for (std::size_t i = 0; i < kSubkeys; ++i) {
      if (rest != word(static_cast<Subkey>(i)))
        continue;
      return {static_cast<KeyType>(static_cast<std::size_t>(KeyType::job_logs) + i), id};
    }
    return kNone;
  }
  if (take(rest, "g:")) {
    const std::string_view group = rest.substr(0, BrandedId::kSize);
    if (!is_id(group) || rest.substr(BrandedId::kSize) != ":pending")
      return kNone;
    return {KeyType::lane, group};
  }
  if (take(rest, "result:"))
    return is_id(rest) ? std::pair{KeyType::result, rest} : kNone;
  if (take(rest, "de:"))
    return DedupId::is_valid(rest) ? std::pair{KeyType::dedup, rest} : kNone;
  if (take(rest, "repeat:"))
    return rest.empty() ? kNone : std::pair{KeyType::repeat_record, rest};
  if (take(rest, "result:"))
    return is_id(rest) ? std::pair{KeyType::result, rest} : kNone;
  if (take(rest, "archive:"))
    return rest.empty() ? kNone : std::pair{KeyType::archive, rest};
  if (take(rest, "once:"))
    return rest.empty() ? kNone : std::pair{KeyType::once, rest};
  if (take(rest, "once-ages:"))
    return rest.empty() ? kNone : std::pair{KeyType::once_ages, rest};
  if (take(rest, "stream:")) {
    constexpr std::string_view kArchived = ":archived";
    if (rest.size() > kArchived.size() && rest.ends_with(kArchived)) {
      return {KeyType::stream_archived, rest.substr(0, rest.size() - kArchived.size())};
    }
    return rest.empty() ? kNone : std::pair{KeyType::stream, rest};
  }
  return kNone;
}

}  // namespace

std::string_view to_string(ValueType type) noexcept {
  switch (type) {
    case ValueType::zset: return "zset";
    case ValueType::list: return "list";
    case ValueType::set: return "set";
    case ValueType::hash: return "hash";
    case ValueType::string: return "string";
    case ValueType::stream: return "stream";
    case ValueType::channel: return "channel";
    case ValueType::none: break;
  }
  return "none";
}

std::span<const KeySpec, kKeyTypes> key_table() noexcept { return kTable; }

const KeySpec& spec(KeyType type) noexcept {
  const auto row = static_cast<std::size_t>(type);
  return row < kTable.size() ? kTable[row] : kUnclassified;
}

std::string_view to_string(Subkey subkey) noexcept { return word(subkey); }

char* KeyText::make_room(std::size_t size) {
  size_ = size;
  if (size <= kInline)
    return small_.data();
  large_.resize(size);
  return large_.data();
}

QueueKeys::QueueKeys(const QueueName& queue) : queue_(queue), slot_(keyspace::slot(queue.text())) {
  base_.reserve(kQueueHead.size() - 1 + queue.text().size());
  base_ += "emq:{";
  base_ += queue.text();
  base_ += "}:";
  job_prefix_ = base_ + "job:";
  for (std::size_t i = 0; i < kFixedKeys; ++i) {
    fixed_[i] = base_;
    fixed_[i] += suffix(static_cast<KeyType>(i));
  }
}

KeyText migration_key(const QueueName& queue) { return KeyText::of("{emq}:migration:", queue.text()); }

KeyInfo classify(std::string_view key) noexcept {
  std::string_view rest = key;
  if (!take(rest, "emq:{"))
    return classify_reserve(key);
  const std::size_t close = rest.find("}:");
  if (close == std::string_view::npos || !QueueName::is_valid(rest.substr(0, close)))
    return {};
  const std::string_view queue = rest.substr(0, close);
  rest.remove_prefix(close + 2);
  for (std::size_t i = 0; i < kFixedKeys; ++i) {
    if (rest == suffix(static_cast<KeyType>(i)))
      return {static_cast<KeyType>(i), queue, {}};
  }
  const auto [type, part] = classify_variable(rest);
  if (type == KeyType::unclassified)
    return {};
  return {type, queue, part};
}

}  // namespace keyspace
}  // namespace v1
}  // namespace echomq
