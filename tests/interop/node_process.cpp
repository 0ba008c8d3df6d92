#include "interop/node_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace echomq::interop {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

const std::string kFolder = std::string(ECHOMQ_SOURCE_DIR) + "/tests/interop/";

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe2");
    read_end = ends[0];
    write_end = ends[1];
  }
};

}  // namespace

NodeProcess::NodeProcess(const std::string& program, std::vector<std::string> arguments) {
  if (!std::filesystem::exists(kFolder + "node_modules/iovalkey"))
    throw std::runtime_error("no packages in tests/interop/node_modules: `./run setup` installs them");
  // A write to a child that has died is an error here, not the end of this process.
  ::signal(SIGPIPE, SIG_IGN);

  const Pipe in;
  const Pipe out;
  arguments.insert(arguments.begin(), {"node", kFolder + program});
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments)
    pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.read_end, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  const int error = ::posix_spawnp(&pid_, "node", &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in.read_end);
  ::close(out.write_end);
  in_ = in.write_end;
  out_ = out.read_end;
  if (error != 0) {
    ::close(in_);
    ::close(out_);
    throw std::runtime_error(std::string("cannot run node: ") + std::strerror(error) + "; `./run setup` installs it");
  }
}

NodeProcess::~NodeProcess() {
  kill();
  if (in_ >= 0)
    ::close(in_);
  ::close(out_);
}

void NodeProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(in_, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR)
      throw std::runtime_error(std::string("the Node program takes no input: ") + std::strerror(errno));
    if (count > 0)
      done += static_cast<std::size_t>(count);
  }
}

std::optional<std::string> NodeProcess::read_line(milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  for (;;) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    pollfd wanted{.fd = out_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) == 0)
      return std::nullopt;
    char buffer[65536];
    const ssize_t count = ::read(out_, buffer, sizeof buffer);
    if (count == 0 || (count < 0 && errno != EINTR))
      return std::nullopt;
    if (count > 0)
      unread_.append(buffer, static_cast<std::size_t>(count));
  }
}

int NodeProcess::finish(milliseconds limit) {
  ::close(in_);
  in_ = -1;
  return wait_for_end(limit);
}

void NodeProcess::kill() {
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    (void)wait_for_end(std::chrono::seconds(10));
  }
}

int NodeProcess::wait_for_end(milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (steady_clock::now() > until) {
      ::kill(pid_, SIGKILL);
      (void)::waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace echomq::interop
