// Commands that `emq work` runs do not outlive it, not even when it is killed with SIGKILL.
//
// One small process beside the worker knows the process groups of the running commands. Its standard input is a pipe
// from the worker; when that ends, it kills the groups that are left.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace emq {

/// The hidden argument that makes `emq` a guard.
inline constexpr std::string_view kGuardArgument = "__guard";

/// The guard's side: runs until standard input ends. Gives the exit code.
int run_guard();

/// The worker's side. Thread-safe.
class Guard {
 public:
  /// Without a guard (no processes left, no /proc) commands run unguarded.
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  /// What a command's shell writes "+<its group>" and a line feed to before it begins; negative without a guard.
  [[nodiscard]] int pipe() const noexcept { return pipe_; }
  void release(pid_t group) noexcept;

 private:
  int pipe_ = -1;
  pid_t pid_ = 0;
};

}  // namespace emq
