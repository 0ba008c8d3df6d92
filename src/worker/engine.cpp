// The life of an engine: start, the control thread's loop, the end.
#include "worker/engine.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>

#include "queue/state.hpp"
#include "result/futex.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {

constexpr Milliseconds kLongest = std::chrono::days{365};

[[nodiscard]] Result<void> check_span(std::string_view option, Milliseconds got, Milliseconds least) {
  if (got >= least && got <= kLongest)
    return {};
  return fail(Errc::invalid_argument, std::string(option) + " must be " + std::to_string(least.count()) +
                                          "ms to a year, got " + std::to_string(got.count()) + "ms");
}

[[nodiscard]] bool is_empty(const AnyHandler& handler) {
  return std::visit([](const auto& function) { return !function; }, handler);
}

[[nodiscard]] Result<void> check(const AnyHandler& handler, const WorkerOptions& options) {
  if (is_empty(handler))
    return fail(Errc::invalid_argument, "the handler is empty");
  const bool plain = std::holds_alternative<Handler>(handler);
  const std::uint32_t most = plain ? 1024 : 100'000;
  if (options.concurrency < 1 || options.concurrency > most) {
    return fail(Errc::invalid_argument,
                "concurrency must be 1 to " + std::to_string(most) + ", got " + std::to_string(options.concurrency));
  }
  if (options.threads > 1024)
    return fail(Errc::invalid_argument, "threads must be 0 to 1024, got " + std::to_string(options.threads));
  ECHOMQ_CHECK(check_span("lease", options.lease, Milliseconds{100}));
  ECHOMQ_CHECK(check_span("beat", options.beat, Milliseconds{10}));
  ECHOMQ_CHECK(check_span("sweep_period", options.sweep_period, Milliseconds{10}));
  ECHOMQ_CHECK(check_span("outbox_period", options.outbox_period, Milliseconds{10}));
  ECHOMQ_CHECK(check_span("repeat_period", options.repeat_period, Milliseconds{10}));
  ECHOMQ_CHECK(check_span("timeout", options.timeout, Milliseconds{0}));
  ECHOMQ_CHECK(check_span("stop_patience", options.stop_patience, Milliseconds{0}));
  ECHOMQ_CHECK(check_span("keep_results", options.keep_results, Milliseconds{0}));
  ECHOMQ_CHECK(check_span("stop_deadline", options.stop_deadline, Milliseconds{0}));
  ECHOMQ_CHECK(check_span("stop_grace", options.stop_grace, Milliseconds{0}));
  if (options.max_stalled < 1)
    return fail(Errc::invalid_argument, "max_stalled must be at least 1, got 0");
  if (options.max_attempts < 1)
    return fail(Errc::invalid_argument, "max_attempts must be at least 1, got 0");
  if (!(options.event_rate >= 0 && options.event_rate <= 1))
    return fail(Errc::invalid_argument, "event_rate must be 0 to 1, got " + std::to_string(options.event_rate));
  if (options.max_leaked < 1)
    return fail(Errc::invalid_argument, "max_leaked must be at least 1, got 0");
  return options.backoff.check();
}

[[nodiscard]] std::size_t threads_of(const AnyHandler& handler, const WorkerOptions& options) {
  if (std::holds_alternative<Handler>(handler))
    return options.concurrency;
  const std::uint32_t wanted = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  return std::clamp(wanted, 1U, options.concurrency);
}

[[nodiscard]] std::string unique_name() {
  std::random_device random;
  const std::uint64_t salt = (std::uint64_t{random()} << 32U) | random();
  return std::to_string(::getpid()) + "-" + std::to_string(salt);
}

// The control thread takes no signals: a handler of the user's that blocked it would let leases lapse.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

events::PublisherOptions Engine::publishing_of(const WorkerOptions& options) {
  switch (options.events) {
    case WorkerEvents::nothing: return {.mode = events::Publishing::off};
    case WorkerEvents::sampled: return {.mode = events::Publishing::sampled, .rate = options.event_rate};
    case WorkerEvents::settled: break;
  }
  return {.mode = events::Publishing::on};
}

Engine::Engine(const Queue& queue, WorkerOptions options, std::optional<BatchWorkerOptions> batch)
    : options_(std::move(options)),
      batch_(std::move(batch)),
      queue_(queue),
      observers_(Observers::of(queue, options_)),
      inbox_(std::make_shared<Inbox>()),
      core_(std::make_shared<ControlCore>(queue.internal().core, inbox_)),
      verbs_(std::make_shared<Queue::State>(queue.name(), core_)),
      rides_(std::make_shared<RidingCore>(queue.internal().core, inbox_)),
      riding_verbs_(std::make_shared<Queue::State>(queue.name(), rides_)),
      keys_(queue.name()),
      name_(unique_name()),
      publisher_(queue.internal().core, queue.name(), publishing_of(options_)),
      beat_(options_.beat) {
  if (batch_)
    gather_.emplace(batch_->shape, batch_->max_size, batch_->source == BatchSource::lanes);
}

Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::start(const Queue& queue, AnyHandler handler, WorkerOptions options,
                                              std::optional<BatchWorkerOptions> batch) {
  ECHOMQ_CHECK(check(handler, options));
  if (queue.internal().core->closed())
    return fail(Errc::client_closed, "the client of this queue is closed");
  std::shared_ptr<Engine> engine(new Engine(queue, std::move(options), std::move(batch)));
  const std::size_t threads = threads_of(handler, engine->options_);
  ECHOMQ_TRY(engine->pool_, HandlerPool::start(threads, std::move(handler), engine->inbox_, engine.get(),
                                               engine->observers_, engine->options_.concurrency));
  engine->watch_ = engine->core_->watch(engine->keys_.wake(), [inbox = engine->inbox_] { inbox->woken(); });
  engine->rides_->watch = engine->watch_.get();
  if (engine->options_.remote_cancel) {
    engine->cancels_ =
        events::CancelWatch::start(queue.internal().core, queue.name(),
                                   {.on_cancel = [inbox = engine->inbox_](const JobId& id) { inbox->cancel(id); },
                                    .on_armed = [inbox = engine->inbox_] { inbox->armed(); }});
  }
  const SignalsBlocked blocked;
  try {
    engine->control_ = std::thread([engine] { engine->run(); });
  } catch (const std::system_error& error) {
    return fail(Errc::invalid_argument, std::string("the system gives no thread to a worker: ") + error.what());
  }
  return engine;
}

bool Engine::on_own_thread() const noexcept { return HandlerPool::serves() == this; }

StopReport Engine::stop(Milliseconds deadline) {
  if (forked())
    return {};
  // From this moment on, not from when the control thread reads of it: a handler that has stopped its worker is the last one to begin.
  begins_at_once_.store(false, std::memory_order_relaxed);
  if (!batch_)
    pool_->begin_no_more();  // a batch that was handed to the pool is not taken back: it runs
  // The sum must not overflow: a deadline past that of a year is as good as none.
  inbox_->stop_by(Clock::now() + std::clamp(deadline, Milliseconds{0}, kLongest));
  std::unique_lock lock(mutex_);
  if (!on_own_thread() && !detail::on_library_thread())
    stopped_changed_.wait(lock, [this] { return stopped_; });
  return stopped_ ? report_ : StopReport{};
}

bool Engine::close() {
  if (forked())
    return false;
  (void)stop(options_.stop_deadline);
  if (!control_.joinable())
    return true;
  if (on_own_thread() || detail::on_library_thread()) {
    control_.detach();  // it holds the engine, and ends by itself
  } else {
    control_.join();
  }
  return true;
}

void Engine::let_go(std::shared_ptr<Engine> engine) {
  if (engine && !engine->close())
    (void)new std::shared_ptr<Engine>(std::move(engine));
}

WorkerStats Engine::stats() const {
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  WorkerStats out;
  out.claimed = read(counters_.claimed);
  out.completed = read(counters_.completed);
  out.retried = read(counters_.retried);
  out.dead = read(counters_.dead);
  out.delayed = read(counters_.delayed);
  out.handed_back = read(counters_.handed_back);
  out.settles_refused = read(counters_.settles_refused);
  out.unsettled = read(counters_.unsettled);
  out.leases_lost = read(counters_.leases_lost);
  out.recovered = read(counters_.recovered);
  out.dead_stalled = read(counters_.dead_stalled);
  out.promoted = read(counters_.promoted);
  out.delivered = read(counters_.delivered);
  out.wakes = read(counters_.wakes);
  out.errors = read(counters_.errors) + (observers_ ? observers_->failures() : 0);
  out.running = read(counters_.running);
  out.leaked = read(counters_.leaked);
  out.timed_out = read(counters_.timed_out);
  out.cancelled = read(counters_.cancelled);
  out.expired = read(counters_.expired);
  out.fired = read(counters_.fired);
  out.prefetched = read(counters_.prefetched);
  const events::PublisherStats events = publisher_.stats();
  out.events_dropped = events.dropped;
  out.events_unheard = events.unheard;
  out.events_failed = events.failed;
  out.healthy = out.leaked < options_.max_leaked;
  return out;
}

void Engine::run() {
  detail::mark_library_thread();
  HandlerPool::set_serves(this);
  (void)pthread_setname_np(pthread_self(), "echomq-worker");
  now_ = Clock::now();
  alarms_.set(Alarm::promote, now_);
  alarms_.set(Alarm::upkeep, now_);
  advance();
  Mail mail;
  while (!finished_) {
    inbox_->wait(mail, deferred_.empty() ? alarms_.next() : TimePoint::min(), worthwhile());
    now_ = Clock::now();
    // A run may end before the answer that gave its job has been handled: whatever has ended comes after all answers.
    for (auto& answer : std::exchange(deferred_, {}))
      answer();
    for (const Continuation& answer : mail.answers)
      answer();
    // After the answers, which may have renewed a lease; before the runs that ended, so that a process that was stopped
    // for longer than a lease learns that first.
    if (alarms_.take(Alarm::lapse, now_))
      lapse();
    for (Ended& run : mail.ended)
      ended(std::move(run));
    for (const JobId& id : mail.cancels)
      cancelled(id);
    if (mail.armed) {
      ask_when_claimed();
      ask_for_marks();
    }
    if (mail.wakes > 0)
      tokens_taken(mail.wakes);
    if (mail.stop_by)
      begin_stop(*mail.stop_by);
    ring_alarms();
    for (auto& answer : std::exchange(deferred_, {}))
      answer();
    advance();
  }
}

void Engine::ring_alarms() {
  if (alarms_.take(Alarm::renew, now_))
    renew();
  if (alarms_.take(Alarm::repeat, now_))
    repeat_settles();
  if (alarms_.take(Alarm::claim, now_))
    claims_paused_ = false;
  if (alarms_.take(Alarm::promote, now_))
    promote();
  if (alarms_.take(Alarm::sweep, now_))
    sweep();
  if (alarms_.take(Alarm::upkeep, now_))
    upkeep();
  if (alarms_.take(Alarm::deliver, now_))
    deliver();
  if (alarms_.take(Alarm::marks, now_))
    ask_for_marks();
  if (alarms_.take(Alarm::limit, now_))
    check_limits();
  if (alarms_.take(Alarm::hurry, now_))
    hurry_ = exchanges_ > 0;
  if (alarms_.take(Alarm::queued, now_))
    return_queued();
  if (alarms_.take(Alarm::pass, now_))
    pass_foreign_token();
  if (alarms_.take(Alarm::beat, now_)) {
    by_beat_ = !looking_;
    look();
  }
}

void Engine::advance() {
  publisher_.flush();
  if (stopping_) {
    advance_stop();
    return;
  }
  exchange_more();
  if (gather_)
    hand_out_batches();
  // After the claims, which thereby find the connection idle and go out at once.
  if (named_ && !parked_ && !looking_)
    take_name_out();
}

void Engine::call_failed(const Error& error, std::string_view what) {
  counters_.errors.fetch_add(1, std::memory_order_relaxed);
  if (error.is(Errc::client_closed) || error.is(Errc::forked))
    closed_ = true;
  log(LogLevel::warning, "worker_call_failed", nullptr, std::string(what) + ": " + error.message());
}

void Engine::log(LogLevel level, std::string_view event, const JobState* job, std::string_view text) {
  const LogField fields[] = {
      {"queue", queue_.name().text()}, {"text", text}, {"job", job != nullptr ? job->id.text() : std::string_view()}};
  core_->log(level, event, std::span(fields).first(job != nullptr ? 3 : 2));
}

Milliseconds Engine::at_random(Milliseconds most) {
  return Milliseconds{std::uniform_int_distribution<std::int64_t>(0, most.count())(random_)};
}

Milliseconds Engine::spread(Milliseconds period) { return period - at_random(period / 4); }

}  // namespace worker
}  // namespace v1
}  // namespace echomq
