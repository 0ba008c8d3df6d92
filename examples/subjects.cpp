// Subjects: streams with dotted names, followed by a pattern, each record published once under a key of the caller's.
//
//   subjects [URL]      default valkey://127.0.0.1:6379
#include "echomq/subjects.hpp"

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "echomq/client.hpp"

using namespace echomq;

int main(int argc, char** argv) {
  auto client = Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1:6379");
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().message().c_str());
    return 1;
  }
  const Subjects shop(*client, "shop");

  // Every order of Europe, whatever became of it; streams that come later too.
  std::atomic<int> heard{0};
  const auto pattern = SubjectPattern::parse("orders.eu.*");
  auto tail = shop.tail(*pattern, [&heard](const TailMessage& message) {
    std::printf("%s: order %s\n", std::string(message.stream.name()).c_str(), message.record.find("order")->c_str());
    ++heard;
  });
  if (!tail) {
    std::fprintf(stderr, "%s\n", tail.error().message().c_str());
    return 1;
  }

  // A name that no earlier run has used: keys are remembered for a day.
  const auto number = client->mint("ORD");
  if (!number) {
    std::fprintf(stderr, "%s\n", number.error().message().c_str());
    return 1;
  }
  for (const char* const subject : {"orders.eu.placed", "orders.us.placed", "orders.eu.paid", "orders.eu.paid"}) {
    const Field order{"order", number->text()};
    // A repeated publication under the same key answers the first receipt: the order is paid once.
    AppendOptions options;
    options.once = number->text();
    const auto id = shop.append(subject, {&order, 1}, options).get();
    if (!id) {
      std::fprintf(stderr, "%s\n", id.error().message().c_str());
      return 1;
    }
  }
  while (heard < 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  tail->stop();
  std::printf("%d records of Europe\n", heard.load());
  return 0;
}
