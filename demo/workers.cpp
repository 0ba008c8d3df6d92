// Command line and folders of the workers.
#include "workers.hpp"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace demo {
namespace {

namespace fs = std::filesystem;

// The job: the payload names a file; its digest goes, in one write, behind what other runs have written.
constexpr const char* kCommand =
    "IFS= read -r file\n"
    "sum=$(sha256sum <\"$file\") || exit 1\n"
    "printf '%s %s %s\\n' \"$EMQ_JOB_ID\" \"$EMQ_ATTEMPT\" \"${sum%% *}\" >>\"$DEMO_RESULTS\"\n";

}  // namespace

echomq::Result<void> Workers::start(std::size_t count, unsigned concurrency, const std::string& queue,
                                    const std::string& url, const fs::path& scratch, const fs::path& results) {
  const fs::path emq = fs::canonical("/proc/self/exe").parent_path() / "emq";
  (void)::setenv("EMQ_URL", url.c_str(), 1);
  (void)::setenv("DEMO_RESULTS", results.c_str(), 1);
  for (std::size_t index = 0; index < count; ++index) {
    const fs::path folder = scratch / ("worker-" + std::to_string(index + 1));
    fs::create_directory(folder);
    const fs::path log = folder / "log";
    auto process = std::make_unique<echomq::testing::ChildProcess>();
    // A short lease, so that the jobs of a dead worker come back while one looks on.
    auto started =
        process->start({emq.string(), "work", queue, "--exec", kCommand, "--concurrency", std::to_string(concurrency),
                        "--lease", "2s", "--retry-delay", "200ms", "--stop-deadline", "5s"},
                       folder.string(), log.string());
    if (!started) {
      return echomq::fail(std::move(started).error());
    }
    processes_.push_back(std::move(process));
    logs_.push_back(log);
  }
  return {};
}

pid_t Workers::kill(std::size_t index) {
  const pid_t pid = processes_[index]->pid();
  processes_[index]->end(SIGKILL, {});
  return pid;
}

void Workers::stop() {
  for (const auto& process : processes_) {
    process->signal(SIGTERM);
  }
  for (const auto& process : processes_) {
    process->end(SIGTERM, std::chrono::seconds{10});
  }
}

std::size_t Workers::running() {
  std::size_t count = 0;
  for (const auto& process : processes_) {
    count += process->running() ? 1 : 0;
  }
  return count;
}

std::string Workers::last_words() const {
  std::string out;
  for (const fs::path& log : logs_) {
    std::ifstream in(log);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    constexpr std::size_t kBytes = 1500;
    out += log.parent_path().filename().string() + ":\n" + text.substr(text.size() > kBytes ? text.size() - kBytes : 0);
  }
  return out;
}

}  // namespace demo
