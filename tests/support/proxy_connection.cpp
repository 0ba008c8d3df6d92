// How bytes pass, and the ways in which they do not.
#include "proxy_connection.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace echomq::test {
namespace {

// A sender is not read while so much of it waits: the pressure of a slow receiver reaches it as without a proxy.
constexpr std::size_t kMaxBuffered = std::size_t{1} << 20;

}  // namespace

ProxyConnection::~ProxyConnection() {
  if (client_ >= 0) {
    ::close(client_);
  }
  if (server_ >= 0) {
    ::close(server_);
  }
}

ProxyConnection::Interest ProxyConnection::interest() const noexcept {
  const Stream& up = streams_[Direction::to_server];
  const Stream& down = streams_[Direction::to_client];
  Interest out;
  if (!up.source_ended && up.buffered < kMaxBuffered) {
    out.client_events |= POLLIN;
  }
  if (down.wants_write) {
    out.client_events |= POLLOUT;
  }
  if (!connecting_ && !down.source_ended && down.buffered < kMaxBuffered) {
    out.server_events |= POLLIN;
  }
  if (connecting_ || up.wants_write) {
    out.server_events |= POLLOUT;
  }
  // A socket without interest is left out: poll would report its hang-up again and again.
  out.client = out.client_events != 0 ? client_ : -1;
  out.server = out.server_events != 0 ? server_ : -1;
  return out;
}

ProxyConnection::Clock::time_point ProxyConnection::next_due() const noexcept {
  auto next = Clock::time_point::max();
  for (const Direction direction : {Direction::to_server, Direction::to_client}) {
    const Stream& stream = streams_[direction];
    if (!stream.chunks.empty() && !stream.wants_write && !rules_.holds(id_, direction) && !connecting_) {
      next = std::min(next, std::max(stream.chunks.front().due, stream.next_piece));
    }
  }
  return next;
}

void ProxyConnection::serve(short client_events, short server_events) {
  if (connecting_ && server_events != 0) {
    int error = 0;
    socklen_t size = sizeof error;
    (void)::getsockopt(server_, SOL_SOCKET, SO_ERROR, &error, &size);
    connecting_ = false;
    if (error != 0) {
      ++rules_.counters.unreachable;
      close_server();
      close_client();
      return;
    }
    server_events = 0;
  }
  if ((server_events & POLLOUT) != 0) {
    streams_[Direction::to_server].wants_write = false;
  }
  if ((client_events & POLLOUT) != 0) {
    streams_[Direction::to_client].wants_write = false;
  }
  constexpr short kReadable = POLLIN | POLLHUP | POLLERR;
  if ((client_events & kReadable) != 0) {
    take(Direction::to_server);
  }
  if ((server_events & kReadable) != 0) {
    take(Direction::to_client);
  }
}

// Reads what a sender has.
void ProxyConnection::take(Direction direction) {
  Stream& stream = streams_[direction];
  const int fd = direction == Direction::to_server ? client_ : server_;
  if (fd < 0 || stream.source_ended || stream.buffered >= kMaxBuffered) {
    return;
  }
  char buffer[65536];
  const ssize_t count = ::recv(fd, buffer, sizeof buffer, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count <= 0) {
    stream.source_ended = true;
    return;
  }
  const std::string_view bytes(buffer, static_cast<std::size_t>(count));
  stream.buffered += bytes.size();
  stream.chunks.push_back({.due = Clock::now() + rules_.delay, .bytes = std::string(bytes)});
  if (direction == Direction::to_client) {
    rules_.counters.bytes_to_client += bytes.size();
    tap(direction, bytes);
  }
}

void ProxyConnection::pass(Direction direction, Clock::time_point now) {
  Stream& stream = streams_[direction];
  if (connecting_ || rules_.holds(id_, direction)) {
    return;
  }
  while (!stream.chunks.empty() && !stream.wants_write) {
    Chunk& chunk = stream.chunks.front();
    if (std::max(chunk.due, stream.next_piece) > now) {
      return;
    }
    std::string_view bytes = std::string_view(chunk.bytes).substr(chunk.done);
    if (rules_.piece != 0) {
      bytes = bytes.substr(0, rules_.piece);
    }
    if (armed(stream)) {
      const std::uint64_t room = stream.fault->at - stream.passed;
      if (room == 0) {
        if (strike(stream)) {
          return;
        }
        continue;
      }
      bytes = bytes.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(room, bytes.size())));
    }
    const std::size_t count = send(direction, bytes);
    if (count == 0) {
      return;
    }
    const bool heard = direction == Direction::to_server && !stream.swallowing && !stream.receiver_gone;
    const std::string copy = heard ? std::string(bytes.substr(0, count)) : std::string();
    stream.passed += count;
    stream.buffered -= count;
    chunk.done += count;
    if (chunk.done == chunk.bytes.size()) {
      stream.chunks.pop_front();
    }
    if (rules_.piece != 0) {
      stream.next_piece = now + rules_.gap;
    }
    rules_.counters.bytes_to_server += copy.size();
    tap(direction, copy);  // which may cut this very connection
    if (armed(stream) && stream.passed == stream.fault->at && strike(stream)) {
      return;
    }
  }
  if (stream.chunks.empty() && stream.source_ended && !stream.ended) {
    finish(direction);
  }
}

// Gives how many bytes are off our hands; 0 when the receiver takes none now.
std::size_t ProxyConnection::send(Direction direction, std::string_view bytes) {
  Stream& stream = streams_[direction];
  const int fd = direction == Direction::to_server ? server_ : client_;
  if (stream.swallowing || stream.receiver_gone || fd < 0) {
    return bytes.size();
  }
  const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) {
    return static_cast<std::size_t>(count);
  }
  if (errno == EAGAIN || errno == EINTR) {
    stream.wants_write = true;
    return 0;
  }
  stream.receiver_gone = true;
  return bytes.size();
}

void ProxyConnection::tap(Direction direction, std::string_view bytes) {
  if (!bytes.empty() && rules_.options.tap) {
    rules_.options.tap(id_, direction, bytes);
  }
}

bool ProxyConnection::armed(Stream& stream) noexcept {
  if (stream.fault && *stream.fault->spent) {
    stream.fault.reset();
  }
  return stream.fault.has_value();
}

// The fault of a stream takes effect. True when the connection is gone.
bool ProxyConnection::strike(Stream& stream) {
  const ProxyFault::Kind kind = stream.fault->kind;
  *stream.fault->spent = true;
  stream.fault.reset();
  if (kind == ProxyFault::Kind::swallow) {
    stream.swallowing = true;
    ++rules_.counters.swallowing;
    return false;
  }
  cut();
  return true;
}

void ProxyConnection::disarm() noexcept {
  for (Stream& stream : streams_.values) {
    stream.fault.reset();
  }
}

void ProxyConnection::cut() {
  if (client_ >= 0) {
    ++rules_.counters.cut;
  }
  close_client();
}

// A sender has ended and all it sent has passed.
void ProxyConnection::finish(Direction direction) {
  streams_[direction].ended = true;
  if (direction == Direction::to_client) {
    // A server that has closed takes no more requests either, so the client may as well know at once.
    close_server();
    close_client();
  } else if (streams_[Direction::to_client].receiver_gone) {
    close_client();
  } else if (server_ >= 0) {
    (void)::shutdown(server_, SHUT_WR);
  }
}

// The client is gone: what it sent and was not passed on is lost, the server is told that no more comes.
void ProxyConnection::close_client() {
  if (client_ >= 0) {
    (void)::shutdown(client_, SHUT_RDWR);
    ::close(client_);
    client_ = -1;
  }
  Stream& up = streams_[Direction::to_server];
  Stream& down = streams_[Direction::to_client];
  up.chunks.clear();
  up.buffered = 0;
  up.source_ended = true;
  up.wants_write = false;
  up.ended = true;
  down.receiver_gone = true;
  down.wants_write = false;
  if (connecting_) {
    close_server();
  } else if (server_ >= 0) {
    (void)::shutdown(server_, SHUT_WR);
  }
}

void ProxyConnection::close_server() {
  if (server_ >= 0) {
    ::close(server_);
    server_ = -1;
  }
  connecting_ = false;
  streams_[Direction::to_client].source_ended = true;
  streams_[Direction::to_client].ended = true;
}

}  // namespace echomq::test
