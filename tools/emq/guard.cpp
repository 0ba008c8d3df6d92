// Both ends of the guard's pipe. A line is "+<group>" or "-<group>".
#include "guard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "spawn.hpp"

namespace emq {

int run_guard() {
  // Whatever ends the worker politely must not end the guard first.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    (void)std::signal(number, SIG_IGN);
  }
  std::set<pid_t> groups;
  std::string line;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    for (const char c : std::string_view(buffer, static_cast<std::size_t>(count))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      pid_t group = 0;
      if (line.size() > 1) {
        (void)std::from_chars(line.data() + 1, line.data() + line.size(), group);
      }
      if (group > 1 && line[0] == '+') {
        groups.insert(group);
      }
      if (group > 1 && line[0] == '-') {
        groups.erase(group);
      }
      line.clear();
    }
  }
  for (const pid_t group : groups) {
    (void)::kill(-group, SIGKILL);
  }
  return 0;
}

Guard::Guard() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return;
  }
  Spawn spawn;
  spawn.give(ends[0], STDIN_FILENO);
  const std::vector<std::string> arguments{"emq", std::string(kGuardArgument)};
  int error = 0;
  pid_ = spawn.run("/proc/self/exe", arguments, environment_without({}), error);
  ::close(ends[0]);
  if (pid_ == 0) {
    ::close(ends[1]);
  } else {
    pipe_ = ends[1];
  }
}

Guard::~Guard() {
  if (pid_ == 0) {
    return;
  }
  ::close(pipe_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::release(pid_t group) noexcept {
  if (pid_ == 0) {
    return;
  }
  char line[32];
  const auto end = fmt::format_to_n(line, sizeof line, "-{}\n", group).out;
  // Shorter than PIPE_BUF, so lines of several threads do not mix.
  while (::write(pipe_, line, static_cast<std::size_t>(end - line)) < 0 && errno == EINTR) {
  }
}

}  // namespace emq
