// `emq work`: serves a queue with a shell command.
//
// The main thread only watches: signals, the wish to leave an empty queue, the progress line. Handlers run on the
// worker's threads, one command each.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <csignal>
#include <ctime>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "command_process.hpp"
#include "commands.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"
#include "guard.hpp"
#include "keyspace/keys.hpp"
#include "spawn.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

using echomq::Milliseconds;
using namespace std::chrono_literals;

constexpr auto kTick = 100ms;
// From SIGTERM to SIGKILL for a command; the worker waits a little longer for the thread that runs it.
constexpr auto kKillAfter = 3s;
constexpr auto kStopGrace = kKillAfter + 3s;

struct WorkArguments {
  std::string queue;
  std::string command;
  std::uint32_t concurrency = 1;
  std::optional<std::string> lease;
  std::optional<std::string> beat;
  std::optional<std::string> stop_deadline;
  std::optional<std::string> retry_delay;
  std::uint32_t max_attempts = 3;
  std::uint32_t max_stalled = 3;
  bool drain = false;
  bool quiet = false;
};

// Blocks the signals that end the tool; made before any thread is, so that all threads leave them to us.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      ::sigaddset(&set_, number);
    }
    (void)::sigprocmask(SIG_BLOCK, &set_, nullptr);
  }
  /// The number of one that came, 0 when none did in time.
  [[nodiscard]] int wait(std::chrono::milliseconds limit) const {
    const timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
    const int number = ::sigtimedwait(&set_, nullptr, &time);
    return number > 0 ? number : 0;
  }

 private:
  sigset_t set_{};
};

// What every handler needs.
struct Shop {
  Session& session;
  const WorkArguments& options;
  Guard guard;
  std::vector<std::string> environment;
  std::stop_source hurry;  // requested: commands are killed at once
};

// Remarks of the worker's control thread, which must not wait for whoever reads standard error: the main thread says
// them.
class Remarks {
 public:
  void add(std::string text) {
    const std::lock_guard guard(mutex_);
    texts_.push_back(std::move(text));
  }
  void say(Session& session, Progress& progress) {
    std::vector<std::string> texts;
    {
      const std::lock_guard guard(mutex_);
      texts.swap(texts_);
    }
    if (texts.empty()) {
      return;
    }
    progress.clear();
    for (const std::string& text : texts) {
      session.note(text);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

std::string how_it_ended(const CommandEnd& end) {
  if (end.signal != 0) {
    return fmt::format("killed by signal {}", end.signal);
  }
  return fmt::format("exit status {}", end.exit_status);
}

echomq::Outcome handle(Shop& shop, echomq::Job& job) {
  std::vector<std::string> environment = shop.environment;
  environment.push_back(fmt::format("EMQ_JOB_ID={}", job.id().text()));
  environment.push_back(fmt::format("EMQ_QUEUE={}", job.queue().text()));
  environment.push_back(fmt::format("EMQ_ATTEMPT={}", job.attempt()));
  if (const auto lane = job.lane()) {
    environment.push_back(fmt::format("EMQ_GROUP={}", lane->text()));
  }
  const CommandRun run{.command = shop.options.command,
                       .input = job.payload(),
                       .environment = environment,
                       .kill_after = kKillAfter,
                       // Standard output is for our one JSON value then.
                       .output_fd = shop.session.json ? STDERR_FILENO : STDOUT_FILENO};
  CommandEnd end = run_command(run, shop.guard, job.stop_token(), shop.hurry.get_token());
  if (end.succeeded()) {
    return echomq::Done();
  }
  // No process or descriptor left: the machine's fault, not the job's.
  if (!end.started) {
    shop.session.note(fmt::format("{}: {}", job.id().text(), end.error));
    return echomq::Delay(1s);
  }
  // A command that was told to end may have exited with 0 and half of its work undone.
  if (end.stopped) {
    return echomq::HandBack();
  }
  if (!shop.options.quiet) {
    shop.session.note(fmt::format("{} attempt {}: {}", job.id().text(), job.attempt(), how_it_ended(end)));
  }
  if (end.error.empty()) {
    end.error = how_it_ended(end);
  }
  return echomq::Retry(std::move(end.error));
}

// Looks, without ever blocking, whether a queue holds no more work, or gives none of what it holds.
class EmptyWatch {
 public:
  enum class Found : std::uint8_t {
    work,  // or not known yet
    empty,
    paused,  // nothing runs that could end, and what waits is not given to anybody
    broken,  // a key of another type: no claim can be made
  };
  EmptyWatch(const echomq::Client& client, const echomq::QueueName& queue) : client_(client), keys_(queue) {}

  [[nodiscard]] Found look() {
    if (!asked_) {
      ask();
      return Found::work;
    }
    if (!asked_->ready()) {
      return Found::work;
    }
    auto answer = asked_->get();
    asked_.reset();
    if (!answer || answer->size() != all_parts) {
      return Found::work;
    }
    for (std::size_t i = 0; i < kClaimed.size(); ++i) {
      const auto& should = echomq::keyspace::spec(kClaimed[i]);
      const std::string_view is = (*answer)[types_part + i].as_text().value_or("none");
      if (is != "none" && is != to_string(should.holds)) {
        broken_ = fmt::format("{} is a {}, not a {}", keys_.fixed(kClaimed[i]), is, to_string(should.holds));
        return Found::broken;
      }
    }
    const auto depth = [&](Part part) { return (*answer)[part].as_integer().value_or(1); };
    left_ = depth(pending_part) + depth(scheduled_part);
    if (depth(active_part) != 0) {
      return Found::work;
    }
    if (left_ == 0 && depth(ring_part) == 0) {
      return Found::empty;
    }
    const echomq::Value& paused = (*answer)[paused_part];
    return paused.is_null() || paused.is_error() ? Found::work : Found::paused;
  }
  /// Flat jobs that wait or are scheduled, at the last look.
  [[nodiscard]] std::int64_t left() const { return left_; }
  /// The key of another type and what it is.
  [[nodiscard]] const std::string& broken() const { return broken_; }

 private:
  using KeyType = echomq::keyspace::KeyType;
  /// Keys without which there is no claim, or no end to what is scheduled.
  static constexpr std::array kClaimed = {KeyType::pending, KeyType::active, KeyType::schedule, KeyType::ring,
                                          KeyType::dead,    KeyType::meta,   KeyType::limiter};
  enum Part : std::size_t {
    pending_part,
    active_part,
    scheduled_part,
    ring_part,
    paused_part,
    types_part,
    all_parts = types_part + kClaimed.size()
  };

  // One transaction: a job on its way from one place to the next must not be missed between two looks.
  void ask() {
    const std::string_view parts[paused_part][2] = {
        {"ZCARD", keys_.pending()}, {"ZCARD", keys_.active()}, {"ZCARD", keys_.schedule()}, {"LLEN", keys_.ring()}};
    const std::string_view paused[] = {"HGET", keys_.meta(), "paused"};
    std::array<std::array<std::string_view, 2>, kClaimed.size()> types;
    std::vector<echomq::CommandParts> commands = {parts[pending_part], parts[active_part], parts[scheduled_part],
                                                  parts[ring_part], paused};
    for (std::size_t i = 0; i < kClaimed.size(); ++i) {
      types[i] = {"TYPE", keys_.fixed(kClaimed[i])};
      commands.emplace_back(types[i]);
    }
    asked_.emplace(client_.transaction(commands));
  }

  const echomq::Client& client_;
  echomq::keyspace::QueueKeys keys_;
  std::optional<echomq::Reply<std::vector<echomq::Value>>> asked_;
  std::int64_t left_ = 0;
  std::string broken_;
};

// Each command needs a few descriptors while it runs, and the usual limit is 1,024.
void allow_descriptors(std::uint32_t concurrency) {
  rlimit limit{};
  const rlim_t wanted = 128 + rlim_t{8} * concurrency;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
    return;
  }
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

boost::json::object described(const echomq::WorkerStats& stats, const echomq::StopReport& report) {
  return {{"claimed", stats.claimed},           {"completed", stats.completed},
          {"retried", stats.retried},           {"dead", stats.dead},
          {"handed_back", stats.handed_back},   {"settles_refused", stats.settles_refused},
          {"leases_lost", stats.leases_lost},   {"recovered", stats.recovered},
          {"dead_stalled", stats.dead_stalled}, {"errors", stats.errors},
          {"unsettled", report.unsettled}};
}

echomq::Result<echomq::WorkerOptions> worker_options(const WorkArguments& options) {
  echomq::WorkerOptions out;
  out.concurrency = options.concurrency;
  out.max_attempts = options.max_attempts;
  out.max_stalled = options.max_stalled;
  const auto set = [](Milliseconds& target, const std::optional<std::string>& text) -> echomq::Result<void> {
    if (!text) {
      return {};
    }
    auto parsed = parse_duration(*text);
    if (!parsed) {
      return echomq::fail(std::move(parsed).error());
    }
    target = *parsed;
    return {};
  };
  if (auto ok = set(out.lease, options.lease); !ok) {
    return echomq::fail(std::move(ok).error());
  }
  if (auto ok = set(out.beat, options.beat); !ok) {
    return echomq::fail(std::move(ok).error());
  }
  if (auto ok = set(out.stop_deadline, options.stop_deadline); !ok) {
    return echomq::fail(std::move(ok).error());
  }
  out.stop_grace = kStopGrace;
  // A worker that looks for expired leases less often than they expire would only add to the wait.
  out.sweep_period = std::min(out.sweep_period, out.lease);
  if (options.retry_delay) {
    Milliseconds delay{0};
    if (auto ok = set(delay, options.retry_delay); !ok) {
      return echomq::fail(std::move(ok).error());
    }
    out.backoff = echomq::Backoff::fixed(delay);
  }
  return out;
}

// From the first signal to the end: unfinished commands have until the deadline, a second signal is the deadline.
echomq::StopReport stop(Session& session, Shop& shop, echomq::Worker& worker, const Signals& signals,
                        Milliseconds deadline) {
  std::future<echomq::StopReport> report =
      std::async(std::launch::async, [&worker, deadline] { return worker.stop(deadline); });
  int further = 0;
  while (report.wait_for(0ms) != std::future_status::ready) {
    if (signals.wait(20ms) == 0) {
      continue;
    }
    if (++further > 1) {
      ::_exit(128 + SIGTERM);  // the guard ends what still runs
    }
    session.note("handing back at once");
    shop.hurry.request_stop();
    (void)worker.stop(0ms);
  }
  return report.get();
}

Exit work(Session& session, const WorkArguments& options) {
  ECHOMQ_OR_REPORT(const echomq::QueueName queue_name, echomq::QueueName::parse(options.queue));
  ECHOMQ_OR_REPORT(echomq::WorkerOptions settings, worker_options(options));
  // The shell is content with nothing to do, and each job would be done.
  if (options.command.find_first_not_of(" \t\n") == std::string::npos) {
    return session.report(Exit::usage, "invalid_argument", "--exec is empty: every job would be done unseen");
  }
  allow_descriptors(options.concurrency);
  const Signals signals;
  constexpr std::string_view kOurs[] = {"EMQ_JOB_ID", "EMQ_QUEUE", "EMQ_ATTEMPT", "EMQ_GROUP"};
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("work", echomq::NodeLease::never));
  Shop shop{
      .session = session, .options = options, .guard = {}, .environment = environment_without(kOurs), .hurry = {}};
  Remarks remarks;
  settings.on_settled = [&](const echomq::Job& job, std::string_view verdict) {
    if (options.quiet || verdict == "done" || verdict == "retry" || verdict == "hand_back") {
      return;
    }
    remarks.add(fmt::format("{} attempt {}: {}", job.id().text(), job.attempt(), printable(verdict)));
  };
  settings.on_lease_lost = [&](const echomq::Job& job) {
    remarks.add(fmt::format("{} attempt {}: lease lost, the command is stopped", job.id().text(), job.attempt()));
  };
  const echomq::Queue queue = client.queue(queue_name);
  ECHOMQ_OR_REPORT(echomq::Worker worker,
                   echomq::Worker::start(queue, [&shop](echomq::Job& job) { return handle(shop, job); }, settings));

  EmptyWatch watch(client, queue_name);
  Progress progress;
  int signal = 0;
  auto found = EmptyWatch::Found::work;
  while ((signal = signals.wait(kTick)) == 0) {
    if (options.drain && (found = watch.look()) != EmptyWatch::Found::work) {
      break;
    }
    remarks.say(session, progress);
    if (progress.due()) {
      const echomq::WorkerStats stats = worker.stats();
      progress.show(
          fmt::format("{} done, {} failed, {} running", stats.completed, stats.retried + stats.dead, stats.running));
    }
  }
  remarks.say(session, progress);
  progress.clear();
  if (signal != 0 && worker.stats().running > 0) {
    session.note(fmt::format("stopping: {} running, up to {}; once more to hand back at once", worker.stats().running,
                             to_text(settings.stop_deadline)));
  }
  const echomq::StopReport report = stop(session, shop, worker, signals, settings.stop_deadline);
  const echomq::WorkerStats stats = worker.stats();
  remarks.say(session, progress);
  if (session.json) {
    session.print_json(described(stats, report));
  } else if (!options.quiet) {
    session.note(fmt::format("{} done, {} to be retried, {} dead, {} handed back", stats.completed, stats.retried,
                             stats.dead, stats.handed_back));
  }
  if (found == EmptyWatch::Found::broken) {
    return session.report(Exit::failed, "wrong_type", watch.broken() + ": no job can be claimed");
  }
  if (report.unsettled == 0 && found == EmptyWatch::Found::paused) {
    return session.report(Exit::paused, "paused",
                          fmt::format("the queue is paused: {} jobs are left, and those of its lanes", watch.left()));
  }
  if (report.unsettled == 0) {
    return Exit::ok;
  }
  return session.report(Exit::unreachable, "unsettled",
                        fmt::format("{} jobs are left to their lease: the server could not be told", report.unsettled));
}

}  // namespace

void add_work(CLI::App& app, Session& session, Action& chosen) {
  auto options = std::make_shared<WorkArguments>();
  CLI::App* command = app.add_subcommand("work", "Run a command for each job of a queue");
  command->add_option("QUEUE", options->queue, "Queue name")->required();
  command
      ->add_option("-x,--exec", options->command,
                   "Run by /bin/sh -c with the payload on standard input and EMQ_JOB_ID, EMQ_QUEUE, EMQ_ATTEMPT, "
                   "EMQ_GROUP in the environment; exit status 0 is done, any other a retry")
      ->type_name("CMD")
      ->required();
  command->add_option("-c,--concurrency", options->concurrency, "Commands that run side by side")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--lease", options->lease, "How soon a job of a dead worker is given away (15s)")
      ->type_name("DUR");
  command->add_option("--max-attempts", options->max_attempts, "Failures after which a job is dead")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--max-stalled", options->max_stalled, "Lost leases after which a job is dead")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--retry-delay", options->retry_delay, "Wait before a retry (1s, doubled each time up to 5m)")
      ->type_name("DUR");
  command->add_option("--beat", options->beat, "Longest sleep without a look at the queue (5s)")->type_name("DUR");
  command
      ->add_option("--stop-deadline", options->stop_deadline,
                   "After SIGTERM or SIGINT, commands may run so long before their jobs are handed back (30s)")
      ->type_name("DUR");
  command->add_flag(
      "--drain,--until-empty", options->drain,
      "End when nothing is pending, active or scheduled any more, or the queue is paused and nothing runs");
  command->add_flag("-q,--quiet", options->quiet, "Say nothing about jobs that fail");
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return work(session, *options); }; });
}

}  // namespace emq
