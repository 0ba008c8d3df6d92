// The cases of `emq_bench`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "identity/minter.hpp"
#include "measure.hpp"
#include "raw_socket.hpp"

namespace echomq_bench {

/// The server, the library's client, the floor's socket, and a socket that only asks INFO and flushes.
class Bed {
 public:
  explicit Bed(echomq::testing::PrivateServer& server);
  [[nodiscard]] RawSocket& control() { return control_; }
  [[nodiscard]] RawSocket& floor() { return floor_; }
  [[nodiscard]] const echomq::Client& client() const { return *client_; }
  [[nodiscard]] const echomq::Queue& queue() const { return *queue_; }
  [[nodiscard]] echomq::identity::Minter& minter() { return minter_; }
  /// Of the server's socket.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Empties the database; the script cache stays.
  void flush();
  /// Loads a script; gives its digest.
  std::string load(std::string_view script);

 private:
  const std::string path_;
  RawSocket control_;
  RawSocket floor_;
  std::unique_ptr<echomq::Client> client_;
  std::unique_ptr<echomq::Queue> queue_;
  echomq::identity::Minter minter_;
};

[[nodiscard]] std::vector<Case> make_cases(Bed& bed, double scale);

}  // namespace echomq_bench
