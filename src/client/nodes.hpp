// The servers behind a client one by one, for what concerns the keyspace of each: SCAN, DBSIZE, FLUSHALL.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "echomq/client.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// The nodes as they are when it is made: those of a cluster that serve slots, or the one server.
class Nodes {
 public:
  explicit Nodes(const Client& client);
  [[nodiscard]] std::size_t size() const noexcept { return links_.size(); }
  /// One command to one of them, wherever its keys belong.
  [[nodiscard]] Reply<Value> command(std::size_t node, CommandParts parts) const;

 private:
  std::shared_ptr<Core> core_;
  std::vector<std::shared_ptr<wire::Link>> links_;
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
