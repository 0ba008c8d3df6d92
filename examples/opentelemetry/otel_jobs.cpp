// `examples/traced_jobs.cpp` over OpenTelemetry: each run is a span of the trace in which its job was made.
//
// Built where OpenTelemetry's headers are found; without its SDK the spans go nowhere.
//
//   otel_jobs [URL]        default valkey://127.0.0.1:6379
#include <echomq/client.hpp>
#include <echomq/observer.hpp>
#include <echomq/queue.hpp>
#include <echomq/worker.hpp>

#include <opentelemetry/context/propagation/text_map_propagator.h>
#include <opentelemetry/trace/context.h>
#include <opentelemetry/trace/propagation/http_trace_context.h>
#include <opentelemetry/trace/provider.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace otel = opentelemetry;

class Incoming final : public otel::context::propagation::TextMapCarrier {
 public:
  explicit Incoming(std::string_view traceparent) : traceparent_(traceparent) {}
  otel::nostd::string_view Get(otel::nostd::string_view key) const noexcept override {
    return key == "traceparent" ? otel::nostd::string_view(traceparent_.data(), traceparent_.size()) : "";
  }
  void Set(otel::nostd::string_view, otel::nostd::string_view) noexcept override {}

 private:
  std::string_view traceparent_;
};

class Spans final : public echomq::WorkerObserver {
 public:
  void started(const echomq::Job& job) override {
    auto empty = otel::context::Context();
    auto context = otel::trace::propagation::HttpTraceContext().Extract(Incoming(job.traceparent()), empty);
    otel::trace::StartSpanOptions options;
    options.kind = otel::trace::SpanKind::kConsumer;
    options.parent = otel::trace::GetSpan(context)->GetContext();
    auto span = tracer_->StartSpan("process " + std::string(job.queue().text()),
                                   {{"messaging.system", "echomq"},
                                    {"messaging.message.id", std::string(job.id().text())},
                                    {"messaging.echomq.attempt", job.attempt()}},
                                   options);
    const std::lock_guard lock(mutex_);
    open_.emplace(std::pair(job.id(), job.attempt()), std::move(span));
  }
  void ended(const echomq::Job& job, const echomq::Outcome& outcome, std::chrono::nanoseconds) override {
    const std::lock_guard lock(mutex_);
    const auto run = open_.extract(std::pair(job.id(), job.attempt()));
    if (run.empty())
      return;
    using Kind = echomq::Outcome::Kind;
    if (outcome.kind == Kind::retry || outcome.kind == Kind::dead)
      run.mapped()->SetStatus(otel::trace::StatusCode::kError, outcome.text);
    run.mapped()->End();
  }

 private:
  using Span = otel::nostd::shared_ptr<otel::trace::Span>;
  otel::nostd::shared_ptr<otel::trace::Tracer> tracer_ =
      otel::trace::Provider::GetTracerProvider()->GetTracer("echomq");
  std::mutex mutex_;
  std::map<std::pair<echomq::JobId, std::uint64_t>, Span> open_;  // by claim: an attempt is a claim's own
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
  auto worker = echomq::Worker::start(mails, [](echomq::Job&) { return echomq::Done(); }, options);
  if (!worker) {
    std::cerr << worker.error().message() << '\n';
    return 1;
  }
  const std::string_view context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const auto ended = mails.enqueue_and_wait("ada@example.org", {.run = {.traceparent = context}}).get();
  if (!ended) {
    std::cerr << ended.error().message() << '\n';
    return 1;
  }
}
