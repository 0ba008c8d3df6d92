// posix_spawn with what every child of the tool needs: an own process group, no blocked signals, no descriptors of ours.
#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace emq {

/// How one child is started. Descriptors of ours are close-on-exec, so only those named here reach it.
class Spawn {
 public:
  Spawn();
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
  ~Spawn();

  /// The child's `target` is our `fd`.
  void give(int fd, int target);

  /// Gives the child's id, which is its process group too; 0 with `error` set to an errno when it cannot be started.
  [[nodiscard]] pid_t run(const std::string& path, std::span<const std::string> arguments,
                          std::span<const std::string> environment, int& error);

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// A close-on-exec descriptor that is readable once the process has ended; negative where the kernel has none.
[[nodiscard]] int open_pidfd(pid_t pid) noexcept;

/// Our environment, without the variables that `drop` names ("EMQ_GROUP").
[[nodiscard]] std::vector<std::string> environment_without(std::span<const std::string_view> drop);

}  // namespace emq
