// The demo: real work by three processes, one of them killed and the server killed in the middle, and nothing lost.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "../tests/support/proxy.hpp"
#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "files.hpp"
#include "ledger.hpp"
#include "verdict.hpp"
#include "workers.hpp"

namespace demo {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kFiles = 2400;
constexpr std::size_t kFewest = 2000;
constexpr std::size_t kWorkers = 3;
constexpr unsigned kConcurrency = 4;
constexpr auto kTimeLimit = 100s;

volatile std::sig_atomic_t interrupted = 0;

// A folder that goes with the demo.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "echomq-demo-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), pattern);
    }
    path_ = fs::canonical(pattern);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

// Lines that stay, and one at the bottom that moves when there is a terminal.
class Screen {
 public:
  void line(std::string_view text) {
    clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }
  void progress(std::uint64_t done, std::uint64_t all, double rate, std::string_view remark) {
    if (!terminal_) {
      return;
    }
    constexpr std::size_t kWidth = 30;
    const std::size_t full = all == 0 ? 0 : static_cast<std::size_t>(done * kWidth / all);
    fmt::print("\r  [{}{}] {:>5} of {}  {:>4.0f} jobs/s  {}\x1b[K", std::string(full, '='),
               std::string(kWidth - full, ' '), done, all, rate, remark);
    std::fflush(stdout);
    dirty_ = true;
  }
  void clear() {
    if (dirty_) {
      fmt::print("\r\x1b[K");
    }
    dirty_ = false;
  }

 private:
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  bool dirty_ = false;
};

int fail(Screen& screen, std::string_view what) {
  screen.clear();
  std::fflush(stdout);
  fmt::print(stderr, "demo: {}\n", what);
  return 1;
}

// What the server itself says at the end, asked past the proxy.
struct Counts {
  echomq::QueueCounts counts;
  [[nodiscard]] bool at_rest() const noexcept {
    return counts.pending == 0 && counts.active == 0 && counts.scheduled == 0;
  }
};

struct Admitted {
  std::vector<std::string> ids;
  double seconds = 0;
};

echomq::Result<Admitted> enqueue(const echomq::Queue& queue, const std::vector<std::string>& files) {
  std::vector<echomq::NewJob> jobs;
  for (const std::string& file : files) {
    jobs.push_back({.payload = file, .id = {}});
  }
  const auto start = Clock::now();
  auto results = queue.enqueue_many(jobs).get();
  if (!results) {
    return echomq::fail(std::move(results).error());
  }
  Admitted out;
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (auto& result : *results) {
    if (!result) {
      return echomq::fail(std::move(result).error());
    }
    out.ids.emplace_back(result->id.text());
  }
  return out;
}

// The two blows, each at its share of the work.
class Blows {
 public:
  Blows(Screen& screen, Workers& workers, echomq::testing::PrivateServer& server, std::uint64_t jobs)
      : screen_(screen), workers_(workers), server_(server), jobs_(jobs) {}

  [[nodiscard]] echomq::Result<void> fall(std::uint64_t done) {
    if (!worker_killed_ && done >= jobs_ / 3) {
      worker_killed_ = true;
      const pid_t pid = workers_.kill(1);
      screen_.line(fmt::format("  {:>5} done: kill -9 of worker 2 (process {}); it is not replaced", done, pid));
    }
    if (!server_killed_ && done >= jobs_ * 2 / 3) {
      server_killed_ = true;
      const pid_t pid = server_.pid();
      const auto start = Clock::now();
      server_.kill();
      auto again = server_.restart();
      if (!again) {
        return again;
      }
      const auto down = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      screen_.line(
          fmt::format("  {:>5} done: kill -9 of the server (process {}), back after {} ms", done, pid, down.count()));
    }
    return {};
  }

 private:
  Screen& screen_;
  Workers& workers_;
  echomq::testing::PrivateServer& server_;
  std::uint64_t jobs_;
  bool worker_killed_ = false;
  bool server_killed_ = false;
};

int report(Screen& screen, const Verdicts& verdicts, const Ledger& ledger, const Counts& rest, std::uint64_t files) {
  screen.clear();
  const double seconds = ledger.work_time().count();
  const double rate = seconds > 0 ? static_cast<double>(verdicts.jobs) / seconds : 0;
  screen.line("");
  screen.line(fmt::format("  jobs            {:>6}", verdicts.jobs));
  screen.line(fmt::format("  jobs/s          {:>6.0f}   ({:.1f} s, both kills included)", rate, seconds));
  screen.line(fmt::format("  redelivered     {:>6}   ({} results of overtaken runs discarded)", verdicts.redelivered,
                          verdicts.discarded));
  screen.line(fmt::format("  lost            {:>6}", verdicts.lost));
  screen.line(fmt::format("  accepted twice  {:>6}", verdicts.accepted_twice));
  screen.line(fmt::format("  digests equal   {:>6}   of {}, against sha256sum", verdicts.equal, files));
  for (const std::string& complaint : verdicts.complaints) {
    screen.line("  ! " + complaint);
  }
  bool good = verdicts.clean();
  if (ledger.misread() != 0) {
    screen.line(fmt::format("  ! the checker could not read {} frames", ledger.misread()));
    good = false;
  }
  const auto completed = static_cast<std::uint64_t>(rest.counts.completed);
  if (!rest.at_rest() || rest.counts.dead != 0 || completed != verdicts.jobs) {
    screen.line(fmt::format("  ! the server has {} pending, {} active, {} scheduled, {} dead, {} completed",
                            rest.counts.pending, rest.counts.active, rest.counts.scheduled, rest.counts.dead,
                            rest.counts.completed));
    good = false;
  }
  screen.line(good ? "  Nothing lost, nothing accepted twice." : "  FAILED");
  return good ? 0 : 1;
}

int run() {
  Screen screen;
  const Scratch scratch;
  const fs::path results = scratch.path() / "results";

  const std::vector<std::string> files = choose_files(kFiles);
  if (files.size() < kFewest) {
    return fail(screen, fmt::format("only {} readable files below /usr; {} are needed", files.size(), kFewest));
  }
  auto server_result = echomq::testing::PrivateServer::start({.append_only = echomq::testing::AppendOnly::always});
  if (!server_result) {
    return fail(screen, server_result.error().message());
  }
  echomq::testing::PrivateServer server = *std::move(server_result);

  Ledger ledger;
  echomq::test::Proxy proxy(
      server.tcp_url(),
      {.tap =
           [&ledger](std::uint64_t connection, echomq::test::Direction direction, std::string_view bytes) {
             if (direction == echomq::test::Direction::to_server) {
               ledger.request_bytes(connection, bytes);
             } else {
               ledger.reply_bytes(connection, bytes);
             }
           },
       .on_end = [&ledger](std::uint64_t connection) { ledger.ended(connection); }});

  const echomq::QueueName name{"digests"};
  Workers workers;
  if (auto started =
          workers.start(kWorkers, kConcurrency, std::string(name.text()), proxy.url(), scratch.path(), results);
      !started) {
    return fail(screen, started.error().message());
  }
  screen.line(fmt::format("EchoMQ demo: the SHA-256 of {} files below /usr, one job each", files.size()));
  screen.line(
      fmt::format("  a private server with an append-only file, {} processes `emq work --exec`, {} commands each",
                  kWorkers, kConcurrency));

  auto direct = echomq::Client::open(server.tcp_url(), {.name = "demo"});
  if (!direct) {
    return fail(screen, direct.error().message());
  }
  const echomq::Queue queue = direct->queue(name);
  auto admitted = enqueue(queue, files);
  if (!admitted) {
    return fail(screen, "enqueue: " + admitted.error().message());
  }
  screen.line(fmt::format("  {} jobs enqueued in {:.0f} ms", admitted->ids.size(), admitted->seconds * 1000));

  // The system's own answer is worked out beside the workers, at the end of their work.
  const auto start = Clock::now();
  const std::uint64_t jobs = files.size();
  Blows blows(screen, workers, server, jobs);
  std::optional<Counts> rest;
  std::uint64_t before = 0;
  auto before_time = start;
  double rate = 0;
  while (!rest) {
    if (interrupted != 0) {
      return fail(screen, "interrupted; everything that was started is ended");
    }
    if (Clock::now() - start > kTimeLimit) {
      return fail(screen, fmt::format("{} of {} jobs done after {} s\n{}", ledger.completions(), jobs,
                                      kTimeLimit.count(), workers.last_words()));
    }
    if (workers.running() == 0) {
      return fail(screen, "all workers have ended\n" + workers.last_words());
    }
    std::this_thread::sleep_for(50ms);
    const std::uint64_t done = ledger.completions();
    if (const auto blow = blows.fall(done); !blow) {
      return fail(screen, "server: " + blow.error().message());
    }
    if (const auto now = Clock::now(); now - before_time > 500ms) {
      rate = static_cast<double>(done - before) / std::chrono::duration<double>(now - before_time).count();
      before = done;
      before_time = now;
    }
    screen.progress(done, jobs, rate, "");
    if (done + kWorkers * kConcurrency < jobs) {
      continue;
    }
    auto counts = queue.counts().get_for(2s);
    if (counts && *counts && Counts{**counts}.at_rest()) {
      rest = Counts{**counts};
    }
  }
  workers.stop();
  screen.progress(ledger.completions(), jobs, rate, "checking against sha256sum");
  const std::vector<std::string> digests = system_digests(files, scratch.path());
  const Verdicts verdicts = judge(admitted->ids, files, digests, ledger.entries(), Effects::read(results));
  return report(screen, verdicts, ledger, *rest, files.size());
}

}  // namespace
}  // namespace demo

int main() {
  struct sigaction action{};
  action.sa_handler = [](int) { demo::interrupted = 1; };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    (void)::sigaction(number, &action, nullptr);
  }
  (void)std::signal(SIGPIPE, SIG_IGN);
  try {
    return demo::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "demo: {}\n", error.what());
    return 1;
  }
}
