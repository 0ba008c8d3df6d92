// A core without a server: it keeps what it is asked to send, and a test answers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "echomq/queue.hpp"
#include "queue/arguments.hpp"
#include "queue/state.hpp"

namespace echomq::test {

class FakeCore final : public client::Core {
 public:
  struct Sent {
    std::vector<std::string> parts;
    Repeat repeat = Repeat::unsafe;
    std::string script;
    bool never_refused = false;
  };

  ~FakeCore() override {
    while (!waiting_.empty())
      refuse(Error(Errc::client_closed, "the test ended"));
  }

  void submit(detail::Call* call, wire::CallSettings settings) override {
    call->source = &link_;
    const std::string_view bytes(call->request, call->request_size);
    std::size_t count = 0;
    std::from_chars(bytes.data() + 1, bytes.data() + bytes.size(), count);
    Sent sent{.repeat = settings.repeat,
              .script = call->script ? std::string(call->script->name) : "",
              .never_refused = settings.never_refused};
    for (std::size_t i = 0; i < count; ++i)
      sent.parts.emplace_back(queue::request_part(bytes, i));
    all.push_back(std::move(sent));
    if (settings.deadline)
      call->deadline = detail::Clock::now() + *settings.deadline;
    if (closed_) {
      if (call->win())
        call->fail(Error(Errc::client_closed, "the client is closed"));
      call->release();
      return;
    }
    waiting_.push_back(call);
  }

  /// Answers the oldest call with this RESP frame.
  void answer(std::string_view frame, bool resent = false) {
    detail::Call* call = take();
    call->resent = resent;
    if (call->win())
      call->accept(resp::View(frame));
    call->release();
  }
  /// Fails the oldest call.
  void refuse(Error error) {
    detail::Call* call = take();
    if (call->win())
      call->fail(std::move(error));
    call->release();
  }
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }
  [[nodiscard]] const Sent& last() const { return all.back(); }
  void close() { closed_ = true; }

  Result<BrandedId> mint(std::string_view brand) override {
    if (next_ids.empty())
      return fail(Errc::node_lease_lost, "no lease");
    auto id = BrandedId::encode(brand, next_ids.front());
    next_ids.pop_front();
    return id;
  }
  std::optional<std::uint16_t> node_id() const override { return std::nullopt; }
  std::unique_ptr<client::WakeWatch> watch(std::string, std::function<void()>) override { return nullptr; }
  void post(Continuation continuation) override { continuation(); }
  void log(LogLevel, std::string_view, std::span<const LogField>) override {}
  void count_id_collision() override { ++collisions; }
  const ClientOptions& options() const override { return options_; }
  bool closed() const override { return closed_; }

  std::vector<Sent> all;
  std::deque<std::uint64_t> next_ids;
  int collisions = 0;

 private:
  /// What calls may be cancelled through.
  struct Link final : detail::Source {
    bool drive(bool (*)(void*), void*, detail::Clock::time_point) override { return false; }
    void leave_to_library() noexcept override {}
    void cancel(detail::Call& call) override {
      if (call.win())
        call.fail(Error(Errc::cancelled, "the test cancelled it"));
    }
  };

  [[nodiscard]] detail::Call* take() {
    detail::Call* call = waiting_.front();
    waiting_.pop_front();
    return call;
  }

  Link link_;
  std::deque<detail::Call*> waiting_;
  ClientOptions options_;
  bool closed_ = false;
};

/// A queue `q` over it.
struct FakeQueue {
  std::shared_ptr<FakeCore> core = std::make_shared<FakeCore>();
  Queue queue{std::make_shared<const Queue::State>(QueueName{"q"}, core)};
};

inline constexpr JobId kJobA{"JOB0NgWEfAE00A"};
inline constexpr JobId kJobB{"JOB0NgWEfAE00B"};
inline constexpr LaneId kLane{"PRT0NgWEfAE00X"};

}  // namespace echomq::test
