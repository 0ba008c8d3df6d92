// `emq enqueue`: one job from an argument, a file or standard input; or one a line, streamed in bounded batches.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "echomq/queue.hpp"
#include "payload_reader.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {
namespace {

using echomq::Admitted;
using echomq::Errc;

constexpr std::size_t kBatchLines = 1000;
constexpr std::size_t kBatchBytes = std::size_t{4} << 20;
constexpr std::size_t kBatchesInFlight = 8;

struct EnqueueArguments {
  std::string queue;
  std::optional<std::string> payload;
  std::optional<std::string> file;
  bool lines = false;
  bool null = false;
  bool print_ids = false;
  std::optional<std::string> in;
  std::optional<std::string> at;
  std::optional<std::string> id;
  std::optional<std::string> lane;
  std::optional<std::uint32_t> max_attempts;
  std::string backoff;
  std::optional<std::string> timeout;
  std::optional<std::string> expire;
  std::optional<std::string> keep;
  std::string traceparent;
};

struct Target {
  echomq::QueueName queue;
  std::optional<echomq::JobId> id;
  std::optional<echomq::LaneId> lane;
  std::optional<echomq::Milliseconds> in;
  std::optional<echomq::Instant> at;
  echomq::RunOptions run{};
};

std::string_view word_of(Admitted verdict) {
  switch (verdict) {
    case Admitted::enqueued: return "enqueued";
    case Admitted::duplicate: return "duplicate";
    case Admitted::present: return "present";
  }
  return "unknown";
}

// Where payloads come from when they are no argument.
class Input {
 public:
  [[nodiscard]] echomq::Result<void> open(const EnqueueArguments& options) {
    if (options.file && *options.file != "-") {
      name_ = *options.file;
      fd_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd_ < 0) {
        return echomq::fail(Errc::invalid_argument, fmt::format("cannot open {}: {}", name_, std::strerror(errno)));
      }
      owned_ = true;
      return {};
    }
    const bool asked = options.file || options.payload;
    if (!asked && ::isatty(STDIN_FILENO) == 1) {
      return echomq::fail(Errc::invalid_argument, "no payload: give PAYLOAD or --file, or pipe it in");
    }
    return {};
  }
  Input() = default;
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  ~Input() {
    if (owned_) {
      ::close(fd_);
    }
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool is_file() const noexcept { return owned_; }

 private:
  int fd_ = STDIN_FILENO;
  bool owned_ = false;
  std::string name_ = "standard input";
};

Exit enqueue_one(Session& session, const echomq::Queue& queue, const Target& target, std::string_view payload) {
  ECHOMQ_OR_REPORT(
      const echomq::Admission admission,
      queue
          .enqueue(payload, {.id = target.id, .lane = target.lane, .at = target.at, .in = target.in, .run = target.run})
          .get());
  if (session.json) {
    session.print_json(
        {{"queue", target.queue.text()}, {"id", admission.id.text()}, {"verdict", word_of(admission.verdict)}});
  } else {
    session.print_line(admission.id.text());
    if (admission.verdict == Admitted::duplicate) {
      session.note("the job exists already; nothing changed");
    }
  }
  return Exit::ok;
}

// Keeps some batches on the way and counts what became of their jobs, in the order of the input.
class Stream {
 public:
  Stream(Session& session, const echomq::Queue& queue, const Target& target, bool print_ids)
      : session_(session), queue_(queue), target_(target), print_ids_(print_ids) {}

  /// False once something failed.
  [[nodiscard]] bool send(const LineBatch& batch) {
    while (on_the_way_.size() >= kBatchesInFlight && take_oldest()) {
    }
    if (error_) {
      return false;
    }
    jobs_.clear();
    for (std::size_t index = 0; index < batch.size(); ++index) {
      jobs_.push_back({.payload = batch[index], .id = {}});
    }
    on_the_way_.push_back(
        {queue_.enqueue_many(jobs_, {.lane = target_.lane, .at = target_.at, .in = target_.in, .run = target_.run}),
         batch.size()});
    bytes_ += batch.bytes();
    if (progress_.due()) {
      progress_.show(fmt::format("{} jobs, {} MB", done(), bytes_ >> 20));
    }
    return true;
  }

  [[nodiscard]] Exit finish() {
    while (take_oldest()) {
    }
    progress_.clear();
    if (session_.json) {
      session_.print_json({{"queue", target_.queue.text()},
                           {"enqueued", enqueued_},
                           {"duplicate", duplicates_},
                           {"failed", failed_},
                           {"unknown", unknown_}});
    } else if (!print_ids_) {
      session_.print_line(fmt::format("{} enqueued", enqueued_));
    }
    if (!error_) {
      return Exit::ok;
    }
    // Lines are numbered from 1, and every line before this one is a job.
    error_->text +=
        fmt::format(" (from line {}; {} enqueued, {} not, {} unknown)", first_failed_, enqueued_, failed_, unknown_);
    return session_.report(*error_);
  }

 private:
  struct Batch {
    echomq::Reply<std::vector<echomq::Result<echomq::Admission>>> reply;
    std::size_t lines;
  };

  // False when there is none.
  bool take_oldest() {
    if (on_the_way_.empty()) {
      return false;
    }
    Batch batch = std::move(on_the_way_.front());
    on_the_way_.pop_front();
    auto results = batch.reply.get();
    if (!results) {
      const bool unknown = results.error().is(Errc::outcome_unknown);
      (unknown ? unknown_ : failed_) += batch.lines;
      note_error(std::move(results).error(), done() - batch.lines + 1);
      return true;
    }
    for (auto& result : *results) {
      if (result) {
        ++(result->verdict == Admitted::duplicate ? duplicates_ : enqueued_);
        if (print_ids_) {
          session_.print_line(result->id.text());
        }
      } else {
        ++(result.error().is(Errc::outcome_unknown) ? unknown_ : failed_);
        note_error(std::move(result).error(), done());
      }
    }
    return true;
  }

  void note_error(echomq::Error error, std::uint64_t line) {
    if (error_) {
      return;
    }
    error_ = std::move(error);
    first_failed_ = line;
  }
  [[nodiscard]] std::uint64_t done() const noexcept { return enqueued_ + duplicates_ + failed_ + unknown_; }

  Session& session_;
  const echomq::Queue& queue_;
  const Target& target_;
  bool print_ids_;
  std::deque<Batch> on_the_way_;
  std::vector<echomq::NewJob> jobs_;
  std::optional<echomq::Error> error_;
  std::uint64_t first_failed_ = 0;
  std::uint64_t enqueued_ = 0;
  std::uint64_t duplicates_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t unknown_ = 0;
  std::uint64_t bytes_ = 0;
  Progress progress_;
};

Exit enqueue_lines(Session& session, const echomq::Queue& queue, const Target& target, const EnqueueArguments& options,
                   const Input& input) {
  stop_reading_on_signal();
  LineReader reader(input.fd(), input.name(), options.null ? '\0' : '\n');
  LineBatch batch;
  Stream stream(session, queue, target, options.print_ids);
  for (;;) {
    auto more = reader.next(batch, kBatchLines, kBatchBytes);
    if (!more) {
      const Exit sent = stream.finish();
      return sent == Exit::ok ? session.report(more.error()) : sent;
    }
    if (!*more || !stream.send(batch)) {
      return stream.finish();
    }
    if (interrupted()) {
      (void)stream.finish();
      return session.report(Exit::failed, "cancelled", fmt::format("interrupted after line {}", reader.lines()));
    }
  }
}

Exit enqueue(Session& session, const EnqueueArguments& options) {
  ECHOMQ_OR_REPORT(const auto queue_name, echomq::QueueName::parse(options.queue));
  Target target{.queue = queue_name, .id = {}, .lane = {}, .in = {}, .at = {}};
  ECHOMQ_OR_REPORT(target.id, parse_optional<echomq::JobId>(options.id));
  if (target.id && !target.id->is_job()) {
    return session.report(Exit::usage, "wrong_kind", fmt::format("not the id of a job: {}", target.id->text()));
  }
  ECHOMQ_OR_REPORT(target.lane, parse_optional<echomq::LaneId>(options.lane));
  if (options.in) {
    ECHOMQ_OR_REPORT(target.in, parse_duration(*options.in));
  }
  if (options.at) {
    ECHOMQ_OR_REPORT(target.at, parse_instant(*options.at));
  }
  target.run = {.max_attempts = options.max_attempts, .backoff = options.backoff, .traceparent = options.traceparent};
  if (options.timeout) {
    ECHOMQ_OR_REPORT(target.run.timeout, parse_duration(*options.timeout));
  }
  if (options.expire) {
    ECHOMQ_OR_REPORT(target.run.expire, parse_duration(*options.expire));
  }
  if (options.keep) {
    ECHOMQ_OR_REPORT(target.run.keep, parse_duration(*options.keep));
  }

  Input input;
  const bool from_input = options.file || !options.payload || *options.payload == "-";
  std::string payload;
  if (from_input) {
    if (const auto opened = input.open(options); !opened) {
      return session.report(opened.error());
    }
  }
  if (from_input && !options.lines) {
    ECHOMQ_OR_REPORT(payload, read_all(input.fd(), input.name()));
    // An empty pipe is a command that failed more often than an empty payload.
    if (payload.empty() && !input.is_file()) {
      return session.report(Exit::usage, "usage", "standard input was empty; an empty payload is ''");
    }
  } else if (!options.lines) {
    payload = *options.payload;
  }

  ECHOMQ_OR_REPORT(const echomq::Client client,
                   session.connect("enqueue", target.id ? echomq::NodeLease::never : echomq::NodeLease::at_open));
  const echomq::Queue queue = client.queue(target.queue);
  return options.lines ? enqueue_lines(session, queue, target, options, input)
                       : enqueue_one(session, queue, target, payload);
}

}  // namespace

void add_enqueue(CLI::App& app, Session& session, Action& chosen) {
  auto options = std::make_shared<EnqueueArguments>();
  CLI::App* command = app.add_subcommand("enqueue", "Add a job, or one for each line");
  command->add_option("QUEUE", options->queue, "Queue name")->required();
  auto* payload = command->add_option("PAYLOAD", options->payload, "Payload; '-' or none: standard input, all bytes");
  command->add_option("-f,--file", options->file, "Read the payload from a file")->type_name("FILE")->excludes(payload);
  auto* lines = command->add_flag("-l,--lines", options->lines, "One job a line of the input")->excludes(payload);
  command->add_flag("-0,--null", options->null, "With --lines: lines end with a NUL byte, as of 'find -print0'")
      ->needs(lines);
  command->add_flag("--print-ids", options->print_ids, "With --lines: print each job's id instead of a sum")
      ->needs(lines);
  auto* in = command->add_option("--in", options->in, "Not before so long from now: 5s, 10m, 1h30m")->type_name("DUR");
  command->add_option("--at", options->at, "Not before: 2026-07-02T09:30:00Z, or Unix milliseconds")
      ->type_name("TIME")
      ->excludes(in);
  command->add_option("--id", options->id, "The job's id, such as JOB0NgWEfAEJfs; the same id again adds nothing")
      ->excludes(lines);
  command->add_option("--lane", options->lane, "Branded id of the lane the job belongs to");
  command->add_option("--max-attempts", options->max_attempts, "Failures after which the job is dead; 1: no retry")
      ->type_name("N");
  command
      ->add_option("--backoff", options->backoff, "Wait between runs: fixed:MS or exponential:BASE:CAP, with :jitter")
      ->type_name("TEXT");
  command->add_option("--timeout", options->timeout, "How long one run may take")->type_name("DUR");
  command->add_option("--expire", options->expire, "Dead instead of run when no worker has begun it by then")
      ->type_name("DUR");
  command->add_option("--keep", options->keep, "How long to keep what the job came to")->type_name("DUR");
  command->add_option("--traceparent", options->traceparent, "W3C trace context")->type_name("TEXT");
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return enqueue(session, *options); }; });
}

}  // namespace emq
