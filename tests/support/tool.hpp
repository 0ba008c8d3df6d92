// Runs the `emq` binary as a user would: arguments, standard input, environment; and what came out of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace echomq::test {

struct ToolResult {
  int exit_code = -1;  ///< 128 + signal when one ended it
  std::string out;
  std::string err;
};

using Environment = std::map<std::string, std::string>;

/// A running `emq`. Killed with its object.
class Tool {
 public:
  /// `environment` is added to ours; EMQ_URL of ours is dropped. `input` absent: standard input is /dev/null.
  explicit Tool(std::vector<std::string> arguments, std::optional<std::string> input = {},
                Environment environment = {});
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;
  ~Tool();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void signal(int number) const;
  /// Waits for the first line of standard output, without its end. Empty when none came in time.
  [[nodiscard]] std::string first_line(std::chrono::milliseconds limit = std::chrono::seconds{10}) const;
  [[nodiscard]] std::string out() const;
  [[nodiscard]] std::string err() const;
  /// Waits for the end; kills it (exit code 137) when `limit` passes.
  [[nodiscard]] ToolResult wait(std::chrono::milliseconds limit = std::chrono::seconds{30});

 private:
  friend ToolResult run_tool_on_terminal(std::vector<std::string> arguments);
  void start(std::vector<std::string> arguments, const std::string& in, const std::string& out, const std::string& err,
             const Environment& environment);
  Tool();

  std::string folder_;
  pid_t pid_ = 0;
};

/// Starts and waits.
[[nodiscard]] ToolResult run_tool(std::vector<std::string> arguments, std::optional<std::string> input = {},
                                  Environment environment = {});

/// The same with a terminal as standard output and error; both in `out`, which must be short.
[[nodiscard]] ToolResult run_tool_on_terminal(std::vector<std::string> arguments);

}  // namespace echomq::test
