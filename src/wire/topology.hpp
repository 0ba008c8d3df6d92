// Which connection a call takes: one server, or a cluster (wire/cluster.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

class Topology {
 public:
  virtual ~Topology() = default;
  /// Sends a call to the node that serves its keys; as `Link::submit`.
  virtual void submit(detail::Call* call, bool may_block) = 0;
  /// As `submit`, but at the in-flight bound it goes all the same. Never blocks.
  virtual void submit_past_bound(detail::Call* call) = 0;
  /// The same for a call of the library's own, past the in-flight bound.
  virtual void submit_internal(detail::Call* call) = 0;
  /// What a caller that waits for several calls may drive, and cancel them by.
  [[nodiscard]] virtual detail::Source* source() noexcept = 0;
  /// As `Link::when_ready`, of the fullest connection.
  virtual void when_ready(detail::CallOf<void>* waiter) = 0;
  /// Calls not answered yet.
  [[nodiscard]] virtual std::size_t pending() const = 0;
  /// Whether any connection is open.
  [[nodiscard]] virtual bool live() const = 0;
  /// The connection to each node.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Link>> every_node() = 0;
  virtual void close(const Error& why) = 0;
};

/// One server.
class Standalone final : public Topology {
 public:
  explicit Standalone(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  void submit(detail::Call* call, bool may_block) override { link_->submit(call, may_block); }
  void submit_past_bound(detail::Call* call) override {
    if (link_->try_submit(call) != Link::Taken::accepted)
      link_->submit_internal(call);
  }
  void submit_internal(detail::Call* call) override { link_->submit_internal(call); }
  [[nodiscard]] detail::Source* source() noexcept override { return link_.get(); }
  void when_ready(detail::CallOf<void>* waiter) override { link_->when_ready(waiter); }
  [[nodiscard]] std::size_t pending() const override { return link_->pending(); }
  [[nodiscard]] bool live() const override { return link_->live(); }
  [[nodiscard]] std::vector<std::shared_ptr<Link>> every_node() override { return {link_}; }
  void close(const Error& why) override { link_->close(why); }

 private:
  const std::shared_ptr<Link> link_;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
