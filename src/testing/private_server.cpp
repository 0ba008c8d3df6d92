// Folder, address and command line of a private server; waiting for its first PONG.
#include "echomq/testing/private_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <thread>

#include "result/try.hpp"
#include "testing/child_process.hpp"

namespace echomq {
inline namespace v1 {
namespace testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kStopPatience{10'000};
constexpr int kPortAttempts = 20;

/// Closes a descriptor at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }
  [[nodiscard]] int get() const noexcept { return number_; }

 private:
  int number_;
};

/// A socket address of either kind.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

Address loopback(std::uint16_t port) noexcept {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(port);
  Address address;
  std::memcpy(&address.storage, &in, sizeof in);
  address.size = sizeof in;
  return address;
}

Address unix_socket(const std::string& path) noexcept {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.data(), std::min(path.size(), sizeof un.sun_path - 1));
  Address address;
  std::memcpy(&address.storage, &un, sizeof un);
  address.size = sizeof un;
  return address;
}

bool is_free(std::uint16_t port) noexcept {
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const Address address = loopback(port);
  return probe.get() >= 0 && bind(probe.get(), address.get(), address.size) == 0;
}

/// A port below the range from which the kernel serves outgoing connections, so that it stays ours while the server is
/// down; its cluster bus port, 10000 above, is free too and below that range as well.
Result<std::uint16_t> free_port() {
  std::random_device random;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = static_cast<std::uint16_t>(10'240 + random() % 12'500);
    if (is_free(port) && is_free(static_cast<std::uint16_t>(port + 10'000))) {
      return port;
    }
  }
  return fail(Errc::unreachable, "no free loopback port between 10240 and 22739");
}

/// Whether a server answers there. An answer that wants a password is one, an answer while loading is none.
bool answers_ping(const Address& address) noexcept {
  const Descriptor link(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 1, .tv_usec = 0};
  setsockopt(link.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(link.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (link.get() < 0 || connect(link.get(), address.get(), address.size) != 0) {
    return false;
  }
  constexpr std::string_view kPing = "PING\r\n";
  if (send(link.get(), kPing.data(), kPing.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kPing.size())) {
    return false;
  }
  char answer[64];
  const ssize_t bytes = recv(link.get(), answer, sizeof answer, 0);
  const std::string_view text(answer, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text.starts_with("+PONG") || text.starts_with("-NOAUTH") || text.starts_with("-NOPERM");
}

Result<std::string> make_folder() {
  const char* base = std::getenv("TMPDIR");
  // A socket path holds 107 bytes at most.
  std::string folder = base != nullptr && *base == '/' && std::strlen(base) < 70 ? base : "/tmp";
  folder += "/echomq-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return fail(Errc::invalid_argument, "cannot make " + folder + ": " + std::strerror(errno));
  }
  // The watchdog compares it with what the kernel calls it.
  std::error_code error;
  auto real = std::filesystem::canonical(folder, error);
  return error ? folder : real.string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string last_lines(std::string_view text) {
  constexpr std::size_t kBytes = 1000;
  return std::string(text.size() > kBytes ? text.substr(text.size() - kBytes) : text);
}

}  // namespace

struct PrivateServer::State {
  PrivateServerOptions options;
  std::string folder;
  std::string socket_path;
  std::uint16_t port = 0;
  ChildProcess process;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    process.end(SIGKILL, {});
    if (!folder.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  }

  [[nodiscard]] std::string log_path() const { return folder + "/server.log"; }

  [[nodiscard]] std::string program() const {
    if (options.binary.empty()) {
      return options.engine == Engine::valkey ? "valkey-server" : "redis-server";
    }
    // A path is meant from here, not from the folder; a bare name is looked up in the PATH.
    const bool is_path = options.binary.find('/') != std::string::npos;
    return is_path ? std::filesystem::absolute(options.binary).string() : options.binary;
  }

  [[nodiscard]] std::vector<std::string> command_line() const {
    std::vector<std::string> line;
    line.push_back(program());
    const auto set = [&line](std::string name, std::string value) {
      line.push_back(std::move(name));
      line.push_back(std::move(value));
    };
    set("--port", std::to_string(port));
    if (port != 0) {
      set("--bind", "127.0.0.1");
    }
    if (!socket_path.empty()) {
      set("--unixsocket", socket_path);
      set("--unixsocketperm", "700");
    }
    set("--dir", folder);
    set("--daemonize", "no");
    set("--save", "");
    set("--appendonly", options.append_only == AppendOnly::none ? "no" : "yes");
    set("--appendfsync", options.append_only == AppendOnly::always ? "always" : "everysec");
    set("--enable-debug-command", "local");
    if (!options.max_memory.empty()) {
      set("--maxmemory", options.max_memory);
    }
    if (!options.max_memory_policy.empty()) {
      set("--maxmemory-policy", options.max_memory_policy);
    }
    line.insert(line.end(), options.arguments.begin(), options.arguments.end());
    return line;
  }

  /// `clash` tells that the server ended because somebody else has the port.
  [[nodiscard]] Result<void> launch(bool& clash) {
    clash = false;
    const std::size_t logged = read_file(log_path()).size();
    ECHOMQ_CHECK(process.start(command_line(), folder, log_path()));
    const Address address = socket_path.empty() ? loopback(port) : unix_socket(socket_path);
    const auto until = steady_clock::now() + options.start_timeout;
    while (!answers_ping(address)) {
      if (!process.running()) {
        const std::string said = read_file(log_path()).substr(logged);
        clash = said.find("Address already in use") != std::string::npos;
        return fail(Errc::invalid_argument, "the server ended at once: " + last_lines(said));
      }
      if (steady_clock::now() > until) {
        process.end(SIGKILL, {});
        return fail(Errc::timeout, "no PONG after " + std::to_string(options.start_timeout.count()) +
                                       "ms: " + last_lines(read_file(log_path()).substr(logged)));
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return {};
  }
};

PrivateServer::PrivateServer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
PrivateServer::PrivateServer(PrivateServer&&) noexcept = default;
PrivateServer& PrivateServer::operator=(PrivateServer&&) noexcept = default;
PrivateServer::~PrivateServer() = default;

Result<PrivateServer> PrivateServer::start(PrivateServerOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  ECHOMQ_TRY(state->folder, make_folder());
  if (state->options.listen != Listen::tcp) {
    state->socket_path = state->folder + "/server.sock";
  }
  for (int attempt = 1;; ++attempt) {
    if (state->options.listen != Listen::unix_socket) {
      ECHOMQ_TRY(state->port, free_port());
    }
    bool clash = false;
    auto launched = state->launch(clash);
    if (launched) {
      return PrivateServer(std::move(state));
    }
    if (!clash || attempt == kPortAttempts) {
      return fail(std::move(launched).error());
    }
  }
}

Result<void> PrivateServer::restart() {
  stop();
  const auto until = steady_clock::now() + state_->options.start_timeout;
  for (;;) {
    bool clash = false;
    auto launched = state_->launch(clash);
    if (launched || !clash || steady_clock::now() > until) {
      return launched;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void PrivateServer::stop() {
  resume();
  state_->process.end(SIGTERM, kStopPatience);
}

void PrivateServer::kill() { state_->process.end(SIGKILL, {}); }
void PrivateServer::pause() noexcept { state_->process.signal(SIGSTOP); }
void PrivateServer::resume() noexcept { state_->process.signal(SIGCONT); }

std::string PrivateServer::url() const {
  return state_->socket_path.empty() ? tcp_url() : "unix://" + state_->socket_path;
}

std::string PrivateServer::tcp_url() const {
  return state_->port == 0 ? std::string() : "valkey://127.0.0.1:" + std::to_string(state_->port);
}

std::uint16_t PrivateServer::port() const noexcept { return state_->port; }
const std::string& PrivateServer::socket_path() const noexcept { return state_->socket_path; }
const std::string& PrivateServer::folder() const noexcept { return state_->folder; }
std::string PrivateServer::log() const { return read_file(state_->log_path()); }
pid_t PrivateServer::pid() const noexcept { return state_->process.pid(); }

}  // namespace testing
}  // namespace v1
}  // namespace echomq
