// Two servers with the same history: one driven by some scripts, the other by those that are to leave the same, and what they
// leave as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/testing/private_server.hpp"
#include "echomq/value.hpp"

namespace echomq::test {

/// Of the queue of a side.
inline const std::string kBase = "emq:{q}:";

/// A server with one queue, reached by raw commands and script calls.
class Side {
 public:
  Side();
  [[nodiscard]] Queue& queue() { return *queue_; }

  /// A null value when it fails.
  Value raw(const std::vector<std::string>& parts);
  /// A script by name, its keys below the queue's base. A null value when it fails.
  Value call(std::string_view name, const std::vector<std::string>& keys, const std::vector<std::string>& arguments);
  std::string script(std::string_view name, const std::vector<std::string>& keys,
                     const std::vector<std::string>& arguments);
  /// Of the last script; empty when it did not fail.
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::string dump();
  /// Of a sorted set, by their bytes: the order of scores hangs on when a run made them.
  [[nodiscard]] std::vector<std::string> members(const std::string& set);

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Queue> queue_;
  std::string error_;
};

/// Lines of one dump that the other lacks.
[[nodiscard]] std::string difference(const std::string& one_by_one, const std::string& together);

}  // namespace echomq::test
