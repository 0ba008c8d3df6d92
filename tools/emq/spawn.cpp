// Attributes and vectors for posix_spawn.
#include "spawn.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string_view>

namespace emq {
namespace {

std::vector<char*> pointers(std::span<const std::string> strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& string : strings) {
    out.push_back(const_cast<char*>(string.c_str()));
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace

Spawn::Spawn() {
  ::posix_spawn_file_actions_init(&actions_);
  ::posix_spawnattr_init(&attributes_);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes_, &none);
  ::posix_spawnattr_setsigdefault(&attributes_, &all);
  ::posix_spawnattr_setpgroup(&attributes_, 0);
  ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

Spawn::~Spawn() {
  ::posix_spawn_file_actions_destroy(&actions_);
  ::posix_spawnattr_destroy(&attributes_);
}

void Spawn::give(int fd, int target) { ::posix_spawn_file_actions_adddup2(&actions_, fd, target); }

pid_t Spawn::run(const std::string& path, std::span<const std::string> arguments,
                 std::span<const std::string> environment, int& error) {
  pid_t pid = 0;
  error = ::posix_spawn(&pid, path.c_str(), &actions_, &attributes_, pointers(arguments).data(),
                        pointers(environment).data());
  return error == 0 ? pid : 0;
}

// By its number: the declaration of glibc 2.36 forgets that C++ might want it.
int open_pidfd(pid_t pid) noexcept { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)); }

std::vector<std::string> environment_without(std::span<const std::string_view> drop) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::find(drop, name) == drop.end()) {
      out.emplace_back(text);
    }
  }
  return out;
}

}  // namespace emq
