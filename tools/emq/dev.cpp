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

#include "arguments.hpp"
#include "commands.hpp"
#include "echomq/testing/private_server.hpp"
#include "spawn.hpp"
#include "text.hpp"

namespace emq {
namespace {

struct Options {
  bool aof = false;
  bool redis = false;
  std::string binary;
  std::uint16_t port = 0;
};

Exit dev(Session& session, const Options& options) {
  // Blocked before any thread exists, so that all of them leave these to the descriptor below.
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaddset(&signals, number);
  }
  (void)::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int signal_fd = ::signalfd(-1, &signals, SFD_CLOEXEC);

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

  const int server_fd = open_pidfd(server.pid());
  std::array<pollfd, 2> polled{
      {{.fd = signal_fd, .events = POLLIN, .revents = 0}, {.fd = server_fd, .events = POLLIN, .revents = 0}}};
  while (::poll(polled.data(), polled.size(), -1) < 0) {
  }
  const bool died = polled[0].revents == 0;
  const std::string log = died ? std::string(tail(server.log(), 500)) : std::string();
  server.stop();
  ::close(signal_fd);
  if (server_fd >= 0) {
    ::close(server_fd);
  }
  if (died) {
    return session.report(Exit::failed, "server_ended", "the server ended by itself: " + log);
  }
  return Exit::ok;
}

}  // namespace

void add_dev(CLI::App& app, Session& session, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("dev", "Run a private server until Ctrl-C; its URL is the first line");
  command->add_flag("--aof", options->aof, "Keep an append-only file, as a real server would");
  command->add_flag("--redis", options->redis, "Run redis-server instead of valkey-server");
  command->add_option("--binary", options->binary, "The server program")->type_name("PATH");
  command->add_option("--port", options->port, "Its port; default: any free one")->check(CLI::Range(1, 65535));
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return dev(session, *options); }; });
}

}  // namespace emq
