// This very program, started again with a filter that selects one test: a process of one's own to kill, stop or lose.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace echomq::test {

/// What the parent has told the child; empty when it has not.
[[nodiscard]] inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Killed with its object. Its output says nothing: some children are meant to abort.
class ChildProgram {
 public:
  ChildProgram(const std::string& filter, const std::vector<std::pair<std::string, std::string>>& told) {
    std::vector<std::string> variables;
    for (const auto& [name, value] : told)
      variables.push_back(name + "=" + value);
    for (char** at = environ; *at != nullptr; ++at)
      variables.emplace_back(*at);
    std::vector<std::string> words = {"worker-child", "--gtest_filter=" + filter, "--gtest_also_run_disabled_tests",
                                      "--gtest_brief=1"};
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> out;
      for (std::string& text : texts)
        out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    auto arguments = pointers(words), environment = pointers(variables);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(&pid_, "/proc/self/exe", &quiet, nullptr, arguments.data(), environment.data());
    posix_spawn_file_actions_destroy(&quiet);
    if (failed != 0)
      throw std::system_error(failed, std::generic_category(), "posix_spawn");
  }
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;
  ~ChildProgram() { kill(); }

  void signal(int number) const {
    if (pid_ > 0)
      ::kill(pid_, number);
  }
  /// Returns when all of its threads stand: until then one of them may still go on with what comes. False when it has ended.
  [[nodiscard]] bool stop() {
    signal(SIGSTOP);
    int status = 0;
    if (pid_ <= 0 || ::waitpid(pid_, &status, WUNTRACED) != pid_)
      return false;
    if (!WIFSTOPPED(status))
      pid_ = 0;
    return pid_ != 0;
  }
  void kill() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  /// Whether it has ended by itself.
  [[nodiscard]] bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_)
      pid_ = 0;
    return pid_ == 0;
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace echomq::test
