// The first program of the README: admit a job, run it, stop when Enter is pressed.
#include <echomq/client.hpp>
#include <echomq/queue.hpp>
#include <echomq/worker.hpp>

#include <iostream>

int main(int argc, char** argv) {
  auto client = echomq::Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1");
  if (!client) {
    std::cerr << client.error().message() << '\n';
    return 1;
  }
  auto thumbnails = client->queue("thumbnails");  // the name is checked at compile time

  // A call starts at once; its reply is for whoever wants to wait: .get(), co_await, .then(...).
  auto admitted = thumbnails.enqueue("cat.png").get();
  if (!admitted) {
    std::cerr << admitted.error().message() << '\n';
    return 1;
  }
  std::cout << "job " << admitted->id.text() << '\n';

  auto worker = echomq::Worker::start(thumbnails,
                                      [](echomq::Job& job) {
                                        std::cout << "making a thumbnail of " << job.payload() << '\n';
                                        return echomq::Done();
                                      },
                                      {.concurrency = 4});
  if (!worker) {
    std::cerr << worker.error().message() << '\n';
    return 1;
  }
  std::cin.get();
}  // the worker finishes what it has begun, hands back the rest
