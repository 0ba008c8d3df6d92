// A played node: one thread, its listener and its connections.
#include "support/played_node.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace echomq::test {
namespace {

using namespace std::chrono_literals;

/// The number behind the first byte of a line; moves `at` behind the line. Nothing while the line is not there.
[[nodiscard]] std::optional<std::size_t> number_line(std::string_view bytes, std::size_t& at) {
  const std::size_t end = bytes.find("\r\n", at);
  if (end == std::string_view::npos)
    return std::nullopt;
  std::size_t number = 0;
  std::from_chars(bytes.data() + at + 1, bytes.data() + end, number);
  at = end + 2;
  return number;
}

/// Takes one whole command off the front.
[[nodiscard]] std::optional<PlayedNode::Words> take_command(std::string& bytes) {
  std::size_t at = 0;
  const auto count = number_line(bytes, at);
  if (!count)
    return std::nullopt;
  PlayedNode::Words words;
  for (std::size_t i = 0; i < *count; ++i) {
    const auto size = number_line(bytes, at);
    if (!size || bytes.size() < at + *size + 2)
      return std::nullopt;
    words.push_back(bytes.substr(at, *size));
    at += *size + 2;
  }
  bytes.erase(0, at);
  return words;
}

[[nodiscard]] std::string joined(const PlayedNode::Words& words) {
  std::string line;
  for (const std::string& word : words)
    line += (line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace

std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

struct PlayedNode::State {
  struct Connection {
    int fd;
    std::string in;
    std::string out;
  };

  void run() {
    std::vector<Connection> open;
    while (!stopping) {
      if (dead) {
        for (const Connection& one : open)
          ::close(one.fd);
        open.clear();
        if (listener >= 0)
          ::close(std::exchange(listener, -1));
        gone = true;
        std::this_thread::sleep_for(1ms);
        continue;
      }
      if (dropping) {
        for (const Connection& one : open)
          ::close(one.fd);
        open.clear();
        dropping = false;
      }
      std::vector<pollfd> watched = {{listener, POLLIN, 0}};
      for (const Connection& one : open)
        watched.push_back({one.fd, POLLIN, 0});
      (void)::poll(watched.data(), watched.size(), 1);
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (watched[i + 1].revents != 0 && !read(open[i]))
          ::close(std::exchange(open[i].fd, -1));
      }
      std::erase_if(open, [](const Connection& one) { return one.fd < 0; });
      if (watched[0].revents != 0)
        open.push_back({::accept(listener, nullptr, nullptr), {}, {}});
      for (Connection& one : open) {
        if (!held && !one.out.empty()) {
          (void)!::send(one.fd, one.out.data(), one.out.size(), MSG_NOSIGNAL);
          one.out.clear();
        }
      }
    }
    for (const Connection& one : open)
      ::close(one.fd);
    if (listener >= 0)
      ::close(listener);
  }

  [[nodiscard]] bool read(Connection& from) {
    char buffer[65536];
    const ssize_t count = ::recv(from.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count <= 0)
      return false;
    if (slow)
      std::this_thread::sleep_for(5ms);
    from.in.append(buffer, static_cast<std::size_t>(count));
    while (auto words = take_command(from.in)) {
      if (const auto reply = reply_to(*words))
        from.out += *reply;
    }
    return true;
  }

  [[nodiscard]] std::optional<std::string> reply_to(const Words& words) {
    const std::string& verb = words.front();
    if (verb == "HELLO" || verb == "PING")
      return "+OK\r\n";
    if (verb == "CLIENT" && words[1] != "UNBLOCK")
      return words[1] == "ID" ? ":1\r\n" : "+OK\r\n";
    if (verb == "GET" && words[1] == "{emq}:version")
      return bulk("echomq:3.0.0");
    if (verb == "CLUSTER") {
      ++maps;
      return map();
    }
    {
      const std::lock_guard guard(mutex);
      lines.push_back(joined(words));
    }
    return play(words);
  }

  Play play;
  Map map;
  bool slow = false;
  int listener = -1;
  std::uint16_t port = 0;
  std::atomic<bool> stopping{false}, dead{false}, gone{false}, held{false}, dropping{false};
  std::atomic<std::size_t> maps{0};
  std::mutex mutex;
  std::vector<std::string> lines;  // guarded by mutex
  std::thread thread;
  bool stopped = false;  ///< after it was served
};

PlayedNode::PlayedNode() : state_(std::make_unique<State>()) {
  state_->listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(state_->listener, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(state_->listener, 16) != 0 ||
      ::getsockname(state_->listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no port for a played node");
  state_->port = ntohs(address.sin_port);
}

PlayedNode::~PlayedNode() {
  const bool begun = state_->thread.joinable();
  stop();
  if (!begun && !state_->stopped)
    ::close(state_->listener);
}

void PlayedNode::stop() {
  state_->stopping = true;
  if (state_->thread.joinable()) {
    state_->thread.join();
    state_->stopped = true;
  }
}

void PlayedNode::read_slowly() {
  // Little is on its way then; connections have it of their listener.
  const int size = 65536;
  if (::setsockopt(state_->listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) != 0)
    throw std::runtime_error("a played node cannot have a small buffer");
  state_->slow = true;
}

void PlayedNode::begin(Play play, Map map) {
  state_->play = std::move(play);
  state_->map = std::move(map);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

std::uint16_t PlayedNode::port() const noexcept { return state_->port; }
std::string PlayedNode::address() const { return "127.0.0.1:" + std::to_string(state_->port); }

std::vector<std::string> PlayedNode::asked() const {
  const std::lock_guard guard(state_->mutex);
  return state_->lines;
}

bool PlayedNode::was_asked(std::string_view line, std::chrono::milliseconds within) const {
  for (const auto until = std::chrono::steady_clock::now() + within; std::chrono::steady_clock::now() < until;) {
    const std::vector<std::string> all = asked();
    if (std::ranges::find(all, line) != all.end())
      return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

std::size_t PlayedNode::maps_read() const { return state_->maps; }

void PlayedNode::hold() { state_->held = true; }
void PlayedNode::release() { state_->held = false; }

void PlayedNode::drop() {
  state_->dropping = true;
  while (state_->dropping)
    std::this_thread::sleep_for(1ms);
}

void PlayedNode::die() {
  state_->dead = true;
  while (!state_->gone)
    std::this_thread::sleep_for(1ms);
}

}  // namespace echomq::test
