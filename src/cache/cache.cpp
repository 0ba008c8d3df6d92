// `ByteCache` and `CacheWriter`: the public doors of the cache room.
#include "echomq/cache.hpp"

#include <array>
#include <exception>
#include <memory>
#include <utility>

#include "cache/frame.hpp"
#include "cache/table.hpp"
#include "client/core.hpp"
#include "client/detached.hpp"
#include "result/try.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace {

client::Detached run_load(std::shared_ptr<const LoadBytesTask> load, BrandedId id, LoadDone done) {
  Result<std::optional<Loaded<std::string>>> loaded;
  try {
    Task<Result<std::optional<Loaded<std::string>>>> task = (*load)(id, done.stop());
    loaded = co_await task;
  } catch (const std::exception& thrown) {
    loaded = fail(Errc::handler_failed, std::string("the loader threw: ") + thrown.what());
  } catch (...) {
    loaded = fail(Errc::handler_failed, "the loader threw what is no std::exception");
  }
  done(std::move(loaded));
}

struct AsItIs {
  Result<CachedBytes> operator()(Result<CachedBytes> answer) const { return answer; }
};

}  // namespace

struct LoadDone::State {
  explicit State(Take its_take) : take(std::move(its_take)) {}
  ~State() { answer(fail(Errc::handler_failed, "the loader gave up its load without an answer")); }
  void answer(Result<std::optional<Loaded<std::string>>> loaded) {
    if (!answered.exchange(true))
      std::exchange(take, nullptr)(std::move(loaded));
  }
  std::atomic<bool> answered{false};
  Take take;
  const CancelToken stop;
};

LoadDone::LoadDone(Take take) : state_(std::make_shared<State>(std::move(take))) {}
void LoadDone::operator()(Result<std::optional<Loaded<std::string>>> loaded) const {
  state_->answer(std::move(loaded));
}
CancelToken LoadDone::stop() const { return state_->stop; }

Result<ByteCache> ByteCache::open(const Client& client, CacheOptions options, LoadBytes load) {
  ECHOMQ_TRY(std::shared_ptr<cache::Table> table,
             cache::Table::open(client, std::move(options), std::move(load), nullptr));
  return ByteCache(std::move(table));
}

Result<ByteCache> ByteCache::open_async(const Client& client, CacheOptions options, LoadBytesAsync load) {
  ECHOMQ_TRY(std::shared_ptr<cache::Table> table,
             cache::Table::open(client, std::move(options), nullptr, std::move(load)));
  return ByteCache(std::move(table));
}

Result<ByteCache> ByteCache::open_task(const Client& client, CacheOptions options, LoadBytesTask load) {
  if (!load)
    return open(client, std::move(options));
  struct Start {
    std::shared_ptr<const LoadBytesTask> load;
    BrandedId id;
    LoadDone done;
  };
  auto start = [core = std::weak_ptr(client.core()), shared = std::make_shared<const LoadBytesTask>(std::move(load))](
                   const BrandedId& id, LoadDone done) {
    // Not on the thread that reads: a coroutine may do something before it first awaits.
    const auto on = core.lock();
    if (!on)
      return done(fail(Errc::client_closed, "the client is closed", Repeat::safe));
    on->post(Continuation{[](void* argument) noexcept {
                            const std::unique_ptr<Start> begun(static_cast<Start*>(argument));
                            run_load(begun->load, begun->id, begun->done);
                          },
                          new Start{shared, id, std::move(done)}});
  };
  return open_async(client, std::move(options), std::move(start));
}

ByteCache::ByteCache(std::shared_ptr<cache::Table> table) noexcept : table_(std::move(table)) {}
ByteCache::ByteCache(ByteCache&&) noexcept = default;
ByteCache& ByteCache::operator=(ByteCache&& other) noexcept {
  std::swap(table_, other.table_);
  return *this;
}
ByteCache::~ByteCache() {
  if (table_)
    table_->close();
}

bool ByteCache::peek(const BrandedId& id, CachedBytes& into) const noexcept { return table_->peek(id, into); }

Reply<CachedBytes> ByteCache::get(const BrandedId& id) const {
  CachedBytes hit;
  if (table_->hit(id, hit))
    return Result<CachedBytes>(std::move(hit));
  auto* call = new detail::CacheCall<CachedBytes, AsItIs>(AsItIs{});
  call->default_target = continues_on();
  call->source = drives();
  call->retain();
  detail::CallPointer<detail::CallOf<CachedBytes>> mine(call);
  detail::CacheWaiter* waiter = call;
  table_->fetch({&id, 1}, {&waiter, 1});
  return Reply<CachedBytes>(std::move(mine));
}

Reply<CachedBytes> ByteCache::get_or_load(const BrandedId& id, LoadBytes load) const {
  if (!load)
    return fail(Errc::invalid_argument, "get_or_load needs a loader");
  CachedBytes hit;
  if (table_->hit(id, hit))
    return Result<CachedBytes>(std::move(hit));
  // Answered by the loader's thread, so nothing is driven meanwhile.
  auto* call = new detail::CacheCall<CachedBytes, AsItIs>(AsItIs{});
  call->default_target = continues_on();
  call->retain();
  detail::CallPointer<detail::CallOf<CachedBytes>> mine(call);
  detail::CacheWaiter* waiter = call;
  table_->fetch({&id, 1}, {&waiter, 1}, std::move(load));
  return Reply<CachedBytes>(std::move(mine));
}

Reply<std::vector<Result<CachedBytes>>> ByteCache::get_many(std::span<const BrandedId> ids) const {
  using Results = std::vector<Result<CachedBytes>>;
  if (ids.empty())
    return Result<Results>(Results());
  auto* call = new detail::CacheGather<CachedBytes, AsItIs>(ids.size(), AsItIs{});
  call->default_target = continues_on();
  call->source = drives();
  std::vector<detail::CacheWaiter*> waiters;
  waiters.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    waiters.push_back(call->seat(i));
  call->retain();
  detail::CallPointer<detail::CallOf<Results>> mine(call);
  table_->fetch(ids, waiters);
  return Reply<Results>(std::move(mine));
}

Reply<CachePut> ByteCache::put(const BrandedId& id, std::string_view value, std::optional<BrandedId> version) const {
  return table_->put(id, value, {.version = version});
}
Reply<CachePut> ByteCache::put(const BrandedId& id, std::string_view value, const CachePutOptions& with) const {
  return table_->put(id, value, with);
}
Reply<std::vector<Result<CachePut>>> ByteCache::put_many(std::span<const CachePutItem> items) const {
  return table_->put_many(items, {});
}
Reply<std::vector<Result<CachePut>>> ByteCache::put_encoded(std::span<const CachePutItem> items,
                                                            std::span<const Result<std::string>> values) const {
  return table_->put_many(items, values);
}
Reply<std::uint64_t> ByteCache::invalidate_tag(std::string_view tag) const { return table_->invalidate_tag(tag); }
bool ByteCache::hit(const BrandedId& id, CachedBytes& into) const { return table_->hit(id, into); }
Reply<void> ByteCache::invalidate(const BrandedId& id) const { return table_->invalidate(id); }
Result<Applied> ByteCache::apply(const BrandedId& id, const BrandedId& version) const {
  return table_->apply(id, version);
}
void ByteCache::flush() const { table_->flush(); }
bool ByteCache::serving() const noexcept { return table_->serving(); }
CacheStats ByteCache::stats() const { return table_->stats(); }
const CacheOptions& ByteCache::options() const noexcept { return table_->options(); }
void ByteCache::close() { table_->close(); }
void ByteCache::fetch(std::span<const BrandedId> ids, std::span<detail::CacheWaiter* const> waiters,
                      LoadBytes load) const {
  table_->fetch(ids, waiters, std::move(load));
}
detail::Source* ByteCache::drives() const noexcept { return table_->drives(); }
detail::Target* ByteCache::continues_on() const noexcept { return table_->continues_on(); }

CacheWriter::CacheWriter(const Client& client, const CacheName& table) : core_(client.core()), table_(table) {}

Reply<std::int64_t> CacheWriter::broadcast(const BrandedId& id, const BrandedId& version) const {
  const cache::TableKeys keys(table_);
  const std::string message = CoherenceMessage{id, version}.text();
  const std::array<std::string_view, 3> parts = {"PUBLISH", keys.channel, message};
  // Said twice it is the same: an equal version drops nothing.
  return core_->command<std::int64_t>(parts, {.repeat = Repeat::safe},
                                      [](const wire::Answer& answer) -> Result<std::int64_t> {
                                        if (const auto receivers = answer.view.as_integer())
                                          return *receivers;
                                        return fail(Errc::protocol_error, "PUBLISH: unexpected reply");
                                      });
}

Reply<bool> CacheWriter::drop_l2(const BrandedId& id, const BrandedId& version) const {
  static const script::ScriptSource& script = *script::find_script("coherence_drop");
  const auto key = cache::TableKeys(table_).row(id);
  const std::array<std::string_view, 1> keys = {key.view()};
  const std::array<std::string_view, 1> arguments = {version.text()};
  return core_->eval<bool>(script, keys, arguments, {.repeat = Repeat::safe},
                           [](const wire::Answer& answer) -> Result<bool> {
                             if (const auto deleted = answer.view.as_integer())
                               return *deleted == 1;
                             return fail(Errc::protocol_error, "coherence_drop: unexpected reply");
                           });
}

}  // namespace v1
}  // namespace echomq
