// One connection of the proxy: two sockets, and what waits to go from the one to the other.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "proxy.hpp"

namespace echomq::test {

/// One of something for each direction.
template <typename T>
struct Both {
  std::array<T, 2> values{};
  [[nodiscard]] T& operator[](Direction direction) noexcept { return values[static_cast<std::size_t>(direction)]; }
  [[nodiscard]] const T& operator[](Direction direction) const noexcept {
    return values[static_cast<std::size_t>(direction)];
  }
};

/// A fault that waits for its byte.
struct ProxyFault {
  enum class Kind : std::uint8_t { cut, swallow };
  Kind kind = Kind::cut;
  std::uint64_t at = 0;         ///< in bytes passed
  std::shared_ptr<bool> spent;  ///< shared by those armed together: the first that strikes takes it
};

/// What holds for all connections.
struct ProxyRules {
  Both<bool> held;
  std::optional<std::uint64_t> only;  ///< the connection that is held; absent: all
  [[nodiscard]] bool holds(std::uint64_t connection, Direction direction) const noexcept {
    return held[direction] && (!only || *only == connection);
  }
  bool refuse = false;
  std::size_t piece = 0;
  std::chrono::microseconds gap{0};
  std::chrono::microseconds delay{0};
  ProxyOptions options;
  ProxyCounters counters;
};

/// Belongs to the proxy's thread.
class ProxyConnection {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes both sockets over; `connecting`: that to the server is not through yet.
  ProxyConnection(ProxyRules& rules, std::uint64_t id, int client, int server, bool connecting) noexcept
      : rules_(rules), id_(id), client_(client), server_(server), connecting_(connecting) {}
  ProxyConnection(const ProxyConnection&) = delete;
  ProxyConnection& operator=(const ProxyConnection&) = delete;
  ~ProxyConnection();

  /// What to poll for; a descriptor is negative where there is nothing to wait for.
  struct Interest {
    int client = -1;
    short client_events = 0;
    int server = -1;
    short server_events = 0;
  };
  [[nodiscard]] Interest interest() const noexcept;
  /// When bytes that wait for their time may pass; `max()` when none do.
  [[nodiscard]] Clock::time_point next_due() const noexcept;

  /// Takes what poll reported.
  void serve(short client_events, short server_events);
  /// Passes on what may pass.
  void pass(Direction direction, Clock::time_point now);
  /// Ends it for the client now.
  void cut();
  void arm(Direction direction, ProxyFault fault) { streams_[direction].fault = std::move(fault); }
  void disarm() noexcept;

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] std::uint64_t passed(Direction direction) const noexcept { return streams_[direction].passed; }
  [[nodiscard]] bool has_client() const noexcept { return client_ >= 0; }
  /// The client is gone, or has said that it sends no more.
  [[nodiscard]] bool left() const noexcept { return client_ < 0 || streams_[Direction::to_server].source_ended; }
  /// Both sides are done with it.
  [[nodiscard]] bool over() const noexcept {
    return streams_[Direction::to_server].ended && streams_[Direction::to_client].ended;
  }

 private:
  struct Chunk {
    Clock::time_point due;
    std::string bytes;
    std::size_t done = 0;
  };
  struct Stream {
    std::deque<Chunk> chunks;
    std::size_t buffered = 0;
    std::uint64_t passed = 0;
    std::optional<ProxyFault> fault;
    bool swallowing = false;
    bool source_ended = false;
    bool ended = false;  // the receiver was told
    bool receiver_gone = false;
    bool wants_write = false;
    Clock::time_point next_piece{};
  };

  void take(Direction direction);
  [[nodiscard]] std::size_t send(Direction direction, std::string_view bytes);
  void tap(Direction direction, std::string_view bytes);
  [[nodiscard]] bool armed(Stream& stream) noexcept;
  [[nodiscard]] bool strike(Stream& stream);
  void finish(Direction direction);
  void close_client();
  void close_server();

  ProxyRules& rules_;
  std::uint64_t id_;
  int client_;
  int server_;
  bool connecting_;
  Both<Stream> streams_;
};

}  // namespace echomq::test
