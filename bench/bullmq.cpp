// A worker of ours beside BullMQ with its defaults.
#include "bullmq.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "must.hpp"
#include "worker_case.hpp"

namespace echomq_bench {
namespace {

const std::string kFolder = ECHOMQ_BENCH_PEER_DIR;
constexpr std::size_t kBatch = 100;

/// The peer's process: a line in, a line out. It ends when its input does, also when this program dies.
class Peer {
 public:
  explicit Peer(const std::string& socket_path) {
    // A write to a peer that has died is an error here, not the end of this process.
    ::signal(SIGPIPE, SIG_IGN);
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0)
      give_up("pipe2");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = kFolder + "/bullmq.js";
    std::string path = socket_path;
    std::string node = "node";
    char* const arguments[] = {node.data(), program.data(), path.data(), nullptr};
    const int error = ::posix_spawnp(&pid_, "node", &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    if (error != 0)
      give_up(std::string("cannot run node: ") + std::strerror(error));
    in_ = in[1];
    out_ = ::fdopen(out[0], "r");
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    ::close(in_);
    (void)std::fclose(out_);
    (void)::waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] std::string read_line() {
    char line[256];
    if (std::fgets(line, sizeof line, out_) == nullptr)
      give_up("bench/peer/bullmq.js has ended");
    std::string text(line);
    text.erase(text.find_last_not_of('\n') + 1);
    return text;
  }
  /// Jobs a second.
  [[nodiscard]] double run(const char* what, std::size_t jobs) {
    const std::string line = std::string(what) + " " + std::to_string(jobs) + "\n";
    if (::write(in_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      give_up("bench/peer/bullmq.js takes no input");
    const std::string answer = read_line();
    const double seconds = std::strtod(answer.c_str(), nullptr);
    if (!(seconds > 0))
      give_up("bench/peer/bullmq.js says " + answer);
    return static_cast<double>(jobs) / seconds;
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  std::FILE* out_ = nullptr;
};

[[nodiscard]] echomq::Worker start_worker(Bed& bed) {
  return must(echomq::Worker::start(bed.queue(), [](echomq::Job&) { return echomq::Done(); }, {.concurrency = 100}));
}

template <typename Body>
[[nodiscard]] double rate_of(std::size_t jobs, const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return static_cast<double>(jobs) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

[[nodiscard]] double our_process(Bed& bed, std::size_t jobs) {
  bed.flush();
  admit_by(bed.queue(), jobs, 1000);
  std::optional<echomq::Worker> worker;
  return rate_of(jobs, [&] {
    worker.emplace(start_worker(bed));
    wait_completed(*worker, jobs);
  });
}

[[nodiscard]] double our_end_to_end(Bed& bed, std::size_t jobs) {
  bed.flush();
  const echomq::Worker worker = start_worker(bed);
  wait_parked(bed);
  return rate_of(jobs, [&] {
    admit_by(bed.queue(), jobs, kBatch);
    wait_completed(worker, jobs);
  });
}

template <typename Ours, typename Theirs>
[[nodiscard]] PeerVerdict compare(std::string name, int pairs, const Ours& ours, const Theirs& theirs) {
  std::vector<PeerVerdict> measured;
  for (int i = 0; i <= pairs; ++i) {
    PeerVerdict pair{.name = name, .ours = ours(), .theirs = theirs()};
    pair.ratio = pair.ours / pair.theirs;
    if (i > 0)  // the first warms both
      measured.push_back(std::move(pair));
  }
  const auto middle = measured.begin() + static_cast<std::ptrdiff_t>(measured.size() / 2);
  std::nth_element(measured.begin(), middle, measured.end(),
                   [](const PeerVerdict& a, const PeerVerdict& b) { return a.ratio < b.ratio; });
  return *middle;
}

}  // namespace

PeerVerdicts measure_bullmq(Bed& bed, const std::string& socket_path, double scale, int pairs) {
  PeerVerdicts verdicts;
  if (!std::filesystem::exists(kFolder + "/node_modules/bullmq/package.json")) {
    verdicts.skipped = "BullMQ is not installed: `./run bench` does it, or `npm ci` in bench/peer";
    return verdicts;
  }
  // Each runs as many as it does in about half a second: the ratio is of rates.
  const auto theirs = std::max<std::size_t>(static_cast<std::size_t>(50 * scale), 10) * kBatch;
  const std::size_t ours = 5 * theirs;
  Peer peer(socket_path);
  verdicts.version = peer.read_line();
  verdicts.process = compare(
      "process at concurrency 100", pairs, [&] { return our_process(bed, ours); },
      [&] {
        bed.flush();
        return peer.run("process", theirs);
      });
  verdicts.end_to_end = compare(
      "end to end", pairs, [&] { return our_end_to_end(bed, ours); },
      [&] {
        bed.flush();
        return peer.run("end_to_end", theirs);
      });
  return verdicts;
}

}  // namespace echomq_bench
