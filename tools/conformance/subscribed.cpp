#include "conformance/subscribed.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "echomq/reply.hpp"
#include "resp/view.hpp"
#include "wire/link.hpp"
#include "wire/request.hpp"
#include "wire/url.hpp"

namespace echomq::conformance {

struct SubscribedConnection::Inside final : wire::LinkObserver {
  explicit Inside(wire::Endpoint of) : endpoint(std::move(of)), work(boost::asio::make_work_guard(io)) {
    wire::LinkSettings settings;
    settings.endpoint = endpoint;
    settings.boot.client_name = "subscribed";
    settings.boot.wire_version = "echomq:3.0.0";
    settings.boot.accepted_versions = {"echomq:3.0.0"};
    settings.boot.in_cluster = true;  // the version is the business of the other clients
    settings.subscribes = true;
    settings.parks = true;  // its own thread reads
    link = std::make_shared<wire::Link>(
        io, std::move(settings), counters, [](LogLevel, std::string_view, std::string_view) {}, nullptr, this);
    thread = std::thread([this] { io.run(); });
    link->start();
  }
  ~Inside() {
    link->close(Error(Errc::client_closed, "closed"));
    work.reset();
    thread.join();
  }

  void link_live(std::int64_t) override {}
  void link_lost(const Error&) override {}
  void link_push(const resp::View& frame) override {
    if (frame.at(0).as_text() != "message")
      return;
    const std::lock_guard lock(mutex);
    messages.push_back(frame.at(2).copy_text().value_or(""));
    arrived.notify_all();
  }

  Result<Value> ask(const std::vector<std::string>& command) {
    const std::vector<std::string_view> parts(command.begin(), command.end());
    auto decode = [](const wire::Answer& answer) -> Result<Value> { return resp::to_value(answer.view); };
    auto* call = wire::BoundCall<Value, decltype(decode)>::make(parts, decode);
    call->deadline = echomq::detail::Clock::now() + std::chrono::seconds(5);
    call->retain();
    echomq::detail::CallPointer<echomq::detail::CallOf<Value>> mine(call);
    link->submit(call, false);
    return Reply<Value>(std::move(mine)).get();
  }

  const wire::Endpoint endpoint;
  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  wire::Counters counters;
  std::shared_ptr<wire::Link> link;
  std::thread thread;
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::string> messages;  // guarded by mutex
};

SubscribedConnection::SubscribedConnection(const std::string& url, std::string_view channel)
    : channel_(channel), inside_(std::make_unique<Inside>(wire::parse_url(url).value().endpoint)) {
  ask({"SUBSCRIBE", channel_});
}

SubscribedConnection::~SubscribedConnection() = default;

Value SubscribedConnection::ask(const std::vector<std::string>& command) {
  auto reply = inside_->ask(command);
  if (!reply && reply.error().text.starts_with("MOVED ")) {
    // `MOVED <slot> <host>:<port>`.
    const std::string node = reply.error().text.substr(reply.error().text.rfind(' ') + 1);
    beside_.reset();
    inside_ = std::make_unique<Inside>(wire::parse_url("valkey://" + node).value().endpoint);
    ask({"SUBSCRIBE", channel_});
    return ask(command);
  }
  if (!reply)
    throw std::runtime_error(command.at(0) + ": " + reply.error().message());
  return *std::move(reply);
}

Value SubscribedConnection::ask_beside(const std::vector<std::string>& command) {
  if (!beside_)
    beside_ = std::make_unique<Inside>(inside_->endpoint);
  auto reply = beside_->ask(command);
  if (!reply)
    throw std::runtime_error(command.at(0) + ": " + reply.error().message());
  return *std::move(reply);
}

std::optional<std::string> SubscribedConnection::message(std::chrono::milliseconds within) {
  std::unique_lock lock(inside_->mutex);
  if (!inside_->arrived.wait_for(lock, within, [this] { return !inside_->messages.empty(); }))
    return std::nullopt;
  std::string message = std::move(inside_->messages.front());
  inside_->messages.pop_front();
  return message;
}

}  // namespace echomq::conformance
