#include "conformance/scenario.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "conformance/database.hpp"
#include "conformance/verbs.hpp"
#include "echomq/client.hpp"

namespace echomq::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// The second connection: what its subscriptions receive.
struct Messages {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::string> waiting;  // guarded by mutex

  [[nodiscard]] std::optional<std::string> next(milliseconds within) {
    std::unique_lock lock(mutex);
    if (!arrived.wait_for(lock, within, [&] { return !waiting.empty(); }))
      return std::nullopt;
    std::string message = std::move(waiting.front());
    waiting.pop_front();
    return message;
  }
};

class Scenario {
 public:
  Scenario(const std::string& url, const json::value& scenario)
      : scenario_(scenario), clients_{connect(url, {.name = "first"}), connect(url, {.name = "second"})} {
    bound_["q"] = "conf." + text_of(scenario.at("name"));
  }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;
  ~Scenario() {
    const Value keys = ask(clients_[0], {"KEYS", "emq:{" + bound_["q"] + "}:*"});
    for (const Value& key : keys.items())
      ask(clients_[0], {"DEL", std::string(key.as_text().value())});
  }

  [[nodiscard]] std::string run() {
    std::size_t index = 0;
    for (const json::value& step : scenario_.at("steps").as_array()) {
      const json::value bound = with_names(step);
      if (std::string mismatch = run_step(bound.as_object()); !mismatch.empty()) {
        return "step " + std::to_string(index) + " " + json::serialize(bound) + ": " + mismatch;
      }
      ++index;
    }
    return {};
  }

 private:
  /// The value with every `${name}` replaced, also in the names of fields.
  [[nodiscard]] std::string with_names(std::string text) const {
    for (const auto& [name, value] : bound_) {
      const std::string mark = "${" + name + "}";
      for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + value.size())) {
        text.replace(at, mark.size(), value);
      }
    }
    return text;
  }
  [[nodiscard]] json::value with_names(const json::value& value) const {
    if (const json::string* text = value.if_string())
      return json::string(with_names(std::string(*text)));
    if (const json::array* list = value.if_array()) {
      json::array out;
      for (const json::value& item : *list)
        out.push_back(with_names(item));
      return out;
    }
    if (const json::object* object = value.if_object()) {
      json::object out;
      for (const auto& [key, item] : *object)
        out[with_names(std::string(key))] = with_names(item);
      return out;
    }
    return value;
  }

  [[nodiscard]] std::string run_step(const json::object& step) {
    const std::string call = text_of(step.at("call"));
    const json::object& args = step.at("args").as_object();
    const json::value* client_number = step.if_contains("client");
    const Client& client = clients_[client_number != nullptr ? client_number->to_number<std::size_t>() : 0];
    const auto span = [&](std::string_view name) { return milliseconds(integer_of(args.at(name))); };

    json::value result;
    if (call == "mint") {
      const auto id = client.mint(text_of(args.at("namespace")));
      if (!id)
        return id.error().message();
      bound_[text_of(args.at("as"))] = std::string(id->text());
      return {};
    }
    if (call == "wait") {
      std::this_thread::sleep_for(span("ms"));
      return {};
    }
    if (call == "subscribe")
      return subscribe(text_of(args.at("channel")));
    if (call == "message")
      return message(args, span("within_ms"));
    if (call == "reconnect")
      return reconnect(span("within_ms"));
    if (call == "raw") {
      std::vector<std::string> command;
      for (const json::value& part : args.at("command").as_array())
        command.push_back(text_of(part));
      result = to_json(ask(client, command));
    } else if (auto pure = make_pure_call(call, args)) {
      result = *std::move(pure);
    } else {
      result = make_call(client, call, text_of(step.at("queue")), args).result;
    }
    for (const char* name : {"result", "reply"}) {
      const json::value* expected = step.if_contains(name);
      if (expected != nullptr && !matches(*expected, result))
        return "got " + json::serialize(result);
    }
    if (const json::value* capture = step.if_contains("capture"))
      bound_[text_of(*capture)] = text_of(result);
    return {};
  }

  [[nodiscard]] std::string subscribe(const std::string& channel) {
    SubscriptionHandlers handlers;
    handlers.on_message = [this](std::string_view, std::string_view text) {
      const std::lock_guard lock(messages_.mutex);
      messages_.waiting.emplace_back(text);
      messages_.arrived.notify_all();
    };
    auto subscription = clients_[1].subscribe(channel, handlers).get();
    if (!subscription)
      return subscription.error().message();
    subscription_.emplace(*std::move(subscription));
    return {};
  }

  [[nodiscard]] std::string message(const json::object& args, milliseconds within) {
    const auto text = messages_.next(within);
    if (!text)
      return "no message came";
    if (const json::value* wanted = args.if_contains("text"); wanted != nullptr && text_of(*wanted) != *text) {
      return "the message is " + *text;
    }
    if (const json::value* wanted = args.if_contains("json")) {
      boost::system::error_code failed;
      if (json::parse(*text, failed) != *wanted || failed)
        return "the message is " + *text;
    }
    return {};
  }

  [[nodiscard]] std::string reconnect(milliseconds within) {
    const std::int64_t old = subscription_->connection_id();
    ask(clients_[0], {"CLIENT", "KILL", "ID", std::to_string(old)});
    const auto until = steady_clock::now() + within;
    // First that the old connection is gone, then that the new one is live: the other way round the loss may lie between.
    const auto is_new = [&](std::int64_t connection) { return connection != 0 && connection != old; };
    while (!is_new(subscription_->connection_id()) || !subscription_->live()) {
      if (steady_clock::now() > until)
        return "the subscription did not come back";
      std::this_thread::sleep_for(milliseconds(2));
    }
    return {};
  }

  const json::value& scenario_;
  Messages messages_;  // outlives the subscription
  std::array<Client, 2> clients_;
  std::optional<Subscription> subscription_;
  std::map<std::string, std::string> bound_;
};

}  // namespace

std::string run_scenario(const std::string& url, const json::value& scenario) { return Scenario(url, scenario).run(); }

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(ECHOMQ_PROTOCOL_DIR) / "conformance";
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    if (file.path().extension() == ".json")
      files.push_back(file.path().filename().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace echomq::conformance
