// The client's core as a worker's control thread sees it: the same calls, answered into the worker's own mailbox.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "client/core.hpp"
#include "worker/inbox.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

/// A `Queue` over this core gives replies whose `then` continues in `inbox`. Whoever uses `then` must keep the inbox
/// alive from within the continuation: the calls know it by address only.
class ControlCore : public client::Core {
 public:
  ControlCore(std::shared_ptr<client::Core> inner, std::shared_ptr<Inbox> inbox)
      : inner_(std::move(inner)), inbox_(std::move(inbox)) {}

  void submit(detail::Call* call, wire::CallSettings settings) override {
    // The worker bounds its calls itself: others who fill the client must not cost it its leases.
    settings.never_refused = true;
    // The reply holds a reference of its own, so the call is still there; and nobody but `then` reads the target.
    inner_->submit(call, settings);
    call->default_target = inbox_.get();
  }
  [[nodiscard]] Result<BrandedId> mint(std::string_view brand) override { return inner_->mint(brand); }
  [[nodiscard]] std::optional<std::uint16_t> node_id() const override { return inner_->node_id(); }
  [[nodiscard]] std::unique_ptr<client::WakeWatch> watch(std::string wake_key, std::function<void()> on_wake) override {
    return inner_->watch(std::move(wake_key), std::move(on_wake));
  }
  [[nodiscard]] std::unique_ptr<client::Line> line(std::uint32_t slot) override { return inner_->line(slot); }
  void mint_past(UnixMillis time) override { inner_->mint_past(time); }
  [[nodiscard]] detail::Source* source() noexcept override { return inner_->source(); }
  [[nodiscard]] detail::Target* continuations() noexcept override { return inbox_.get(); }
  void after(std::chrono::milliseconds wait, std::function<void()> function) override {
    inner_->after(wait, std::move(function));
  }
  [[nodiscard]] std::shared_ptr<detail::LateWakes> late_wakes() override { return inner_->late_wakes(); }
  void post(Continuation continuation) override { inbox_->post(continuation); }
  void log(LogLevel level, std::string_view event, std::span<const LogField> fields) override {
    inner_->log(level, event, fields);
  }
  void count_id_collision() override { inner_->count_id_collision(); }
  [[nodiscard]] const ClientOptions& options() const override { return inner_->options(); }
  [[nodiscard]] bool closed() const override { return inner_->closed(); }

 private:
  const std::shared_ptr<client::Core> inner_;
  const std::shared_ptr<Inbox> inbox_;
};

/// The same for the claim of a parked worker, which `watch` sends behind the BLPOP of the wake list; a call's deadline is how
/// long it waits there.
class RidingCore final : public ControlCore {
 public:
  using ControlCore::ControlCore;

  void submit(detail::Call* call, wire::CallSettings settings) override {
    call->default_target = continuations();
    call->repeat = settings.repeat;
    watch->park_with(call, settings.deadline.value_or(options().deadline));
  }

  client::WakeWatch* watch = nullptr;  ///< set before the first call
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
