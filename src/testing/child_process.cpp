// posix_spawn, the watchdog, and the ways to end a child.
#include "testing/child_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

namespace echomq {
inline namespace v1 {
namespace testing {
namespace {

using std::chrono::steady_clock;

/// What posix_spawn needs, set up and torn down together.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);  // a Ctrl-C at the terminal is for the parent
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  void open(int target, const char* path, int flags) {
    posix_spawn_file_actions_addopen(&actions_, target, path, flags, 0600);
  }
  void enter(const char* folder) { posix_spawn_file_actions_addchdir_np(&actions_, folder); }
  void duplicate(int from, int target) { posix_spawn_file_actions_adddup2(&actions_, from, target); }

  /// Zero, or an errno.
  [[nodiscard]] int run(pid_t& pid, const std::vector<std::string>& arguments) {
    posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const auto& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    return posix_spawnp(&pid, argv[0], &actions_, &attributes_, argv.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

void reap(pid_t pid) noexcept {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

ChildProcess::~ChildProcess() { end(SIGKILL, {}); }

Result<void> ChildProcess::start(const std::vector<std::string>& arguments, const std::string& folder,
                                 const std::string& log) {
  SpawnPlan child;
  child.enter(folder.c_str());
  child.open(STDIN_FILENO, "/dev/null", O_RDONLY);
  child.open(STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND);
  child.duplicate(STDOUT_FILENO, STDERR_FILENO);
  if (const int error = child.run(pid_, arguments); error != 0) {
    pid_ = 0;
    return fail(Errc::invalid_argument, "cannot run " + arguments[0] + ": " + std::strerror(error));
  }

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return {};  // out of descriptors: the child runs, unwatched
  }
  SpawnPlan watchdog;
  watchdog.duplicate(ends[0], STDIN_FILENO);
  watchdog.open(STDOUT_FILENO, "/dev/null", O_WRONLY);
  watchdog.duplicate(STDOUT_FILENO, STDERR_FILENO);
  // A line on the pipe releases it; the end of the pipe means that we are gone.
  const char* const script =
      "read -r line && exit 0; [ \"$(readlink /proc/$1/cwd)\" = \"$2\" ] && kill -9 \"$1\"; rm -rf -- \"$2\"";
  if (watchdog.run(watchdog_, {"/bin/sh", "-c", script, "watchdog", std::to_string(pid_), folder}) == 0) {
    watchdog_pipe_ = ends[1];
  } else {
    watchdog_ = 0;
    close(ends[1]);
  }
  close(ends[0]);
  return {};
}

bool ChildProcess::running() {
  if (pid_ == 0) {
    return false;
  }
  if (waitpid(pid_, nullptr, WNOHANG) == 0) {
    return true;
  }
  pid_ = 0;
  release_watchdog();
  return false;
}

void ChildProcess::signal(int number) const noexcept {
  if (pid_ != 0) {
    ::kill(pid_, number);
  }
}

void ChildProcess::end(int number, std::chrono::milliseconds patience) {
  if (!running()) {
    return;
  }
  signal(number);
  const auto until = steady_clock::now() + patience;
  while (number != SIGKILL && running()) {
    if (steady_clock::now() > until) {
      signal(SIGKILL);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (pid_ != 0) {
    reap(pid_);
    pid_ = 0;
    release_watchdog();
  }
}

void ChildProcess::release_watchdog() {
  if (watchdog_ == 0) {
    return;
  }
  // The watchdog cannot have ended before: the write does not meet a closed pipe.
  while (write(watchdog_pipe_, "\n", 1) < 0 && errno == EINTR) {
  }
  close(watchdog_pipe_);
  reap(watchdog_);
  watchdog_ = 0;
  watchdog_pipe_ = -1;
}

}  // namespace testing
}  // namespace v1
}  // namespace echomq
