// A cache close at hand: one load however many ask, rows that go by their tag, and answers that say where they come from.
//
//   near_cache [URL]      default valkey://127.0.0.1:6379
#include <echomq/cache.hpp>
#include <echomq/client.hpp>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  const char* url = argc > 1 ? argv[1] : "valkey://127.0.0.1";
  auto here = echomq::Client::open(url);
  auto elsewhere = echomq::Client::open(url);
  if (!here || !elsewhere) {
    std::cerr << (here ? elsewhere : here).error().message() << '\n';
    return 1;
  }

  // What the source of truth would give. Its tags say what it depends on.
  const auto load = [](const echomq::BrandedId& id) -> echomq::Result<std::optional<echomq::Loaded<std::string>>> {
    std::cout << "loading " << id.text() << '\n';
    return echomq::Loaded<std::string>{"Ada", std::nullopt, {"team.7"}};
  };
  const echomq::CacheOptions options = {
      .table = "users",
      .kind = "USR",
      .ttl = 60s,
      .coherence = echomq::Coherence::tracking,  // the server tells of every change
      .tags = true,
      .load_lease = 3s,  // one process loads, the others wait for it
  };
  auto mine = echomq::Cache<std::string>::open(*here, options, load);
  auto theirs = echomq::Cache<std::string>::open(*elsewhere, options, load);
  if (!mine || !theirs) {
    std::cerr << (mine ? theirs : mine).error().message() << '\n';
    return 1;
  }

  const echomq::BrandedId ada{"USR0NgWEfAE00A"};
  auto first = mine->get(ada);
  auto second = theirs->get(ada);  // at the same time, in another client: no second load
  for (auto* reply : {&first, &second}) {
    const auto answer = reply->get();
    if (!answer) {
      std::cerr << answer.error().message() << '\n';
      return 1;
    }
    std::cout << **answer << ", by " << (answer->from == echomq::CacheFrom::fill ? "the loader" : "the other's load")
              << '\n';
  }

  const auto dropped = mine->invalidate_tag("team.7").get();
  if (!dropped) {
    std::cerr << dropped.error().message() << '\n';
    return 1;
  }
  std::cout << *dropped << " row of team.7 dropped\n";
  (void)mine->get(ada).get();  // loads anew
}
