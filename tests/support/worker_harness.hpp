// What the worker's tests share: a server of their own with a queue on it, and waiting for what must come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "echomq/worker.hpp"
#include "support/bounds.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

/// Looks every two milliseconds whether `holds()`, for `limit` at most. A limit of one's own is a claim, and a bound as any
/// other.
[[nodiscard]] inline bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds limit = 10s) {
  const auto until = std::chrono::steady_clock::now() + (limit < 10s ? std::min(bound(limit), 10'000ms) : limit);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until)
      return holds();
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

[[nodiscard]] inline std::chrono::milliseconds since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

/// A worker of one slot whose periods are short enough for a test; the idle ones are long, so that nothing is found
/// by looking again what a wake token should have told.
[[nodiscard]] inline WorkerOptions quick_options(std::uint32_t concurrency = 1) {
  WorkerOptions options;
  options.concurrency = concurrency;
  options.lease = 2s;
  options.beat = 30s;
  options.sweep_period = 1s;
  options.stop_deadline = 5s;
  // On a busy machine a run that was only starved is given up by those tests alone that mean it; a handler that is given
  // up may outlive its test, and may refer to nothing of it.
  options.stop_patience = 10s;
  options.backoff = Backoff::fixed(10ms);
  return options;
}

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override { start_server({}); }

  void start_server(testing::PrivateServerOptions options) {
    auto server = testing::PrivateServer::start(std::move(options));
    ASSERT_TRUE(server) << server.error().message();
    server_.emplace(*std::move(server));
    client_.emplace(open());
    queue_.emplace(client_->queue("work"));
  }

  [[nodiscard]] Client open(std::string_view url = {}, ClientOptions options = {}) {
    auto client = Client::open(url.empty() ? server_->url() : std::string(url), std::move(options));
    if (!client)
      throw std::runtime_error(client.error().message());
    return *std::move(client);
  }

  [[nodiscard]] Worker start(Handler handler, WorkerOptions options = quick_options()) {
    return start_on(*queue_, std::move(handler), std::move(options));
  }
  [[nodiscard]] static Worker start_on(const Queue& queue, Handler handler, WorkerOptions options = quick_options()) {
    auto worker = Worker::start(queue, std::move(handler), std::move(options));
    if (!worker)
      throw std::runtime_error(worker.error().message());
    return *std::move(worker);
  }

  JobId enqueue(std::string_view payload = "x", EnqueueOptions options = {}) {
    auto admitted = queue_->enqueue(payload, options).get();
    if (!admitted)
      throw std::runtime_error(admitted.error().message());
    return admitted->id;
  }
  void enqueue_many(int count) {
    const std::vector<NewJob> jobs(static_cast<std::size_t>(count), NewJob{.payload = "x", .id = {}});
    auto admitted = queue_->enqueue_many(jobs).get();
    ASSERT_TRUE(admitted) << admitted.error().message();
    for (const auto& one : *admitted)
      ASSERT_TRUE(one) << one.error().message();
  }
  [[nodiscard]] LaneId lane() { return LaneId(client_->mint("USR").value()); }

  [[nodiscard]] QueueCounts counts() { return queue_->counts().get().value(); }
  [[nodiscard]] JobState state(JobId id) { return queue_->state(id).get().value(); }
  /// A field of the job's row, empty when there is none.
  [[nodiscard]] std::string field(JobId id, std::string_view name) {
    const auto row = queue_->job(id).get().value();
    const std::string* value = row ? row->find(name) : nullptr;
    return value != nullptr ? *value : std::string();
  }
  template <typename... Parts>
  [[nodiscard]] std::int64_t integer(const Parts&... parts) {
    return client_->command(parts...).get().value().as_integer().value_or(-1);
  }
  /// Whether `count` workers sleep on the queue's wake list, by their own word and with a BLPOP on the way.
  [[nodiscard]] bool parked(std::int64_t count) { return integer("ZCARD", "emq:{work}:parked") == count; }

  std::optional<testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Queue> queue_;
};

}  // namespace echomq::test
