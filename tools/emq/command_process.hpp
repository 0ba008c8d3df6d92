// One run of a shell command: the payload in, the tail of its complaints out, and an end on request.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "guard.hpp"

namespace emq {

struct CommandRun {
  std::string command;                         ///< for `/bin/sh -c`
  std::string_view input;                      ///< its standard input
  std::span<const std::string> environment;    ///< all of it, "NAME=value"
  std::chrono::milliseconds kill_after{5000};  ///< from SIGTERM to SIGKILL
  int output_fd = 1;                           ///< its standard output
};

struct CommandEnd {
  bool started = false;
  bool stopped = false;  ///< it was told to end: whatever it answered, its work may be half done
  int exit_status = 0;   ///< when it exited
  int signal = 0;        ///< when a signal ended it
  std::string error;     ///< the last 4 KiB of its standard error, or why it did not start

  [[nodiscard]] bool succeeded() const noexcept { return started && !stopped && exit_status == 0 && signal == 0; }
};

/// Runs the command to its end; its standard error is passed on to ours as well. When `stop` is requested, its process
/// group gets SIGTERM and, `kill_after` later, SIGKILL; when `kill` is, SIGKILL at once.
[[nodiscard]] CommandEnd run_command(const CommandRun& run, Guard& guard, const std::stop_token& stop,
                                     const std::stop_token& kill);

}  // namespace emq
