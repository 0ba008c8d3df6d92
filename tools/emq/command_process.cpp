// The poll loop around one child: two pipes, its end, and the wish to stop.
#include "command_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "session.hpp"
#include "spawn.hpp"
#include "text.hpp"

namespace emq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kErrorTail = 4096;
/// Where a command's shell finds the guard's pipe, until the command begins.
constexpr int kGuardDescriptor = 3;

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  void reset(int fd) noexcept {
    close();
    fd_ = fd;
  }
  void close() noexcept {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
  [[nodiscard]] bool open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return false;
    }
    read.reset(ends[0]);
    write.reset(ends[1]);
    return true;
  }
};

void set_nonblocking(int fd) { (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// What a child says on standard error: passed on, and its tail kept.
class Complaints {
 public:
  /// False at the end of the stream.
  bool take(int fd) {
    char buffer[8192];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    if (count == 0) {
      return false;
    }
    const std::string_view bytes(buffer, static_cast<std::size_t>(count));
    (void)write_all(STDERR_FILENO, bytes);
    kept_ += bytes;
    if (kept_.size() > 4 * kErrorTail) {
      kept_.erase(0, kept_.size() - 2 * kErrorTail);
    }
    more_ = true;
    return true;
  }
  /// Reads what is there already, without waiting: a grandchild may keep the pipe open for ever.
  void drain(int fd) {
    do {
      more_ = false;
    } while (take(fd) && more_);
  }
  [[nodiscard]] std::string text() const { return std::string(tail(kept_, kErrorTail)); }

 private:
  std::string kept_;
  bool more_ = false;
};

}  // namespace

CommandEnd run_command(const CommandRun& run, Guard& guard, const std::stop_token& stop, const std::stop_token& kill) {
  CommandEnd end;
  Pipe input;
  Pipe errors;
  const Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0 || !input.open() || !errors.open()) {
    end.error = fmt::format("cannot make a pipe: {}", std::strerror(errno));
    return end;
  }
  Spawn spawn;
  spawn.give(input.read.get(), STDIN_FILENO);
  spawn.give(run.output_fd, STDOUT_FILENO);
  spawn.give(errors.write.get(), STDERR_FILENO);
  // The shell registers itself before the command begins: a tool that is killed right after the start has left it no gap.
  std::string text = run.command;
  if (guard.pipe() >= 0) {
    spawn.give(guard.pipe(), kGuardDescriptor);
    text = fmt::format("(echo \"+$$\" >&{0}) 2>/dev/null; exec {0}>&-; {1}", kGuardDescriptor, run.command);
  }
  const std::vector<std::string> arguments{"sh", "-c", text};
  int error = 0;
  const pid_t pid = spawn.run("/bin/sh", arguments, run.environment, error);
  if (pid == 0) {
    end.error = fmt::format("cannot run /bin/sh: {}", std::strerror(error));
    return end;
  }
  end.started = true;
  input.read.close();
  errors.write.close();
  set_nonblocking(input.write.get());
  set_nonblocking(errors.read.get());
  const Descriptor child(open_pidfd(pid));

  const auto wake_up = [&wake] {
    const std::uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  };
  const std::stop_callback on_stop(stop, wake_up);
  const std::stop_callback on_kill(kill, wake_up);

  Complaints complaints;
  std::string_view rest = run.input;
  if (rest.empty()) {
    input.write.close();
  }
  auto kill_at = Clock::time_point::max();
  bool killed = false;
  int status = 0;
  for (;;) {
    if (stop.stop_requested() && !end.stopped) {
      end.stopped = true;
      (void)::kill(-pid, SIGTERM);
      kill_at = Clock::now() + run.kill_after;
    }
    if (!killed && (kill.stop_requested() || Clock::now() >= kill_at)) {
      end.stopped = true;
      killed = true;
      (void)::kill(-pid, SIGKILL);
    }
    siginfo_t ended{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == pid) {
      break;
    }

    std::array<pollfd, 4> polled{{{.fd = wake.get(), .events = POLLIN, .revents = 0},
                                  {.fd = child.get(), .events = POLLIN, .revents = 0},
                                  {.fd = errors.read.get(), .events = POLLIN, .revents = 0},
                                  {.fd = input.write.get(), .events = POLLOUT, .revents = 0}}};
    int timeout = child.get() < 0 ? 10 : -1;  // without a descriptor of the child, look again and again
    if (!killed && kill_at != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at - Clock::now()).count();
      const int until_kill = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
      timeout = timeout < 0 ? until_kill : std::min(timeout, until_kill);
    }
    if (::poll(polled.data(), polled.size(), timeout) < 0) {
      continue;
    }
    if (polled[0].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(wake.get(), &count, sizeof count);
    }
    if (polled[2].revents != 0 && !complaints.take(errors.read.get())) {
      errors.read.close();
    }
    if (polled[3].revents != 0) {
      const ssize_t count = ::write(input.write.get(), rest.data(), rest.size());
      if (count > 0) {
        rest.remove_prefix(static_cast<std::size_t>(count));
      }
      // A command that reads no further is free to do so: only its exit status counts.
      if (rest.empty() || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        input.write.close();
      }
    }
  }
  // A stopped command leaves nothing behind; one that ended by itself may leave a daemon, if that is what it is for.
  // Its id is waited for last: until then it cannot be that of another process.
  if (end.stopped) {
    (void)::kill(-pid, SIGKILL);
  }
  guard.release(pid);
  (void)::waitpid(pid, &status, 0);
  if (errors.read.get() >= 0) {
    complaints.drain(errors.read.get());
  }
  if (WIFEXITED(status)) {
    end.exit_status = WEXITSTATUS(status);
  }
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  }
  end.error = complaints.text();
  return end;
}

}  // namespace emq
