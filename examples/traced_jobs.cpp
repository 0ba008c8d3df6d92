// A trace that goes on from who enqueues a job to the worker that runs it: `traceparent` and an observer.
//
// `Span` stands in for that of a tracing library; docs/worker.md shows the same observer over OpenTelemetry.
//
//   traced_jobs [URL]      default valkey://127.0.0.1:6379
#include <echomq/client.hpp>
#include <echomq/observer.hpp>
#include <echomq/queue.hpp>
#include <echomq/worker.hpp>

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

class Span {
 public:
  Span(std::string name, std::string_view parent) : name_(std::move(name)), parent_(parent) {}
  void set_error(std::string_view error) { error_ = error; }
  void end() const {
    std::cout << "span \"" << name_ << "\" of trace " << (parent_.empty() ? "(none)" : parent_.substr(3, 32)) << ", "
              << (error_.empty() ? "ok" : error_) << std::endl;
  }

 private:
  std::string name_;
  std::string parent_;
  std::string error_;
};

class Spans final : public echomq::WorkerObserver {
 public:
  void started(const echomq::Job& job) override {
    Span span("process " + std::string(job.queue().text()), job.traceparent());
    const std::lock_guard lock(mutex_);
    open_.emplace(Run(job.id(), job.attempt()), std::move(span));
  }
  void ended(const echomq::Job& job, const echomq::Outcome& outcome, std::chrono::nanoseconds /*ran*/) override {
    const std::lock_guard lock(mutex_);
    auto run = open_.extract(Run(job.id(), job.attempt()));
    if (run.empty())
      return;
    using Kind = echomq::Outcome::Kind;
    if (outcome.kind == Kind::retry || outcome.kind == Kind::dead)
      run.mapped().set_error(outcome.text);
    run.mapped().end();
  }

 private:
  using Run = std::pair<echomq::JobId, std::uint64_t>;  // an attempt is a claim's own
  std::mutex mutex_;                                    // handlers run side by side
  std::map<Run, Span> open_;
};

int main(int argc, char** argv) {
  auto client = echomq::Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1");
  if (!client) {
    std::cerr << client.error().message() << '\n';
    return 1;
  }
  auto mails = client->queue("mails");
  echomq::WorkerOptions options;
  options.observer = std::make_shared<Spans>();
  auto worker = echomq::Worker::start(
      mails, [](echomq::Job& job) { return job.payload().empty() ? echomq::Dead("to nobody") : echomq::Done(); },
      options);
  if (!worker) {
    std::cerr << worker.error().message() << '\n';
    return 1;
  }
  // The context of the span that is current where the job is made.
  const std::string_view context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  for (const std::string_view to : {"ada@example.org", ""}) {
    const auto ended = mails.enqueue_and_wait(to, {.run = {.traceparent = context}}).get();
    if (!ended) {
      std::cerr << ended.error().message() << '\n';
      return 1;
    }
  }
}
