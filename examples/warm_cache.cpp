// A warm cache: values close at hand, loaded by a coroutine, filled beforehand from a stream; what it counts as a page.
//
//   warm_cache [URL]      default valkey://127.0.0.1:6379
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "echomq/cache.hpp"
#include "echomq/cache_metrics.hpp"
#include "echomq/client.hpp"
#include "echomq/hydration.hpp"
#include "echomq/stream.hpp"
#include "echomq/task.hpp"

using namespace echomq;
using namespace std::chrono_literals;

namespace {

using Loading = Task<Result<std::optional<Loaded<std::string>>>>;

/// What stands for the database: a key of the server. No thread waits for it. `stop` would be asked in between where it takes
/// several steps: nobody waits for it any more then.
Loading load_user(const Client& client, BrandedId id, CancelToken /*stop*/) {
  auto asked = client.command("GET", "database:" + std::string(id.text()));
  const Result<Value> row = co_await asked;
  if (!row)
    co_return std::unexpected<Error>(row.error());
  if (row->is_null())
    co_return std::optional<Loaded<std::string>>();
  co_return std::optional<Loaded<std::string>>({std::string(row->as_text().value_or("")), std::nullopt});
}

void show(const char* what, const Result<Cached<std::string>>& answer) {
  if (!answer) {
    std::printf("%s: %s\n", what, answer.error().message().c_str());
    return;
  }
  std::printf("%s: %s, from %s\n", what, answer->value.value_or("nothing").c_str(),
              std::string(to_string(answer->from)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  auto client = Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1:6379");
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().message().c_str());
    return 1;
  }
  const CacheName table = "users";
  CacheOptions options{.table = table, .kind = "USR", .ttl = 60s, .coherence = Coherence::broadcast};
  options.load_deadline = 2s;  // who waits longer gets an error, and the loader is asked to stop
  auto users = Cache<std::string>::open_task(*client, options, [&client](BrandedId id, CancelToken stop) {
    return load_user(*client, std::move(id), std::move(stop));
  });
  if (!users) {
    std::fprintf(stderr, "%s\n", users.error().message().c_str());
    return 1;
  }

  const auto alice = client->mint("USR");
  const auto bob = client->mint("USR");
  if (!alice || !bob)
    return 1;
  (void)client->command("SET", "database:" + std::string(alice->text()), "Alice", "PX", "60000").get();
  show("first read", users->get(*alice).get());
  show("second read", users->get(*alice).get());
  show("nobody", users->get(*bob).get());

  // A writer: source of truth, put, then tell the others.
  const auto version = client->mint("USR");
  if (!version)
    return 1;
  (void)client->command("SET", "database:" + std::string(alice->text()), "Alice B.", "PX", "60000").get();
  (void)users->put(*alice, "Alice B.", *version).get();
  (void)CacheWriter(*client, table).broadcast(*alice, *version).get();
  show("after a write", users->get(*alice).get());

  // What a stream says of users, newer wins: a cache that is warm before it is asked.
  const Stream changes = client->stream(QueueName{"users"}, StreamName{"changes"});
  const std::array<Field, 2> fields = {Field{"key", bob->text()}, Field{"value", "Bob"}};
  (void)changes.append(fields).get();
  auto hydration = CacheHydration::start(users->bytes(), changes);
  if (hydration) {
    if (const auto filled = hydration->wait(5s))
      std::printf("filled from the stream: %llu rows\n", static_cast<unsigned long long>(filled->placed));
  }
  show("from the stream", users->get(*bob).get());
  (void)changes.trim_to(1000).get();

  // For who scrapes it; of a few tables it is one page.
  const std::array<CacheTableStats, 1> counted = {CacheTableStats{table, users->stats()}};
  std::printf("%s", cache_prometheus(counted).c_str());
  return 0;
}
