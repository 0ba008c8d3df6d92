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
    return run_steps(scenario_.at("steps").as_array());
  }

 private:
  [[nodiscard]] std::string run_steps(const json::array& steps) {
    std::size_t index = 0;
    for (const json::value& step : steps) {
      const bool block = step.as_object().contains("steps");
      // What is within a block is bound step by step.
      const json::value bound = block ? step : with_names(step);
      if (std::string mismatch = block ? run_block(step.as_object()) : run_step(bound.as_object()); !mismatch.empty()) {
        return "step " + std::to_string(index) + (block ? ", " : " " + json::serialize(bound) + ": ") + mismatch;
      }
      ++index;
    }
    return {};
  }

  /// `repeat`: the steps so many times. `each`: the steps for every element of a captured list.
  [[nodiscard]] std::string run_block(const json::object& block) {
    const json::array& steps = block.at("steps").as_array();
    const json::object& args = block.at("args").as_object();
    std::string mismatch;
    if (text_of(block.at("call")) == "repeat") {
      const std::int64_t times = integer_of(args.at("times"));
      for (std::int64_t i = 0; i < times && mismatch.empty(); ++i)
        mismatch = run_steps(steps);
      return mismatch;
    }
    const json::value list = lists_.at(text_of(args.at("of")));
    if (!list.is_object())
      return {};  // "empty"
    for (const json::value& element : list.at("ok").as_array()) {
      std::size_t place = 0;
      for (const json::value& name : args.at("as").as_array())
        bound_[text_of(name)] = text_of(element.at(place++));
      if (mismatch = run_steps(steps); !mismatch.empty())
        return mismatch;
    }
    return {};
  }

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
    if (const json::value* capture = step.if_contains("capture")) {
      if (result.is_string() || result.is_number()) {
        bound_[text_of(*capture)] = text_of(result);
      }
      lists_[text_of(*capture)] = result;
    }
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
  std::map<std::string, json::value> lists_;  // captured results
};

}  // namespace

std::string run_scenario(const std::string& url, const json::value& scenario) { return Scenario(url, scenario).run(); }

std::optional<std::string> unmet_need(const std::string& url, const json::value& scenario) {
  const json::value* needs = scenario.as_object().if_contains("needs");
  if (needs == nullptr)
    return std::nullopt;
  for (const json::value& need : needs->as_array()) {
    // The other needs are this driver's own, and met.
    if (text_of(need) == "hash_field_ttl" && !has_command(connect(url, {.name = "needs"}), "HPEXPIRE"))
      return text_of(need);
  }
  return std::nullopt;
}

std::vector<std::string> calls_of(const json::value& scenario) {
  std::vector<std::string> calls;
  for (const json::value& step : scenario.at("steps").as_array()) {
    calls.push_back(text_of(step.at("call")));
    if (step.as_object().contains("steps")) {
      for (std::string& call : calls_of(step))
        calls.push_back(std::move(call));
    }
  }
  return calls;
}

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
