// Joining private servers to a cluster, by their own commands over their Unix sockets.
#include "echomq/testing/private_cluster.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kSlots = 16384;

/// A blocking connection for one command. Enough of the protocol for what a cluster is joined with.
class Question {
 public:
  explicit Question(const std::string& socket_path) : link_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket_path.data(), std::min(socket_path.size(), sizeof address.sun_path - 1));
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(link_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(link_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    connected_ = ::connect(link_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question() {
    if (link_ >= 0) {
      ::close(link_);
    }
  }

  [[nodiscard]] Result<std::string> ask(const std::vector<std::string>& words) {
    std::string request = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
      request += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    if (!connected_ || ::send(link_, request.data(), request.size(), MSG_NOSIGNAL) != std::ssize(request)) {
      return fail(Errc::unreachable, "the node does not answer");
    }
    ECHOMQ_TRY(std::string line, read_line());
    const char kind = line.empty() ? '?' : line.front();
    line.erase(0, 1);
    switch (kind) {
      case '+':
      case ':': return line;
      case '-': return fail(Errc::server_error, line);
      case '$': break;
      default: return fail(Errc::protocol_error, "an answer of the kind " + std::string(1, kind));
    }
    std::size_t size = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), size).ec != std::errc()) {
      return std::string();  // null
    }
    while (bytes_.size() < size + 2) {
      ECHOMQ_CHECK(receive());
    }
    return bytes_.substr(0, size);
  }

 private:
  [[nodiscard]] Result<void> receive() {
    std::array<char, 4096> chunk;
    const ssize_t count = ::recv(link_, chunk.data(), chunk.size(), 0);
    if (count <= 0) {
      return fail(Errc::unreachable, "the node does not answer");
    }
    bytes_.append(chunk.data(), static_cast<std::size_t>(count));
    return {};
  }
  [[nodiscard]] Result<std::string> read_line() {
    std::size_t end = 0;
    while ((end = bytes_.find("\r\n")) == std::string::npos) {
      ECHOMQ_CHECK(receive());
    }
    std::string line = bytes_.substr(0, end);
    bytes_.erase(0, end + 2);
    return line;
  }

  int link_;
  bool connected_ = false;
  std::string bytes_;
};

}  // namespace

struct PrivateCluster::State {
  PrivateClusterOptions options;
  std::vector<PrivateServer> nodes;  // primaries first
  std::size_t primaries = 0;
  std::vector<std::size_t> owners = std::vector<std::size_t>(kSlots, 0);

  [[nodiscard]] Result<std::string> ask(std::size_t index, const std::vector<std::string>& words) const {
    return Question(nodes[index].socket_path()).ask(words);
  }

  [[nodiscard]] Result<void> start() {
    PrivateServerOptions server;
    server.engine = options.engine;
    server.binary = options.binary;
    server.listen = Listen::both;
    server.append_only = options.append_only;
    server.arguments = {"--cluster-enabled",      "yes", "--cluster-config-file", "nodes.conf",
                        "--cluster-node-timeout", "2000"};
    server.arguments.insert(server.arguments.end(), options.arguments.begin(), options.arguments.end());
    primaries = std::max<std::size_t>(options.nodes, 1);
    for (std::size_t i = 0; i < primaries * (1 + options.replicas); ++i) {
      ECHOMQ_TRY(PrivateServer node, PrivateServer::start(server));
      nodes.push_back(std::move(node));
    }
    return {};
  }

  [[nodiscard]] Result<void> join() {
    for (std::size_t i = 0; i < primaries; ++i) {
      const std::size_t first = kSlots * i / primaries;
      const std::size_t end = kSlots * (i + 1) / primaries;
      std::fill(owners.begin() + static_cast<std::ptrdiff_t>(first), owners.begin() + static_cast<std::ptrdiff_t>(end),
                i);
      ECHOMQ_CHECK(ask(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(end - 1)}));
      // Distinct from the start, so that the nodes need not settle it.
      ECHOMQ_CHECK(ask(i, {"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)}));
    }
    // All pairs, so that nobody waits for gossip.
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (std::size_t other = i + 1; other < nodes.size(); ++other) {
        ECHOMQ_CHECK(ask(i, {"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes[other].port())}));
      }
    }
    ECHOMQ_CHECK(wait_ready());
    for (std::size_t i = primaries; i < nodes.size(); ++i) {
      ECHOMQ_TRY(const std::string primary, ask((i - primaries) / options.replicas, {"CLUSTER", "MYID"}));
      ECHOMQ_CHECK(ask(i, {"CLUSTER", "REPLICATE", primary}));
    }
    const auto until = steady_clock::now() + options.start_timeout;
    for (std::size_t i = primaries; i < nodes.size(); ++i) {
      const auto in_step = [&] {
        const auto info = ask(i, {"INFO", "replication"});
        return info && info->find("master_link_status:up") != std::string::npos;
      };
      while (!in_step()) {
        if (steady_clock::now() > until)
          return fail(Errc::timeout, "a replica is not in step");
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    return {};
  }

  [[nodiscard]] bool is_ready(std::size_t index) const {
    const auto info = ask(index, {"CLUSTER", "INFO"});
    const auto says = [&](const std::string& line) { return info->find(line + "\r\n") != std::string::npos; };
    return info && says("cluster_state:ok") && says("cluster_slots_ok:" + std::to_string(kSlots)) &&
           says("cluster_known_nodes:" + std::to_string(nodes.size())) &&
           says("cluster_size:" + std::to_string(primaries));
  }

  [[nodiscard]] Result<void> wait_ready() const {
    const auto until = steady_clock::now() + options.start_timeout;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      while (!is_ready(i)) {
        if (steady_clock::now() > until) {
          const auto info = ask(i, {"CLUSTER", "INFO"});
          return fail(Errc::timeout, "the cluster is not well after " + std::to_string(options.start_timeout.count()) +
                                         "ms: " + (info ? *info : info.error().message()));
        }
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    return {};
  }
};

PrivateCluster::PrivateCluster(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
PrivateCluster::PrivateCluster(PrivateCluster&&) noexcept = default;
PrivateCluster& PrivateCluster::operator=(PrivateCluster&&) noexcept = default;
PrivateCluster::~PrivateCluster() = default;

Result<PrivateCluster> PrivateCluster::start(PrivateClusterOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  ECHOMQ_CHECK(state->start());
  ECHOMQ_CHECK(state->join());
  return PrivateCluster(std::move(state));
}

std::string PrivateCluster::url() const {
  std::string text = "valkey+cluster://";
  for (const PrivateServer& node : state_->nodes) {
    text += (&node == &state_->nodes.front() ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(node.port());
  }
  return text;
}

std::size_t PrivateCluster::size() const noexcept { return state_->primaries; }
std::size_t PrivateCluster::replica_of(std::size_t primary, std::size_t nth) const noexcept {
  return state_->primaries + primary * state_->options.replicas + nth;
}
PrivateServer& PrivateCluster::node(std::size_t index) noexcept { return state_->nodes[index]; }
std::size_t PrivateCluster::owner_of(std::uint16_t slot) const noexcept { return state_->owners[slot % kSlots]; }
Result<void> PrivateCluster::wait_ready() { return state_->wait_ready(); }
Result<std::string> PrivateCluster::ask(std::size_t index, const std::vector<std::string>& words) const {
  return state_->ask(index, words);
}

Result<void> PrivateCluster::move_slot(std::uint16_t slot, std::size_t to) {
  ECHOMQ_TRY(const std::string id, state_->ask(to, {"CLUSTER", "MYID"}));
  const std::size_t from = owner_of(slot);
  // The new owner first: nobody is sent to a node that does not know yet.
  std::vector<std::size_t> order = {to, from};
  for (std::size_t i = 0; i < state_->nodes.size(); ++i) {
    if (i != to && i != from) {
      order.push_back(i);
    }
  }
  for (const std::size_t index : order) {
    ECHOMQ_CHECK(state_->ask(index, {"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id}));
  }
  state_->owners[slot % kSlots] = to;
  return {};
}

}  // namespace testing
}  // namespace v1
}  // namespace echomq
