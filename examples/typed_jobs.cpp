// Jobs whose payloads and results are values: JSON on the wire, and counters of what was done.
//
//   typed_jobs [URL]      default valkey://127.0.0.1:6379
#include <echomq/client.hpp>
#include <echomq/metrics.hpp>
#include <echomq/typed.hpp>
#include <echomq/with/json.hpp>  // needs Boost.JSON; without it give echomq::Codec<Order> an encode and a decode

#include <boost/json.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

struct Order {
  std::string customer;
  std::vector<int> prices;  // cents
};
void tag_invoke(boost::json::value_from_tag, boost::json::value& out, const Order& order) {
  out = {{"customer", order.customer}, {"prices", boost::json::value_from(order.prices)}};
}
Order tag_invoke(boost::json::value_to_tag<Order>, const boost::json::value& in) {
  const boost::json::object& object = in.as_object();
  return {boost::json::value_to<std::string>(object.at("customer")),
          boost::json::value_to<std::vector<int>>(object.at("prices"))};
}

int main(int argc, char** argv) {
  auto client = echomq::Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1");
  if (!client) {
    std::cerr << client.error().message() << '\n';
    return 1;
  }
  const echomq::TypedQueue<Order> orders(client->queue("orders"));

  auto metrics = std::make_shared<echomq::WorkerMetrics>();
  echomq::WorkerOptions options;
  options.concurrency = 4;
  options.observer = metrics;
  auto worker = orders.start_worker(
      [](const Order& order) {
        if (order.prices.empty())
          return echomq::Dead("an order of nothing");
        int total = 0;
        for (const int price : order.prices)
          total += price;
        return echomq::Done(total);  // the result has a type, too
      },
      options);
  if (!worker) {
    std::cerr << worker.error().message() << '\n';
    return 1;
  }

  auto paid = orders.enqueue_and_wait({"Ada", {1250, 499}});
  auto empty = orders.enqueue_and_wait({"Bob", {}});
  // What another program has sent may be anything. It is dead at once, and the handler never sees it.
  auto foreign = orders.untyped().enqueue_and_wait("not JSON");
  for (auto* reply : {&paid, &empty, &foreign}) {
    const auto ended = reply->get();
    if (!ended) {
      std::cerr << ended.error().message() << '\n';
      return 1;
    }
    if (const auto total = echomq::decode_result<int>(*ended)) {
      std::cout << "total " << *total << '\n';
    } else {
      std::cout << total.error().message() << '\n';
    }
  }

  worker->stop();
  for (const echomq::QueueMetrics& queue : metrics->snapshot()) {
    std::cout << queue.queue.text() << ": " << queue.ended(echomq::JobVerdict::done) << " done, "
              << queue.ended(echomq::JobVerdict::dead) << " dead, half of them ran no longer than "
              << queue.run.percentile(0.5).count() << " ns\n";
  }
  std::cout << metrics->prometheus();  // what /metrics would give
}
