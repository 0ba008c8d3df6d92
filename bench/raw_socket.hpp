// The floor: a socket, pre-encoded requests, and a reader that only counts replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "resp/scanner.hpp"

namespace echomq_bench {

/// A blocking Unix-socket connection. Ends the program with a message when the server is lost.
class RawSocket {
 public:
  explicit RawSocket(const std::string& path);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  /// One command, one reply as raw bytes.
  std::string round_trip(std::string_view request);
  std::string command(std::span<const std::string_view> parts);
  /// Sends all requests with at most `window` unanswered, and reads their replies.
  void run(std::span<const std::string> requests, std::size_t window);
  /// Reads and throws away what comes, until `shut` from another thread.
  void drain();
  void shut();

 private:
  void send_all(std::string_view bytes);
  /// Reads until `count` more replies have come.
  void read_replies(std::size_t count);

  int fd_ = -1;
  std::string buffer_;
  std::size_t begin_ = 0;  // of the bytes not scanned yet
  std::size_t end_ = 0;
  std::size_t surplus_ = 0;  // replies read ahead of their count
  echomq::resp::Scanner scanner_;
};

[[nodiscard]] std::string encode(std::span<const std::string_view> parts);

/// What the server has burnt and done, from INFO.
struct ServerUse {
  double cpu_seconds = 0;
  double wall_seconds = 0;
};
[[nodiscard]] ServerUse server_use(RawSocket& socket);

}  // namespace echomq_bench
