#include "echomq/testing/private_server.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

namespace {

using echomq::Errc;
using echomq::testing::AppendOnly;
using echomq::testing::Engine;
using echomq::testing::Listen;
using echomq::testing::PrivateServer;
using namespace std::chrono_literals;

/// Sends one inline command and gives back what comes within the patience.
std::string ask(const std::string& socket_path, const std::string& command, int patience_ms = 10'000) {
  const int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path.c_str(), sizeof address.sun_path - 1);
  std::string answer;
  if (connect(link, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const timeval patience{.tv_sec = patience_ms / 1000, .tv_usec = (patience_ms % 1000) * 1000};
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const std::string line = command + "\r\n";
    char bytes[4096];
    if (send(link, line.data(), line.size(), MSG_NOSIGNAL) > 0) {
      if (const ssize_t got = recv(link, bytes, sizeof bytes, 0); got > 0) {
        answer.assign(bytes, static_cast<std::size_t>(got));
      }
    }
  }
  close(link);
  return answer;
}

bool ends_within(std::chrono::milliseconds patience, auto&& condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

TEST(PrivateServer, AnswersAtBothAddressesAndLeavesNothingBehind) {
  std::string folder;
  pid_t pid = 0;
  {
    auto server = PrivateServer::start().value();
    folder = server.folder();
    pid = server.pid();
    EXPECT_EQ(server.url(), "unix://" + server.socket_path());
    EXPECT_EQ(server.tcp_url(), "valkey://127.0.0.1:" + std::to_string(server.port()));
    EXPECT_EQ(ask(server.socket_path(), "PING"), "+PONG\r\n");
    EXPECT_TRUE(std::filesystem::exists(folder));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(PrivateServer, ListensOnlyWhereItWasTold) {
  auto hidden = PrivateServer::start({.listen = Listen::unix_socket}).value();
  EXPECT_EQ(hidden.port(), 0);
  EXPECT_EQ(hidden.tcp_url(), "");
  auto open = PrivateServer::start({.listen = Listen::tcp}).value();
  EXPECT_EQ(open.socket_path(), "");
  EXPECT_EQ(open.url(), open.tcp_url());
}

TEST(PrivateServer, RunsTheOtherEngineToo) {
  auto server = PrivateServer::start({.engine = Engine::redis}).value();
  EXPECT_NE(ask(server.socket_path(), "INFO server").find("redis_version:7"), std::string::npos);
}

TEST(PrivateServer, KeepsItsAddressAndWithAnAppendOnlyFileItsDataOverAKill) {
  auto server = PrivateServer::start({.append_only = AppendOnly::always}).value();
  const auto port = server.port();
  EXPECT_EQ(ask(server.socket_path(), "SET key value"), "+OK\r\n");
  server.kill();
  EXPECT_EQ(server.pid(), 0);
  EXPECT_EQ(ask(server.socket_path(), "PING"), "");
  ASSERT_TRUE(server.restart());
  EXPECT_EQ(server.port(), port);
  EXPECT_EQ(ask(server.socket_path(), "GET key"), "$5\r\nvalue\r\n");
  server.stop();
  server.stop();
  EXPECT_EQ(server.pid(), 0);
}

TEST(PrivateServer, AnswersNothingWhilePaused) {
  auto server = PrivateServer::start().value();
  server.pause();
  EXPECT_EQ(ask(server.socket_path(), "PING", 100), "");
  server.resume();
  EXPECT_EQ(ask(server.socket_path(), "PING"), "+PONG\r\n");
}

TEST(PrivateServer, PassesItsMemoryLimitAndFurtherArgumentsOn) {
  auto server = PrivateServer::start(
                    {.max_memory = "64mb", .max_memory_policy = "allkeys-lru", .arguments = {"--databases", "3"}})
                    .value();
  EXPECT_NE(ask(server.socket_path(), "CONFIG GET maxmemory").find("67108864"), std::string::npos);
  EXPECT_NE(ask(server.socket_path(), "CONFIG GET maxmemory-policy").find("allkeys-lru"), std::string::npos);
  EXPECT_NE(ask(server.socket_path(), "CONFIG GET databases").find("$1\r\n3"), std::string::npos);
}

TEST(PrivateServer, SaysWhyItDidNotStart) {
  const auto missing = PrivateServer::start({.binary = "/nowhere/valkey-server"});
  ASSERT_FALSE(missing);
  EXPECT_TRUE(missing.error().is(Errc::invalid_argument));
  EXPECT_NE(missing.error().text.find("/nowhere/valkey-server"), std::string::npos);

  const auto refused = PrivateServer::start({.arguments = {"--no-such-option", "1"}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text.find("no-such-option"), std::string::npos) << refused.error().text;
}

TEST(PrivateServer, EndsWhenTheProcessThatStartedItIsKilled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto server = PrivateServer::start();
    const pid_t pid = server ? server->pid() : -1;
    if (write(ends[1], &pid, sizeof pid) == sizeof pid && server) {
      const std::string folder = server->folder() + "\n";
      [[maybe_unused]] const auto written = write(ends[1], folder.data(), folder.size());
      pause();
    }
    _exit(1);
  }
  pid_t server = 0;
  ASSERT_EQ(read(ends[0], &server, sizeof server), static_cast<ssize_t>(sizeof server));
  ASSERT_GT(server, 0);
  char folder[256] = {};
  ASSERT_GT(read(ends[0], folder, sizeof folder - 1), 0);
  *std::strchr(folder, '\n') = '\0';

  EXPECT_EQ(kill(server, 0), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(ends_within(10s, [&] { return !std::filesystem::exists(folder); }));
  EXPECT_TRUE(ends_within(10s, [&] { return kill(server, 0) != 0; }));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
