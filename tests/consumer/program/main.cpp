// What a user's first file needs to compile, link and run: no server, no package but EchoMQ.
#include <echomq/client.hpp>
#include <echomq/error.hpp>
#include <echomq/metrics.hpp>
#include <echomq/observer.hpp>
#include <echomq/queue.hpp>
#include <echomq/typed.hpp>
#include <echomq/worker.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

// What a user derives from or specialises has to come out of the library whole.
struct Point {
  int x = 0;
};
template <>
struct echomq::Codec<Point> {
  static std::string encode(const Point& point) { return std::to_string(point.x); }
  static Point decode(std::string_view bytes) { return {std::stoi(std::string(bytes))}; }
};

class Quiet final : public echomq::WorkerObserver {
 public:
  void recovered(const echomq::QueueName& queue, std::span<const echomq::JobId> waiting,
                 std::span<const echomq::JobId> dead) override {
    WorkerObserver::recovered(queue, waiting, dead);
    told = true;
  }
  bool told = false;
};

bool observes() {
  const auto quiet = std::make_shared<Quiet>();
  const auto metrics = std::make_shared<echomq::WorkerMetrics>();
  for (const std::shared_ptr<echomq::WorkerObserver>& observer :
       {std::shared_ptr<echomq::WorkerObserver>(quiet), std::shared_ptr<echomq::WorkerObserver>(metrics)})
    observer->recovered("work", {}, {});
  const echomq::Handler handler =
      echomq::typed_handler<Point>([](const Point& point) { return echomq::Done(Point{point.x + 1}); });
  return quiet->told && metrics->snapshot().size() == 1 && !metrics->prometheus().empty() && handler &&
         dynamic_cast<const echomq::WorkerObserver*>(metrics.get()) != nullptr && echomq::Done(Point{7}).text == "7";
}

int main() {
  if (!observes()) {
    std::puts("an observer or a codec of a user's own does not work");
    return 1;
  }
  // Nobody listens on port 1: the answer has to be an error, and the right one.
  const auto client = echomq::Client::open("valkey://127.0.0.1:1", {.connect_timeout = std::chrono::milliseconds(500),
                                                                    .deadline = std::chrono::milliseconds(500)});
  if (client || !client.error().is(echomq::Errc::unreachable)) {
    std::puts(client ? "connected to nothing" : client.error().message().c_str());
    return 1;
  }
  return 0;
}
