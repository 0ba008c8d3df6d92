// A child process that does not outlive its parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {
namespace testing {

/// Beside each child stands a watchdog, a shell that waits on a pipe of ours: when this process dies, even by SIGKILL,
/// the pipe closes and the watchdog kills the child and removes its folder. (PR_SET_PDEATHSIG would do it without a
/// second process, but it fires when the starting *thread* ends.)
class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  /// `arguments[0]` is looked up in the PATH. Output is appended to `log`. The child works in `folder`, and must stay
  /// there: it is how the watchdog knows that the process id is still the child's.
  [[nodiscard]] Result<void> start(const std::vector<std::string>& arguments, const std::string& folder,
                                   const std::string& log);

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Whether it still runs; a child that ended is reaped here.
  [[nodiscard]] bool running();
  void signal(int number) const noexcept;
  /// Sends the signal, waits, and kills when the patience is over.
  void end(int number, std::chrono::milliseconds patience);

 private:
  void release_watchdog();

  pid_t pid_ = 0;
  pid_t watchdog_ = 0;
  int watchdog_pipe_ = -1;
};

}  // namespace testing
}  // namespace v1
}  // namespace echomq
