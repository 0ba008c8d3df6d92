// The floor's socket.
#include "raw_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "resp/encode.hpp"

namespace echomq_bench {
namespace {

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace

std::string encode(std::span<const std::string_view> parts) {
  std::string out(echomq::resp::encoded_size(parts), '\0');
  echomq::resp::encode_to(out.data(), parts);
  return out;
}

RawSocket::RawSocket(const std::string& path) {
  fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    die("connect");
  buffer_.resize(std::size_t{1} << 20);
}

RawSocket::~RawSocket() {
  if (fd_ >= 0)
    ::close(fd_);
}

void RawSocket::send_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0)
      die("send");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string RawSocket::round_trip(std::string_view request) {
  send_all(request);
  echomq::resp::Scanner scanner;
  std::string reply;
  for (;;) {
    const ssize_t got = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0)
      die("recv");
    reply.append(buffer_.data(), static_cast<std::size_t>(got));
    switch (scanner.scan(reply)) {
      case echomq::resp::Step::frame: return reply.substr(0, scanner.frame_size());
      case echomq::resp::Step::error: die("not RESP");
      case echomq::resp::Step::need_more: break;
    }
  }
}

std::string RawSocket::command(std::span<const std::string_view> parts) { return round_trip(encode(parts)); }

void RawSocket::read_replies(std::size_t count) {
  const std::size_t ahead = std::min(count, surplus_);
  surplus_ -= ahead;
  count -= ahead;
  while (count > 0) {
    if (buffer_.size() - end_ < 65536) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      if (buffer_.size() - end_ < 65536)
        buffer_.resize(buffer_.size() * 2);
    }
    const ssize_t got = ::recv(fd_, buffer_.data() + end_, buffer_.size() - end_, 0);
    if (got <= 0)
      die("recv");
    end_ += static_cast<std::size_t>(got);
    while (begin_ < end_ && scanner_.scan(buffer_.data() + begin_, end_ - begin_) == echomq::resp::Step::frame) {
      begin_ += scanner_.frame_size();
      if (count > 0) {
        --count;
      } else {
        ++surplus_;
      }
    }
    if (begin_ == end_)
      begin_ = end_ = 0;
  }
}

void RawSocket::run(std::span<const std::string> requests, std::size_t window) {
  // Half a window is sent while the other half is being answered, so that the server never waits.
  const std::size_t half = window > 1 ? window / 2 : 1;
  std::string chunk;
  std::size_t unanswered = 0;
  for (std::size_t at = 0; at < requests.size(); at += half) {
    const std::size_t count = std::min(half, requests.size() - at);
    chunk.clear();
    for (std::size_t i = 0; i < count; ++i)
      chunk += requests[at + i];
    send_all(chunk);
    unanswered += count;
    if (unanswered > half || window == 1) {
      const std::size_t due = window == 1 ? unanswered : unanswered - half;
      read_replies(due);
      unanswered -= due;
    }
  }
  read_replies(unanswered);
}

void RawSocket::drain() {
  char bytes[1 << 16];
  while (::read(fd_, bytes, sizeof bytes) > 0) {
  }
}

void RawSocket::shut() { (void)::shutdown(fd_, SHUT_RDWR); }

ServerUse server_use(RawSocket& socket) {
  const std::string_view parts[] = {"INFO", "cpu"};
  const std::string info = socket.command(parts);
  const auto field = [&](const char* name) {
    const std::size_t at = info.find(name);
    return at == std::string::npos ? 0.0 : std::strtod(info.c_str() + at + std::strlen(name), nullptr);
  };
  ServerUse use;
  use.cpu_seconds = field("used_cpu_sys:") + field("used_cpu_user:");
  use.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return use;
}

}  // namespace echomq_bench
