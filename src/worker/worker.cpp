// The public face of an engine.
#include "echomq/worker.hpp"

#include <utility>

#include "worker/engine.hpp"

namespace echomq {
inline namespace v1 {
Worker::Worker(std::shared_ptr<worker::Engine> engine) noexcept : engine_(std::move(engine)) {}
Worker::Worker(Worker&&) noexcept = default;

Worker& Worker::operator=(Worker&& other) noexcept {
  if (this != &other)
    worker::Engine::let_go(std::exchange(engine_, std::exchange(other.engine_, nullptr)));
  return *this;
}

Worker::~Worker() { worker::Engine::let_go(std::move(engine_)); }

Result<Worker> Worker::start(const Queue& queue, Handler handler, WorkerOptions options) {
  auto engine = worker::Engine::start(queue, std::move(handler), std::move(options));
  if (!engine)
    return std::unexpected(std::move(engine).error());
  return Worker(*std::move(engine));
}

Result<Worker> Worker::start_async(const Queue& queue, AsyncHandler handler, WorkerOptions options) {
  auto engine = worker::Engine::start(queue, std::move(handler), std::move(options));
  if (!engine)
    return std::unexpected(std::move(engine).error());
  return Worker(*std::move(engine));
}

StopReport Worker::stop(std::optional<Milliseconds> deadline) {
  if (!engine_)
    return {};
  return engine_->stop(deadline.value_or(engine_->default_stop_deadline()));
}

WorkerStats Worker::stats() const { return engine_ ? engine_->stats() : WorkerStats{}; }

void Worker::cancel(JobId id) {
  if (engine_)
    engine_->cancel(id);
}

}  // namespace v1
}  // namespace echomq
