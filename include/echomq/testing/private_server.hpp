// A Valkey (or Redis) server of one's own, for a test or a try-out.
//
// Each server runs in a fresh temporary folder, on a Unix socket, a loopback port, or both, so any number of them stand
// side by side. It ends with its object, and also when the process that started it dies by whatever means. Not meant
// for production: no password, nothing kept once the object is gone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {
namespace testing {

enum class Engine : std::uint8_t { valkey, redis };
enum class Listen : std::uint8_t { unix_socket, tcp, both };
enum class AppendOnly : std::uint8_t { none, everysec, always };

struct PrivateServerOptions {
  Engine engine = Engine::valkey;
  /// Path of the server program; empty: `valkey-server` or `redis-server` of the PATH.
  std::string binary{};
  Listen listen = Listen::both;
  /// What survives `kill()` and `restart()`: without the append-only file, nothing does. Snapshots are never made.
  AppendOnly append_only = AppendOnly::none;
  /// As the server reads it ("64mb"); empty: no limit.
  std::string max_memory{};
  /// As the server reads it ("allkeys-lru"); empty: the server's default, `noeviction`.
  std::string max_memory_policy{};
  /// Further command line arguments, such as {"--cluster-enabled", "yes"}. They override what is said above.
  std::vector<std::string> arguments{};
  /// How long `start` and `restart` wait for the first PONG.
  std::chrono::milliseconds start_timeout{15'000};
};

/// A running server. Movable. Not thread-safe: one thread at a time may call, any number of clients may connect.
class PrivateServer {
 public:
  /// Starts a server and returns once it answers PING.
  ///
  /// Errors: `invalid_argument` when the program cannot be found or run, or when it ends at once (the text then holds
  /// the last lines of its log); `timeout` when it does not answer in time.
  [[nodiscard]] static Result<PrivateServer> start(PrivateServerOptions options = {});

  PrivateServer(PrivateServer&&) noexcept;
  PrivateServer& operator=(PrivateServer&&) noexcept;
  PrivateServer(const PrivateServer&) = delete;
  PrivateServer& operator=(const PrivateServer&) = delete;
  /// Kills the server and removes its folder.
  ~PrivateServer();

  /// The Unix socket's URL where there is one ("unix:///tmp/.../server.sock"), else `tcp_url()`.
  [[nodiscard]] std::string url() const;
  /// "valkey://127.0.0.1:<port>"; empty when it listens on its Unix socket only.
  [[nodiscard]] std::string tcp_url() const;
  /// Zero when it listens on its Unix socket only.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Empty when it listens on its port only.
  [[nodiscard]] const std::string& socket_path() const noexcept;
  /// The temporary folder: log, append-only file, socket.
  [[nodiscard]] const std::string& folder() const noexcept;
  /// What the server has logged so far, all starts together.
  [[nodiscard]] std::string log() const;
  /// Zero once it was stopped or killed.
  [[nodiscard]] pid_t pid() const noexcept;

  /// Orderly shutdown (SIGTERM); killed when that takes more than ten seconds. Harmless when it does not run.
  void stop();
  /// SIGKILL. Harmless when it does not run.
  void kill();
  /// Starts it again at the same address, with the same folder; stops it first if it runs. Errors as `start`.
  [[nodiscard]] Result<void> restart();
  /// SIGSTOP: connections stay open, nothing is answered.
  void pause() noexcept;
  /// SIGCONT.
  void resume() noexcept;

 private:
  struct State;
  explicit PrivateServer(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace testing
}  // namespace v1
}  // namespace echomq
