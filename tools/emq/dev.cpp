// `emq dev`: a private server in the foreground, for trying things out.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <boost/json.hpp>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "echomq/testing/private_cluster.hpp"
#include "echomq/testing/private_server.hpp"
#include "spawn.hpp"
#include "text.hpp"

namespace emq {
namespace {

struct DevArguments {
  bool aof = false;
  bool cluster = false;
  bool redis = false;
  std::string binary;
  std::uint16_t port = 0;
};

/// The signals that end the tool, as a descriptor. Blocked before any thread exists, so that all of them leave these to
/// it.
int open_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaddset(&signals, number);
  }
  (void)::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return ::signalfd(-1, &signals, SFD_CLOEXEC);
}

/// Waits for a signal or for one of the servers to end by itself; gives that one.
echomq::testing::PrivateServer* wait_for_end(int signal_fd,
                                             const std::vector<echomq::testing::PrivateServer*>& servers) {
  std::vector<pollfd> polled = {{.fd = signal_fd, .events = POLLIN, .revents = 0}};
  for (const auto* server : servers) {
    polled.push_back({.fd = open_pidfd(server->pid()), .events = POLLIN, .revents = 0});
  }
  while (::poll(polled.data(), polled.size(), -1) < 0) {
  }
  echomq::testing::PrivateServer* ended = nullptr;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (i > 0 && polled[0].revents == 0 && polled[i].revents != 0) {
      ended = servers[i - 1];
    }
    if (polled[i].fd >= 0) {
      ::close(polled[i].fd);
    }
  }
  return ended;
}

Exit end(Session& session, int signal_fd, const std::vector<echomq::testing::PrivateServer*>& servers) {
  const auto* ended = wait_for_end(signal_fd, servers);
  const std::string log = ended != nullptr ? std::string(tail(ended->log(), 500)) : std::string();
  for (auto* server : servers) {
    server->stop();
  }
  if (ended != nullptr) {
    return session.report(Exit::failed, "server_ended", "the server ended by itself: " + log);
  }
  return Exit::ok;
}

Exit dev_cluster(Session& session, const DevArguments& options) {
  const int signal_fd = open_signals();
  echomq::testing::PrivateClusterOptions cluster_options;
  cluster_options.engine = options.redis ? echomq::testing::Engine::redis : echomq::testing::Engine::valkey;
  cluster_options.binary = options.binary;
  if (options.aof) {
    cluster_options.append_only = echomq::testing::AppendOnly::everysec;
  }
  auto started = echomq::testing::PrivateCluster::start(cluster_options);
  if (!started) {
    return session.report(Exit::failed, name_of(started.error()), started.error().message());
  }
  echomq::testing::PrivateCluster cluster = *std::move(started);
  std::vector<echomq::testing::PrivateServer*> nodes;
  boost::json::array rows;
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    auto& node = cluster.node(i);
    nodes.push_back(&node);
    rows.push_back(boost::json::object{{"url", node.tcp_url()}, {"pid", node.pid()}, {"folder", node.folder()}});
  }
  if (session.json) {
    session.print_json({{"url", cluster.url()}, {"nodes", rows}, {"append_only", options.aof}});
  } else {
    session.print_line(cluster.url());
  }
  (void)session.flush();
  session.note(fmt::format("a cluster of {}; nothing is kept when it ends. Ctrl-C ends it.", cluster.size()));
  return end(session, signal_fd, nodes);
}

Exit dev(Session& session, const DevArguments& options) {
  const int signal_fd = open_signals();

  echomq::testing::PrivateServerOptions server_options;
  server_options.engine = options.redis ? echomq::testing::Engine::redis : echomq::testing::Engine::valkey;
  server_options.binary = options.binary;
  if (options.aof) {
    server_options.append_only = echomq::testing::AppendOnly::everysec;
  }
  if (options.port != 0) {
    server_options.arguments = {"--port", std::to_string(options.port)};
  }
  auto started = echomq::testing::PrivateServer::start(server_options);
  if (!started) {
    return session.report(Exit::failed, name_of(started.error()), started.error().message());
  }
  echomq::testing::PrivateServer server = *std::move(started);
  const std::string url = options.port == 0 ? server.tcp_url() : fmt::format("valkey://127.0.0.1:{}", options.port);

  if (session.json) {
    session.print_json({{"url", url},
                        {"unix_url", "unix://" + server.socket_path()},
                        {"pid", server.pid()},
                        {"folder", server.folder()},
                        {"append_only", options.aof}});
  } else {
    session.print_line(url);
  }
  // Whoever waits for the first line may read it now; one that reads nothing does not end the server.
  (void)session.flush();
  session.note(
      fmt::format("server {} in {}; nothing is kept when it ends. Ctrl-C ends it.", server.pid(), server.folder()));

  return end(session, signal_fd, {&server});
}

}  // namespace

void add_dev(CLI::App& app, Session& session, Action& chosen) {
  auto options = std::make_shared<DevArguments>();
  CLI::App* command = app.add_subcommand("dev", "Run a private server until Ctrl-C; its URL is the first line");
  command->add_flag("--aof", options->aof, "Keep an append-only file, as a real server would");
  auto* cluster = command->add_flag("--cluster", options->cluster, "Run three nodes of a cluster");
  command->add_flag("--redis", options->redis, "Run redis-server instead of valkey-server");
  command->add_option("--binary", options->binary, "The server program")->type_name("PATH");
  command->add_option("--port", options->port, "Its port; default: any free one")
      ->check(CLI::Range(1, 65535))
      ->excludes(cluster);
  command->final_callback([&session, &chosen, options] {
    chosen = [&session, options] { return options->cluster ? dev_cluster(session, *options) : dev(session, *options); };
  });
}

}  // namespace emq
