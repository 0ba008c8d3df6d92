// Which connection serves a slot: the seam that Cluster and Sentinel fill later.
#pragma once

#include <cstdint>
#include <memory>

#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

class Topology {
 public:
  virtual ~Topology() = default;
  /// The pipelined connection to the node that serves `slot`.
  [[nodiscard]] virtual const std::shared_ptr<Link>& for_slot(std::uint32_t slot) = 0;
  /// A connection for commands without a key.
  [[nodiscard]] virtual const std::shared_ptr<Link>& any() = 0;
  virtual void close(const Error& why) = 0;
  [[nodiscard]] virtual bool closed() const = 0;
};

/// One server.
class Standalone final : public Topology {
 public:
  explicit Standalone(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  [[nodiscard]] const std::shared_ptr<Link>& for_slot(std::uint32_t) override { return link_; }
  [[nodiscard]] const std::shared_ptr<Link>& any() override { return link_; }
  void close(const Error& why) override { link_->close(why); }
  [[nodiscard]] bool closed() const override { return link_->closed(); }

 private:
  const std::shared_ptr<Link> link_;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
