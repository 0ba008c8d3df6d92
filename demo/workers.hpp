// The three worker processes of the demo: `emq work`, each in a folder of its own, each ended with the demo.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "echomq/error.hpp"
#include "testing/child_process.hpp"

namespace demo {

class Workers {
 public:
  /// Starts `count` of them for the queue, on the server at `url`. Each run appends "<id> <token> <digest>" to `results`.
  [[nodiscard]] echomq::Result<void> start(std::size_t count, unsigned concurrency, const std::string& queue,
                                           const std::string& url, const std::filesystem::path& scratch,
                                           const std::filesystem::path& results);

  /// SIGKILL, as by a machine that fails. Gives its process id.
  pid_t kill(std::size_t index);
  /// SIGTERM to all, and a wait for their orderly end.
  void stop();
  /// How many run now.
  [[nodiscard]] std::size_t running();
  /// What the workers said, for when something went wrong.
  [[nodiscard]] std::string last_words() const;

 private:
  std::vector<std::unique_ptr<echomq::testing::ChildProcess>> processes_;
  std::vector<std::filesystem::path> logs_;
};

}  // namespace demo
