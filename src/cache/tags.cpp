// Tags: the ids of each stand in a set beside the rows, and a drop takes them out some at a time.
//
// A value that was known before a drop must not come in after it. A put is older when its version is; a load also when the
// number of drops that its flight read before it began is below that of the drop, whatever the clocks say.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/table.hpp"
#include "client/live_core.hpp"
#include "identity/quoted.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostTags = 16;
constexpr std::size_t kMostTagSize = 120;
constexpr std::string_view kBite = "500";
constexpr milliseconds kLongestLife = std::chrono::hours(20 * 24);
/// How long a drop is remembered. A load that takes longer than half of it is not written.
constexpr milliseconds kRemembered = std::chrono::hours(1);

[[nodiscard]] Result<void> check_tag(std::string_view tag) {
  if (detail::is_name(tag, kMostTagSize))
    return {};
  return fail(Errc::invalid_argument, "not a tag: " + identity::quoted(tag) + " (1 to 120 of A-Z a-z 0-9 . _ -)");
}

}  // namespace

struct Table::TagDrop {
  std::string tag;
  BrandedId version;
  Promise<std::uint64_t>* call;
  bool first = true;
  bool to_set_apart = true;
  std::uint64_t dropped = 0;
};

Result<void> Table::check_entry(const std::vector<std::string>& tags, std::optional<milliseconds> ttl) const {
  if (ttl && (*ttl < milliseconds(1) || *ttl > kLongestLife))
    return fail(Errc::invalid_argument, fmt::format("ttl must be 1 ms to 20 days, got {}ms", ttl->count()));
  if (tags.empty())
    return {};
  if (!options_.tags)
    return fail(Errc::invalid_argument, "the table was opened without tags");
  if (tags.size() > kMostTags)
    return fail(Errc::invalid_argument, fmt::format("tags must be at most {}, got {}", kMostTags, tags.size()));
  for (const std::string& tag : tags)
    ECHOMQ_CHECK(check_tag(tag));
  return {};
}

void Table::put_tagged_script(const BrandedId& id, const BrandedId& version, std::string_view value, milliseconds ttl,
                              const std::vector<std::string>& tags, std::optional<std::int64_t> drops,
                              std::optional<BrandedId> replaces, milliseconds deadline, ReadBy reader, End end) {
  static const script::ScriptSource& script = *script::find_script("cache_put_tagged");
  std::string bytes;
  resp::CommandWriter writer(bytes);
  writer.begin(3 + 3 + 7 + tags.size()).part(std::string_view("EVALSHA")).part(script.sha1).part(std::string_view("3"));
  writer.part(keys_.row(id).view()).part(keys_.tag_drops().view()).part(keys_.extension);
  writer.part(version.text()).part(value).part(std::to_string(ttl.count())).part(id.text());
  writer.part(std::to_string((ttl + options_.stale).count()));
  writer.part(drops ? std::to_string(*drops) : std::string());
  writer.part(replaces ? replaces->text() : std::string_view());
  for (const std::string& tag : tags)
    writer.part(tag);
  Exchange* call = Exchange::make(std::move(bytes), 1, std::move(end));
  call->script = &script;
  send_main(call, deadline, reader);
}

/// A load under tags that L2 has not taken. Not kept, for no drop would find it; nor is it for who joined after something was heard: a
/// drop of one of its tags may have ended, which L2 was to say.
void Table::land_untaken(const FlightPointer& flight, CachedBytes answer) {
  {
    Shard& shard = shard_of(flight->id);
    const std::lock_guard lock(shard.mutex);
    if (flight->marked)
      ++shard.watches[flight->id.value()].evictions;
  }
  land(flight, {std::move(answer)});
}

void Table::fill_tagged(const FlightPointer& flight, Loaded<std::string> found) {
  CachedBytes answer{std::move(found.value), flight->version, CacheFrom::fill, milliseconds(0)};
  // A drop that was forgotten since could not be told from none.
  if (!flight->drops || std::chrono::steady_clock::now() - flight->drops_read > kRemembered / 2)
    return land_untaken(flight, std::move(answer));
  const std::string value = *answer.value;
  auto end = [self = shared_from_this(), flight, answer = std::move(answer)](Result<std::vector<Value>> answers,
                                                                             Exchange::At at) mutable {
    flight->elsewhere = flight->elsewhere || !self->told_of(at);
    if (!answers || answers->back().is_error()) {
      self->counters_.l2_write_errors.fetch_add(1, std::memory_order_relaxed);
      return self->land_untaken(flight, std::move(answer));
    }
    const Value& reply = answers->back();
    if (reply.is_text()) {
      const auto newer = read_frame(reply.as_text().value_or(std::string_view()));
      return newer ? self->read_again(flight, *newer) : self->land_untaken(flight, std::move(answer));
    }
    if (reply.as_integer() == 0) {
      // For those who asked before; others ask again.
      {
        Shard& shard = self->shard_of(flight->id);
        const std::lock_guard lock(shard.mutex);
        Watch& watch = shard.watches[flight->id.value()];
        ++watch.evictions;
        mark_early(watch);
      }
      return self->land(flight, {std::move(answer)});
    }
    Outcome outcome{std::move(answer), self->shortened(flight->ttl)};
    outcome.in_l2 = true;
    self->land(flight, std::move(outcome));
  };
  put_tagged_script(flight->id, flight->version, value, flight->ttl, found.tags, flight->drops, flight->stands,
                    options_.l2_deadline, ReadBy::library_again, std::move(end));
}

Reply<std::uint64_t> Table::invalidate_tag(std::string_view tag) {
  if (!options_.tags)
    return fail(Errc::invalid_argument, "the table was opened without tags");
  ECHOMQ_CHECK(check_tag(tag));
  if (closed_.load(std::memory_order_acquire))
    return fail(Errc::client_closed, "the cache is closed", Repeat::safe);
  ECHOMQ_TRY(const BrandedId version, core_->mint(options_.kind));
  auto* call = new Promise<std::uint64_t>;
  call->default_target = continues_on();
  call->retain();
  Reply<std::uint64_t> reply{detail::CallPointer<detail::CallOf<std::uint64_t>>(call)};
  drop_some(std::make_shared<TagDrop>(TagDrop{.tag = std::string(tag), .version = version, .call = call}));
  return reply;
}

void Table::drop_some(const std::shared_ptr<TagDrop>& drop) {
  static const script::ScriptSource& script = *script::find_script("cache_tag_drop");
  auto end = [self = shared_from_this(), drop](Result<std::vector<Value>> answers) {
    self->some_dropped(drop, std::move(answers));
  };
  const milliseconds remembered = std::max(kRemembered, options_.ttl);
  Exchange* call = Exchange::command(
      std::move(end), "EVALSHA", script.sha1, "5", keys_.tag(drop->tag).view(), keys_.tag_apart(drop->tag).view(),
      keys_.tag_floor(drop->tag).view(), keys_.tag_drops().view(), keys_.prefix, drop->version.text(),
      drop->first ? "1" : "0", drop->to_set_apart ? "1" : "0", kBite, std::to_string(remembered.count()));
  call->script = &script;
  call->retain();
  const detail::CallPointer<Exchange> kept(call);
  // Not sent twice: of the rows that the first one has dropped L1 would not hear.
  core_->submit(call, {.repeat = Repeat::unsafe, .deadline = core_->options().deadline});
  if (call->source != nullptr)
    call->source->leave_to_library();
}

/// Who asks from now on is given nothing that was read before: a load under way may be of the tag, though no row was.
void Table::mark_flights() {
  for (const auto& shard : shards_) {
    const std::lock_guard lock(shard->mutex);
    for (auto& [unused, watch] : shard->watches)
      mark_early(watch);
  }
}

void Table::some_dropped(const std::shared_ptr<TagDrop>& drop, Result<std::vector<Value>> answers) {
  const auto settle = [&](Result<std::uint64_t> outcome) {
    drop->call->settle(std::move(outcome));
    drop->call->release();
  };
  std::optional<Error> why;
  std::span<const Value> told;
  if (!answers) {
    why = std::move(answers).error();
  } else if (answers->back().is_error()) {
    why = wire::to_error(answers->back().error_text());
  } else {
    told = answers->back().items();
    if (told.size() < 3)
      why = Error(Errc::protocol_error, "cache_tag_drop: unexpected reply");
  }
  if (why) {
    flush();  // which rows were dropped is not known
    return settle(std::unexpected<Error>(*std::move(why)));
  }
  for (const Value& text : told.subspan(3)) {
    const auto id = BrandedId::parse(text.as_text().value_or(std::string_view()));
    if (id && id->brand() == options_.kind)
      change(*id, Told::here);
  }
  drop->first = false;
  drop->to_set_apart = told[1].as_integer() == 1;
  drop->dropped += static_cast<std::uint64_t>(told[2].as_integer().value_or(0));
  if (told[0].as_integer() != 0 || drop->to_set_apart)
    return drop_some(drop);
  mark_flights();
  settle(drop->dropped);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
