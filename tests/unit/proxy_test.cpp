// The proxy of the fault tests does what it says, to the byte: without a server of the protocol, against an echo.
#include "support/proxy.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace echomq::test {
namespace {

using namespace std::chrono_literals;

int socket_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

// Answers each byte with itself, and keeps all it got.
class Echo {
 public:
  Echo() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    socklen_t size = sizeof address;
    (void)::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Echo() {
    stopping_ = true;
    ::close(socket_to(port_));
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::string url() const { return "valkey://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::string got() {
    const std::lock_guard guard(mutex_);
    return got_;
  }
  /// What it got, once that is `bytes` long or ten seconds have passed.
  [[nodiscard]] std::string got(std::size_t bytes) {
    for (int look = 0; look < 10'000 && got().size() < bytes; ++look)
      std::this_thread::sleep_for(1ms);
    return got();
  }

 private:
  void run() {
    while (!stopping_) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      char buffer[4096];
      ssize_t count = 0;
      while ((count = ::recv(fd, buffer, sizeof buffer, 0)) > 0) {
        {
          const std::lock_guard guard(mutex_);
          got_.append(buffer, static_cast<std::size_t>(count));
        }
        (void)::send(fd, buffer, static_cast<std::size_t>(count), MSG_NOSIGNAL);
      }
      ::close(fd);
    }
  }
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::string got_;
  std::thread thread_;
};

class User {
 public:
  explicit User(const Proxy& proxy) : fd_(socket_to(proxy.port())) {}
  User(const User&) = delete;
  User& operator=(const User&) = delete;
  ~User() { ::close(fd_); }
  void say(std::string_view text) const { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // What comes within `limit`, up to `bytes`.
  [[nodiscard]] std::string hear(std::size_t bytes, std::chrono::milliseconds limit = 10'000ms) const {
    std::string out;
    while (out.size() < bytes) {
      pollfd polled{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&polled, 1, static_cast<int>(limit.count())) <= 0) {
        break;
      }
      char buffer[4096];
      const ssize_t count = ::recv(fd_, buffer, sizeof buffer, 0);
      if (count <= 0) {
        break;
      }
      out.append(buffer, static_cast<std::size_t>(count));
    }
    return out;
  }
  [[nodiscard]] bool ended(std::chrono::milliseconds limit = 10'000ms) const {
    pollfd polled{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, static_cast<int>(limit.count())) <= 0) {
      return false;
    }
    char byte = 0;
    return ::recv(fd_, &byte, 1, MSG_PEEK) <= 0;
  }

 private:
  int fd_;
};

TEST(Proxy, PassesBytesAndTheEndOfAStream) {
  Echo echo;
  std::string asked;
  std::string answered;
  std::atomic<int> ends{0};
  {
    Proxy proxy(echo.url(), {.tap =
                                 [&](std::uint64_t, Direction direction, std::string_view bytes) {
                                   (direction == Direction::to_server ? asked : answered) += bytes;
                                 },
                             .on_end = [&](std::uint64_t) { ++ends; }});
    {
      const User user(proxy);
      const std::string large(300000, 'x');
      user.say(large);
      EXPECT_EQ(user.hear(large.size()), large);
      EXPECT_EQ(proxy.counters().open, 1U);
    }
    // The proxy sees the user's end a moment after the user made it.
    while (proxy.counters().open != 0) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(proxy.wait_drained());
    const ProxyCounters counters = proxy.counters();
    EXPECT_EQ(counters.bytes_to_server, 300000U);
    EXPECT_EQ(counters.bytes_to_client, 300000U);
    EXPECT_EQ(counters.cut, 0U);
  }
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(asked.size(), 300000U);
  EXPECT_EQ(answered.size(), 300000U);
}

TEST(Proxy, CutsARequestAtEachOffset) {
  for (std::uint64_t offset = 0; offset <= 5; ++offset) {
    Echo echo;
    Proxy proxy(echo.url());
    const User user(proxy);
    user.say("boot");
    ASSERT_EQ(user.hear(4), "boot");
    proxy.cut_after(Direction::to_server, offset);
    user.say("hello");
    EXPECT_TRUE(proxy.wait_struck(1));
    EXPECT_TRUE(proxy.wait_drained());
    EXPECT_TRUE(user.ended());
    EXPECT_EQ(echo.got(), "boot" + std::string("hello").substr(0, offset));
  }
}

TEST(Proxy, CutsAReplyAtEachOffsetAndTheServerHasTheRequest) {
  for (std::uint64_t offset = 0; offset <= 5; ++offset) {
    Echo echo;
    Proxy proxy(echo.url());
    const User user(proxy);
    user.say("boot");
    ASSERT_EQ(user.hear(4), "boot");
    proxy.cut_after(Direction::to_client, offset);
    user.say("hello");
    EXPECT_EQ(user.hear(5), std::string("hello").substr(0, offset));
    EXPECT_TRUE(proxy.wait_drained());
    EXPECT_EQ(echo.got(), "boothello");
    EXPECT_EQ(proxy.counters().cut, 1U);
  }
}

TEST(Proxy, CutsTheNextConnectionOnly) {
  Echo echo;
  Proxy proxy(echo.url());
  proxy.cut_next_after(Direction::to_server, 2);
  {
    const User user(proxy);
    user.say("abc");
    EXPECT_EQ(user.hear(3), "");
  }
  EXPECT_TRUE(proxy.wait_drained());
  const User user(proxy);
  user.say("def");
  EXPECT_EQ(user.hear(3), "def");
  EXPECT_EQ(echo.got(), "abdef");
}

TEST(Proxy, SwallowsRepliesAndKeepsTheConnection) {
  Echo echo;
  Proxy proxy(echo.url());
  const User user(proxy);
  user.say("boot");
  ASSERT_EQ(user.hear(4), "boot");
  proxy.swallow_after(Direction::to_client, 2);
  user.say("hello");
  EXPECT_EQ(user.hear(2), "he");
  EXPECT_EQ(user.hear(1, 200ms), "");
  EXPECT_FALSE(user.ended(100ms));
  EXPECT_EQ(echo.got(), "boothello");
  EXPECT_EQ(proxy.cut(), 1U);
  EXPECT_TRUE(user.ended());
}

TEST(Proxy, HoldsAndReleases) {
  Echo echo;
  Proxy proxy(echo.url());
  const User user(proxy);
  proxy.hold(Direction::to_client);
  user.say("one");
  EXPECT_EQ(user.hear(3, 100ms), "");
  EXPECT_EQ(echo.got(3), "one");
  proxy.hold();
  user.say("two");
  EXPECT_EQ(user.hear(3, 100ms), "");
  EXPECT_EQ(echo.got(), "one");
  proxy.release();
  EXPECT_EQ(user.hear(6), "onetwo");
}

TEST(Proxy, SplitsAndDelaysWithoutLoss) {
  Echo echo;
  Proxy proxy(echo.url());
  proxy.split(1);
  const User user(proxy);
  user.say("some words in pieces");
  EXPECT_EQ(user.hear(20), "some words in pieces");
  proxy.split(0);
  proxy.delay(30ms);
  const auto start = std::chrono::steady_clock::now();
  user.say("late");
  EXPECT_EQ(user.hear(4), "late");
  EXPECT_GE(std::chrono::steady_clock::now() - start, 60ms);
}

TEST(Proxy, RefusesNewConnectionsAndAnAbsentServer) {
  Echo echo;
  Proxy proxy(echo.url());
  proxy.refuse_new(true);
  EXPECT_TRUE(User(proxy).ended());
  EXPECT_EQ(proxy.counters().refused, 1U);
  proxy.heal();
  const User user(proxy);
  user.say("x");
  EXPECT_EQ(user.hear(1), "x");

  Proxy nowhere("127.0.0.1:1");
  EXPECT_TRUE(User(nowhere).ended());
  EXPECT_EQ(nowhere.counters().unreachable, 1U);
}

TEST(Proxy, UnixSocketsAndTheTapMayCallTheProxy) {
  Echo echo;
  Proxy* self = nullptr;
  Proxy proxy(echo.url(), {.tap = [&](std::uint64_t, Direction direction, std::string_view) {
                if (direction == Direction::to_client) {
                  self->cut();
                }
              }});
  self = &proxy;
  Proxy front(proxy.url(), {.listen = ProxyListen::unix_socket});
  EXPECT_TRUE(front.url().starts_with("unix:///"));
  Proxy chain(front.url());
  const User user(chain);
  user.say("x");
  EXPECT_EQ(user.hear(1), "");
  EXPECT_TRUE(user.ended());
  EXPECT_EQ(proxy.counters().cut, 1U);
}

}  // namespace
}  // namespace echomq::test
