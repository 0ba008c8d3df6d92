// Jobs in batches: rows gathered for up to a second, or up to 500, and written by one call.
#include <echomq/batch.hpp>
#include <echomq/client.hpp>
#include <echomq/queue.hpp>

#include <iostream>
#include <span>
#include <vector>

int main(int argc, char** argv) {
  auto client = echomq::Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1");
  if (!client) {
    std::cerr << client.error().message() << '\n';
    return 1;
  }
  auto rows = client->queue("rows");
  std::vector<echomq::NewJob> some(250, {.payload = "a row", .id = {}});
  some.back().payload = "";
  if (const auto admitted = rows.enqueue_many(some).get(); !admitted) {
    std::cerr << admitted.error().message() << '\n';
    return 1;
  }

  echomq::BatchWorkerOptions options;
  options.shape = {.min_size = 100, .timeout = echomq::Milliseconds{1000}};
  options.max_size = 500;
  options.on_batch = [](const echomq::BatchReport& report) {
    std::cout << report.completed.size() << " written, " << report.retried.size() << " again later, "
              << report.dead.size() << " given up\n";
  };
  auto worker = echomq::BatchWorker::start(
      rows,
      [](std::span<echomq::Job> jobs) {
        echomq::BatchVerdicts verdicts;
        for (const echomq::Job& job : jobs) {
          // A real one writes them all at once; an empty row is its sender's fault.
          verdicts.emplace(job.id(), job.payload().empty() ? echomq::Dead("the row is empty") : echomq::Done());
        }
        return verdicts;
      },
      options);
  if (!worker) {
    std::cerr << worker.error().message() << '\n';
    return 1;
  }
  std::cin.get();
}  // hands back what gathers, finishes the batch that runs
