// A Node program of this folder as a child process: lines to its standard input, lines from its standard output.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace echomq::interop {

/// Killed with its object, and also ended by the end of its input when our own process dies.
class NodeProcess {
 public:
  /// `program` is a file of tests/interop. Its standard error is ours.
  /// Throws when node or the packages of the program are not installed: nothing of this is ever skipped.
  NodeProcess(const std::string& program, std::vector<std::string> arguments);
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;
  ~NodeProcess();

  void write_line(const std::string& line);
  /// Empty when none came in time, or when the program has ended.
  [[nodiscard]] std::optional<std::string> read_line(std::chrono::milliseconds limit);
  /// Closes its input and waits for its end; killed when `limit` passes. Gives the exit code, 128 + signal when one
  /// ended it.
  int finish(std::chrono::milliseconds limit);
  /// SIGKILL, and waits for the end.
  void kill();

 private:
  int wait_for_end(std::chrono::milliseconds limit);

  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
  std::string unread_;
};

}  // namespace echomq::interop
