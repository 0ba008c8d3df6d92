// What all subcommands share: where the server is, and how results, errors and progress are shown.
#pragma once

#include <boost/json/fwd.hpp>
#include <chrono>
#include <string>
#include <string_view>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "exit_code.hpp"

namespace emq {

/// Results go to standard output (with `--json`, exactly one JSON value), everything else to standard error.
class Session {
 public:
  Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::string url = "valkey://127.0.0.1:6379";
  bool json = false;
  bool verbose = false;

  /// `role` is what CLIENT LIST shows after "emq ".
  [[nodiscard]] echomq::Result<echomq::Client> connect(std::string_view role, echomq::NodeLease lease) const;

  /// Adds to standard output; a reader that went away ends the output, not the command.
  void print(std::string_view text);
  void print_line(std::string_view text);
  void print_json(const boost::json::value& value);
  /// False when some of the output could not be written.
  [[nodiscard]] bool flush();
  /// Whether that was because its reader has what it wanted (`| head`), which is no failure.
  [[nodiscard]] bool reader_left() const noexcept;
  [[nodiscard]] std::string output_error() const;

  /// The error on standard error, and the exit code that goes with it.
  [[nodiscard]] Exit report(const echomq::Error& error) const;
  [[nodiscard]] Exit report(Exit exit, std::string_view name, std::string_view message) const;
  /// On standard error, of what goes wrong while the command goes on: a line, with `--json` an object with `warning`.
  void warn(std::string_view name, std::string_view message) const;
  /// A remark on standard error; nothing with `--json`.
  void note(std::string_view text) const;

  [[nodiscard]] bool stdout_is_terminal() const noexcept { return stdout_is_terminal_; }

 private:
  std::string pending_;
  int output_error_ = 0;  ///< `errno` of the first write that failed
  bool stdout_is_terminal_;
  bool stderr_is_terminal_;
};

/// A line that is rewritten in place while long work runs; nothing at all when standard error is no terminal.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Whether it is time for a new text (ten times a second).
  [[nodiscard]] bool due() noexcept;
  void show(std::string_view text);
  void clear();

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

/// Writes all of it to a descriptor; false when that fails.
[[nodiscard]] bool write_all(int fd, std::string_view bytes) noexcept;

}  // namespace emq
