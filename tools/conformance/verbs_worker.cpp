// The call of the vocabulary that runs a worker.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include "conformance/verbs.hpp"
#include "echomq/worker.hpp"

namespace echomq::conformance {

json::value run_consumer(const Client& client, std::string_view queue, const json::object& args) {
  const std::int64_t calls = integer_of(args.at("calls"));
  const json::object& verdicts = args.at("verdicts").as_object();
  std::mutex mutex;
  std::condition_variable changed;
  json::array handled;       // guarded by mutex
  std::int64_t settled = 0;  // guarded by mutex

  WorkerOptions options;
  options.lease = Milliseconds(integer_of(args.at("lease_ms")));
  options.backoff = Backoff::fixed(Milliseconds(integer_of(args.at("retry_delay_ms"))));
  options.max_attempts = static_cast<std::uint32_t>(integer_of(args.at("max_attempts")));
  options.events = WorkerEvents::nothing;  // the canonical single-job worker publishes nothing
  options.on_settled = [&](const Job&, std::string_view) {
    const std::lock_guard lock(mutex);
    ++settled;
    changed.notify_all();
  };
  const auto handler = [&](Job& job) -> echomq::Outcome {
    {
      const std::lock_guard lock(mutex);
      json::array tuple{json::string(job.id().text()), text_to_json(job.payload()),
                        static_cast<std::int64_t>(job.attempt())};
      if (job.lane())
        tuple.push_back(json::string(job.lane()->text()));
      handled.push_back(tuple);
    }
    const json::value* verdict = verdicts.if_contains(job.payload());
    if (verdict == nullptr)
      return Done();
    const std::string text = text_of(verdict->at(1));
    if (text_of(verdict->at(0)) == "raise")
      throw std::runtime_error(text);
    return Retry(text);
  };
  auto worker = Worker::start(client.queue(QueueName::parse(queue).value()), handler, options);
  if (!worker)
    return json::string(worker.error().message());
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(10), [&] { return settled == calls; });
  }
  worker->stop();
  return handled;
}

}  // namespace echomq::conformance
