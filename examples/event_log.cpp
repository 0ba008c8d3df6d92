// An event log: a writer appends, a group of consumers handles each record once, and anyone reads a window of time.
//
//   event_log [URL]      default valkey://127.0.0.1:6379
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "echomq/client.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/stream.hpp"

using namespace echomq;

int main(int argc, char** argv) {
  auto client = Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1:6379");
  if (!client) {
    std::fprintf(stderr, "%s\n", client.error().message().c_str());
    return 1;
  }
  const Stream orders = client->stream(QueueName{"shop"}, StreamName{"orders"});

  // A consumer of the group `billing`. It may run in any process; several of one group share the records.
  auto billing = orders.group("billing");
  std::atomic<int> billed{0};
  auto consumer =
      GroupConsumer::start(*billing, "billing-1",
                           [&billed](const StreamMessage& message) {
                             std::printf("billing %s, amount %s\n", std::string(message.record.id->text()).c_str(),
                                         message.record.find("amount")->c_str());
                             ++billed;
                             return Handled::done;  // Handled::failed: it comes back later
                           },
                           {.start = GroupStart::latest});
  if (!consumer) {
    std::fprintf(stderr, "%s\n", consumer.error().message().c_str());
    return 1;
  }

  const auto before = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
  for (int i = 1; i <= 3; ++i) {
    const std::string amount = std::to_string(10 * i);
    const std::array<Field, 2> fields = {Field{"type", "paid"}, Field{"amount", amount}};
    const auto id = orders.append(fields).get();
    if (!id) {
      std::fprintf(stderr, "%s\n", id.error().message().c_str());
      return 1;
    }
  }
  while (billed < 3)
    std::this_thread::sleep_for(Milliseconds(5));
  consumer->stop();

  const auto page = orders.read_since(before).get();
  std::printf("%zu records since the start\n", page ? page->records.size() : 0);
  (void)orders.trim_to(1000, Trim::approximate).get();
  return 0;
}
