// posix_spawn with files for the three standard streams: nothing can block on a pipe that nobody reads.
#include "support/tool.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace echomq::test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& string : strings) {
    out.push_back(const_cast<char*>(string.c_str()));
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace

Tool::Tool() {
  char pattern[] = "/tmp/echomq-tool-XXXXXX";
  if (::mkdtemp(pattern) == nullptr) {
    throw std::runtime_error("mkdtemp");
  }
  folder_ = pattern;
}

Tool::Tool(std::vector<std::string> arguments, std::optional<std::string> input, Environment environment) : Tool() {
  const std::string in = input ? folder_ + "/in" : "/dev/null";
  if (input) {
    std::ofstream(in, std::ios::binary) << *input;
  }
  start(std::move(arguments), in, folder_ + "/out", folder_ + "/err", environment);
}

void Tool::start(std::vector<std::string> arguments, const std::string& in, const std::string& out,
                 const std::string& err, const Environment& environment) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    if (name != "EMQ_URL" && !environment.contains(name)) {
      variables.push_back(text);
    }
  }
  for (const auto& [name, value] : environment) {
    variables.push_back(name + "=" + value);
  }
  arguments.insert(arguments.begin(), "emq");

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, in.c_str(), O_RDONLY, 0);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY;
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), flags, 0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0600);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  const int error =
      ::posix_spawn(&pid_, ECHOMQ_EMQ_PATH, &actions, nullptr, pointers(arguments).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::runtime_error(std::string("cannot run ") + ECHOMQ_EMQ_PATH);
  }
}

Tool::~Tool() {
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Tool::signal(int number) const {
  if (pid_ != 0) {
    ::kill(pid_, number);
  }
}

std::string Tool::out() const { return read_file(folder_ + "/out"); }
std::string Tool::err() const { return read_file(folder_ + "/err"); }

std::string Tool::first_line(std::chrono::milliseconds limit) const {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < until) {
    const std::string text = out();
    if (const auto end = text.find('\n'); end != std::string::npos) {
      return text.substr(0, end);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return {};
}

ToolResult Tool::wait(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      ::kill(pid_, SIGKILL);
      (void)::waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  pid_ = 0;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {.exit_code = code, .out = out(), .err = err()};
}

ToolResult run_tool(std::vector<std::string> arguments, std::optional<std::string> input, Environment environment) {
  return Tool(std::move(arguments), std::move(input), std::move(environment)).wait();
}

ToolResult run_tool_on_terminal(std::vector<std::string> arguments) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) {
    throw std::runtime_error("no terminal");
  }
  const std::string name = ::ptsname(terminal);
  // Held open here: what is unread would be lost with the last user of the terminal.
  const int held = ::open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  Tool tool;
  tool.start(std::move(arguments), "/dev/null", name, name, {});
  ToolResult result = tool.wait();
  char buffer[4096];
  (void)::fcntl(terminal, F_SETFL, O_NONBLOCK);
  for (ssize_t count = 0; (count = ::read(terminal, buffer, sizeof buffer)) > 0;) {
    result.out.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(held);
  ::close(terminal);
  return result;
}

}  // namespace echomq::test
