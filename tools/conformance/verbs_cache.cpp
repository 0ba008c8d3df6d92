// The verbs of the cache. A history opens tables by name; they live until the client they were opened with is closed.
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/cache.hpp"
#include "echomq/queue.hpp"

namespace echomq::conformance {
namespace {

/// A loader that knows a few ids: `{id: value | [value, version] | ["error", text]}`; others are absent.
struct KnownValues {
  std::map<std::string, json::value> values;
  std::chrono::milliseconds takes{0};

  Result<std::optional<Loaded<std::string>>> operator()(const BrandedId& id) const {
    if (takes.count() > 0)
      std::this_thread::sleep_for(takes);
    const auto found = values.find(std::string(id.text()));
    if (found == values.end())
      return std::optional<Loaded<std::string>>();
    const json::value& known = found->second;
    if (!known.is_array())
      return std::optional<Loaded<std::string>>({text_of(known), std::nullopt});
    const std::string first = text_of(known.at(0));
    if (first == "error")
      return fail(Errc::handler_failed, text_of(known.at(1)));
    const auto version = BrandedId::parse(text_of(known.at(1)));
    if (!version)
      return std::unexpected(version.error());
    return std::optional<Loaded<std::string>>({first, *version});
  }
};

struct OpenTable {
  std::shared_ptr<client::Core> core;
  std::string name;
  ByteCache cache;
};

/// The tables of all clients that are open.
std::list<OpenTable>& tables() {
  static std::list<OpenTable> open;
  return open;
}

class CacheCaller {
 public:
  CacheCaller(const Client& client, const json::object& args) : client_(client), args_(args) {}

  [[nodiscard]] json::value table_start() {
    tables().remove_if([&](const OpenTable& one) {
      return one.core->closed() || (one.core == client_.core() && one.name == text("name"));
    });
    CacheOptions options{.table = CacheName("x")};
    const auto table = CacheName::parse(text(has("table") ? "table" : "name"));
    if (!table)
      return refused(table.error());
    options.table = *table;
    options.kind = text("kind");
    if (has("ttl_ms"))
      options.ttl = std::chrono::milliseconds(integer_of(args_.at("ttl_ms")));
    if (has("max_size"))
      options.l1_bytes = static_cast<std::size_t>(integer_of(args_.at("max_size"))) * 100;  // a small row each
    if (has("coherence")) {
      const std::string mode = text("coherence");
      options.coherence = mode == "broadcast"  ? Coherence::broadcast
                          : mode == "tracking" ? Coherence::tracking
                                               : Coherence::none;
    }
    KnownValues known;
    if (has("loader_takes_ms"))
      known.takes = std::chrono::milliseconds(integer_of(args_.at("loader_takes_ms")));
    if (const json::value* loader = args_.if_contains("loader")) {
      for (const auto& [id, value] : loader->as_object())
        known.values.emplace(id, value);
    }
    // A table without a loader takes from L2 whatever is there, also what is older than a message.
    auto opened = ByteCache::open(client_, options, has("loader") ? LoadBytes(known) : LoadBytes());
    if (!opened)
      return refused(opened.error());
    tables().push_back({client_.core(), text("name"), *std::move(opened)});
    return "ok";
  }

  [[nodiscard]] json::value fetch() {
    return with_id([&](ByteCache& cache, const BrandedId& id) { return fetched(cache.get(id).get()); });
  }
  [[nodiscard]] json::value fetch_together() {
    return with_id([&](ByteCache& cache, const BrandedId& id) {
      std::vector<Reply<CachedBytes>> replies;
      for (std::int64_t i = 0; i < integer_of(args_.at("callers")); ++i)
        replies.push_back(cache.get(id));
      json::array results;
      for (Reply<CachedBytes>& reply : replies)
        results.push_back(fetched(reply.get()));
      return json::value(results);
    });
  }
  [[nodiscard]] json::value put() {
    return with_id([&](ByteCache& cache, const BrandedId& id) -> json::value {
      std::optional<BrandedId> version;
      if (has("version")) {
        const auto parsed = BrandedId::parse(text("version"));
        if (!parsed)
          return refused(parsed.error());
        version = *parsed;
      }
      const auto put = cache.put(id, text("value"), version).get();
      if (!put)
        return refused(put.error());
      return *put == CachePut::stored ? "ok" : "superseded";
    });
  }
  [[nodiscard]] json::value invalidate() {
    return with_id([&](ByteCache& cache, const BrandedId& id) {
      const auto done = cache.invalidate(id).get();
      return done ? json::value("ok") : refused(done.error());
    });
  }
  [[nodiscard]] json::value apply_coherence() {
    return with_id([&](ByteCache& cache, const BrandedId& id) -> json::value {
      const auto version = BrandedId::parse(text("version"));
      if (!version)
        return refused(version.error());
      const auto applied = cache.apply(id, *version);
      if (!applied)
        return refused(applied.error());
      return ok(*applied == Applied::applied ? "applied" : "stale");
    });
  }
  [[nodiscard]] json::value table_stats() {
    ByteCache* cache = find();
    if (cache == nullptr)
      return error("no_such_cache");
    const CacheStats stats = cache->stats();
    // There is no sweep, and a full L1 evicts instead of refusing.
    return json::object{{"coalesced", stats.coalesced},
                        {"coh_applied", stats.coherence_applied},
                        {"coh_stale", stats.coherence_stale},
                        {"fills", stats.fills},
                        {"full_skips", stats.too_large},
                        {"hits", stats.hits},
                        {"l2_hits", stats.l2_hits},
                        {"misses", stats.misses},
                        {"size", stats.rows},
                        {"swept", 0}};
  }

  [[nodiscard]] json::value broadcast() {
    return with_writer([&](const CacheWriter& writer, const BrandedId& id, const BrandedId& version) {
      const auto receivers = writer.broadcast(id, version).get();
      return receivers ? ok(*receivers) : refused(receivers.error());
    });
  }
  [[nodiscard]] json::value drop_l2() {
    return with_writer([&](const CacheWriter& writer, const BrandedId& id, const BrandedId& version) {
      const auto dropped = writer.drop_l2(id, version).get();
      return dropped ? ok(*dropped ? 1 : 0) : refused(dropped.error());
    });
  }
  [[nodiscard]] json::value coh_enqueue() {
    return with_writer([&](const CacheWriter&, const BrandedId& id, const BrandedId& version) {
      const auto lane = LaneId::parse(text("group"));
      if (!lane)
        return raised(lane.error());
      const Queue queue = client_.queue(coherence_queue(*CacheName::parse(text("table"))));
      const auto admitted = queue.enqueue(CoherenceMessage{id, version}.text(), {.lane = *lane}).get();
      if (!admitted)
        return refused(admitted.error());
      return ok(admitted->verdict == Admitted::enqueued ? "enqueued" : "duplicate");
    });
  }

  std::string error_text;

 private:
  [[nodiscard]] bool has(std::string_view name) const { return args_.if_contains(name) != nullptr; }
  [[nodiscard]] std::string text(std::string_view name) const { return text_of(args_.at(name)); }

  [[nodiscard]] ByteCache* find() const {
    for (OpenTable& one : tables()) {
      if (one.core == client_.core() && one.name == text("name"))
        return &one.cache;
    }
    return nullptr;
  }
  /// The types refuse what is no id at all: in the words of the vocabulary that is of the wrong kind.
  template <typename Call>
  [[nodiscard]] json::value with_id(Call call) {
    ByteCache* cache = find();
    if (cache == nullptr)
      return error("no_such_cache");
    const auto id = BrandedId::parse(text("id"));
    return id ? json::value(call(*cache, *id)) : error("kind");
  }
  template <typename Call>
  [[nodiscard]] json::value with_writer(Call call) {
    const auto table = CacheName::parse(text("table"));
    const auto id = BrandedId::parse(text("id"));
    const auto version = BrandedId::parse(text("version"));
    if (!table || !id || !version)
      return raised(!table ? table.error() : !id ? id.error() : version.error());
    return call(CacheWriter(client_, *table), *id, *version);
  }
  [[nodiscard]] json::value fetched(const Result<CachedBytes>& answer) {
    if (!answer)
      return refused(answer.error());
    if (!*answer)
      return error("absent");
    return ok(json::array{text_to_json(**answer), json::string(to_string(answer->from))});
  }
  [[nodiscard]] json::value raised(const Error& failure) {
    error_text = failure.text;
    return json::object{{"raises", failure.message()}};
  }
  [[nodiscard]] json::value refused(const Error& failure) {
    error_text = failure.text;
    if (failure.is(Errc::wrong_kind))
      return error("kind");
    if (failure.is(Errc::handler_failed))
      return error(json::string(failure.text));
    if (failure.is(Errc::invalid_argument))
      return raised(failure);
    return error(json::object{{"server", failure.text}});
  }

  const Client& client_;
  const json::object& args_;
};

using CacheVerb = json::value (CacheCaller::*)();

}  // namespace

std::optional<Outcome> make_cache_call(const Client& client, std::string_view call, const json::object& args) {
  static const std::map<std::string_view, CacheVerb> verbs = {
      {"table_start", &CacheCaller::table_start},
      {"fetch", &CacheCaller::fetch},
      {"fetch_together", &CacheCaller::fetch_together},
      {"put", &CacheCaller::put},
      {"invalidate", &CacheCaller::invalidate},
      {"apply_coherence", &CacheCaller::apply_coherence},
      {"table_stats", &CacheCaller::table_stats},
      {"broadcast", &CacheCaller::broadcast},
      {"drop_l2", &CacheCaller::drop_l2},
      {"coh_enqueue", &CacheCaller::coh_enqueue},
  };
  const auto verb = verbs.find(call);
  if (verb == verbs.end())
    return std::nullopt;
  CacheCaller caller(client, args);
  Outcome outcome;
  outcome.result = (caller.*(verb->second))();
  outcome.error_text = caller.error_text;
  return outcome;
}

}  // namespace echomq::conformance
