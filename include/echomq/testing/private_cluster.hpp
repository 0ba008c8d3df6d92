// A cluster of one's own, for a test or a try-out: three (or more) primaries, without replicas or with, on loopback ports.
//
// It is made of `PrivateServer`s and ends as they do: with its object, or with the process that started it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/testing/private_server.hpp"

namespace echomq {
inline namespace v1 {
namespace testing {

struct PrivateClusterOptions {
  Engine engine = Engine::valkey;
  /// Path of the server program; empty: `valkey-server` or `redis-server` of the PATH.
  std::string binary{};
  /// How many nodes share the slots, in equal ranges in order. At least 1.
  std::size_t nodes = 3;
  /// Of each primary. A primary that is killed is replaced by one of its own, when at least two others are left.
  std::size_t replicas = 0;
  AppendOnly append_only = AppendOnly::none;
  /// Further command line arguments of every node, such as {"--cluster-require-full-coverage", "no"}.
  std::vector<std::string> arguments{};
  /// How long `start` and `wait_ready` wait until every node says that the cluster is well. A fresh primary waits two
  /// seconds before it says so.
  std::chrono::milliseconds start_timeout{30'000};
};

/// A running cluster. Movable. Not thread-safe: one thread at a time may call, any number of clients may connect.
class PrivateCluster {
 public:
  /// Starts the nodes, joins them, and returns once each of them knows all others and serves.
  ///
  /// Errors: those of `PrivateServer::start`; `server_error` with the text of a node that refuses to join; `timeout`.
  [[nodiscard]] static Result<PrivateCluster> start(PrivateClusterOptions options = {});

  PrivateCluster(PrivateCluster&&) noexcept;
  PrivateCluster& operator=(PrivateCluster&&) noexcept;
  PrivateCluster(const PrivateCluster&) = delete;
  PrivateCluster& operator=(const PrivateCluster&) = delete;
  /// Kills the nodes and removes their folders.
  ~PrivateCluster();

  /// "valkey+cluster://127.0.0.1:<port>,127.0.0.1:<port>,..." with all nodes.
  [[nodiscard]] std::string url() const;
  /// How many primaries it was started with.
  [[nodiscard]] std::size_t size() const noexcept;
  /// The `nth` replica of a primary, as a node: primaries come first.
  [[nodiscard]] std::size_t replica_of(std::size_t primary, std::size_t nth = 0) const noexcept;
  /// One node, to be stopped, killed, paused, restarted. It keeps its slots and its address.
  [[nodiscard]] PrivateServer& node(std::size_t index) noexcept;
  /// The node that serves the slot, as far as this object made it so.
  [[nodiscard]] std::size_t owner_of(std::uint16_t slot) const noexcept;

  /// Waits until every node says that the cluster is well, as after a restart of one. Errors: timeout.
  [[nodiscard]] Result<void> wait_ready();
  /// Gives an empty slot to another node, and tells all nodes. Errors: server_error (the slot has keys), unreachable.
  [[nodiscard]] Result<void> move_slot(std::uint16_t slot, std::size_t to);
  /// One command of plain words to one node, past every client; gives a status, text or number as text. Errors:
  /// server_error with the node's text, unreachable.
  [[nodiscard]] Result<std::string> ask(std::size_t index, const std::vector<std::string>& words) const;

 private:
  struct State;
  explicit PrivateCluster(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace testing
}  // namespace v1
}  // namespace echomq
