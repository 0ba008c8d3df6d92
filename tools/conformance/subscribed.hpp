// A connection of the runtime that is subscribed and takes commands too, as some scenarios want it. Handles of the public
// API never share one, so this goes to the wire room below them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/value.hpp"

namespace echomq::conformance {

class SubscribedConnection {
 public:
  /// In a cluster it moves to the node that its first command needs. Throws when it cannot connect or subscribe.
  SubscribedConnection(const std::string& url, std::string_view channel);
  SubscribedConnection(const SubscribedConnection&) = delete;
  SubscribedConnection& operator=(const SubscribedConnection&) = delete;
  ~SubscribedConnection();

  /// A command's reply; throws on an error.
  Value ask(const std::vector<std::string>& command);
  /// The same over a second connection to the same node, where the receivers of a publication are counted.
  Value ask_beside(const std::vector<std::string>& command);
  /// The next message; nothing when none comes in time.
  [[nodiscard]] std::optional<std::string> message(std::chrono::milliseconds within);

 private:
  struct Inside;
  const std::string channel_;
  std::unique_ptr<Inside> inside_;
  std::unique_ptr<Inside> beside_;  ///< to the node of `inside_`, opened when first needed
};

}  // namespace echomq::conformance
