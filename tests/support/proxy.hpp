// A proxy between clients and a server that can be told to misbehave: hold, cut at an exact byte, swallow, split, delay.
//
// Use it for every test of a broken link, and, by its tap, to write down what the server was asked and what it
// answered, independently of the client. It runs on a thread of its own; all methods are thread-safe and have taken
// effect when they return. It knows nothing of the protocol: offsets are bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace echomq::test {

enum class Direction : std::uint8_t { to_server, to_client };

enum class ProxyListen : std::uint8_t { tcp, unix_socket };

struct ProxyOptions {
  ProxyListen listen = ProxyListen::tcp;
  /// The conversation as the server has it: bytes passed on to it, and bytes that it sent, whether or not the client
  /// got them. Called on the proxy's thread, in order; it may call the proxy.
  std::function<void(std::uint64_t connection, Direction direction, std::string_view bytes)> tap;
  /// The server's side of a connection has ended: its tap says no more.
  std::function<void(std::uint64_t connection)> on_end;
};

/// Counters since the start; `open` and `draining` are of now.
struct ProxyCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t unreachable = 0;  ///< connections closed because the server could not be reached
  std::uint64_t cut = 0;          ///< by `cut` or by a fault
  std::uint64_t swallowing = 0;   ///< connections on which a swallow has begun
  std::uint64_t open = 0;         ///< connections that clients have
  std::uint64_t draining = 0;     ///< gone for the client, not yet closed by the server
  std::uint64_t bytes_to_server = 0;
  std::uint64_t bytes_to_client = 0;
};

/// Cut connections end at once for the client; towards the server they are half-closed, so that it has exactly the
/// bytes that were passed on, and no reset eats them on the way.
class Proxy {
 public:
  /// `upstream`: `valkey://host:port` or `host:port` with a numeric host, or `unix:///path`. It need not be up yet.
  /// Throws `std::system_error` or `std::invalid_argument`.
  explicit Proxy(std::string_view upstream, ProxyOptions options = {});
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy();

  /// Where clients connect: `valkey://127.0.0.1:<port>` or `unix://<path>`.
  [[nodiscard]] const std::string& url() const noexcept;
  /// The TCP port, 0 for a Unix socket.
  [[nodiscard]] std::uint16_t port() const noexcept;

  // Faults on everything, from now on.

  /// Nothing passes any more, in either or one direction; not even the end of a stream. New connections are accepted.
  void hold();
  void hold(Direction direction);
  /// Of one connection, by the number that the tap gives it.
  void hold(Direction direction, std::uint64_t connection);
  void release();
  /// Ends every connection; gives how many there were.
  std::size_t cut();
  /// New connections are reset as soon as they are made; those that exist go on.
  void refuse_new(bool refuse);
  /// Passes on at most `piece` bytes a write, with `gap` between two; 0 turns it off.
  void split(std::size_t piece, std::chrono::microseconds gap = std::chrono::microseconds{20});
  /// Each byte waits so long; order is kept.
  void delay(std::chrono::microseconds time);

  // Faults at a byte. The fault strikes as soon as `bytes` bytes have passed in that direction; with 0, when the first
  // one comes. `_next`: on the next connection accepted, counted from its start. Otherwise: on the connections that
  // exist, each counted from now; the first that gets there takes the fault, the others are spared.

  void cut_after(Direction direction, std::uint64_t bytes);
  void cut_next_after(Direction direction, std::uint64_t bytes);
  /// Everything after those bytes is read and thrown away; the connection stays.
  void swallow_after(Direction direction, std::uint64_t bytes);
  void swallow_next_after(Direction direction, std::uint64_t bytes);
  /// Takes back every fault that has not struck, splitting, delay, refusal and holding.
  void heal();

  [[nodiscard]] ProxyCounters counters() const;
  /// Waits until the server has closed its side of every connection that clients no longer have: whatever it was asked on
  /// them is done. False when `limit` passed first.
  [[nodiscard]] bool wait_drained(std::chrono::milliseconds limit = std::chrono::seconds{10}) const;
  /// Waits until `counters().cut + swallowing` is at least `count`.
  [[nodiscard]] bool wait_struck(std::uint64_t count, std::chrono::milliseconds limit = std::chrono::seconds{10}) const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace echomq::test
