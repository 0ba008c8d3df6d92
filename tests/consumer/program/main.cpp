// What a user's first file needs to compile, link and run: no server, no package but EchoMQ.
#include <echomq/client.hpp>
#include <echomq/error.hpp>
#include <echomq/queue.hpp>
#include <echomq/worker.hpp>

#include <chrono>
#include <cstdio>

int main() {
  // Nobody listens on port 1: the answer has to be an error, and the right one.
  const auto client = echomq::Client::open("valkey://127.0.0.1:1", {.connect_timeout = std::chrono::milliseconds(500),
                                                                    .deadline = std::chrono::milliseconds(500)});
  if (client || !client.error().is(echomq::Errc::unreachable)) {
    std::puts(client ? "connected to nothing" : client.error().message().c_str());
    return 1;
  }
  return 0;
}
