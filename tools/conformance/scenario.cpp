#include "conformance/scenario.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "client/nodes.hpp"
#include "conformance/database.hpp"
#include "conformance/host_state.hpp"
#include "conformance/subscribed.hpp"
#include "conformance/verbs.hpp"
#include "echomq/client.hpp"

namespace echomq::conformance {
namespace {

[[nodiscard]] bool needs(const json::value& scenario, std::string_view what) {
  const json::value* list = scenario.as_object().if_contains("needs");
  if (list == nullptr)
    return false;
  const json::array& all = list->as_array();
  return std::any_of(all.begin(), all.end(), [&](const json::value& one) { return one.as_string() == what; });
}

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

/// The same command on every node of a cluster (a server is one): the last reply, or the first error.
[[nodiscard]] Result<Value> on_each_node(const Client& client, CommandParts command) {
  const client::Nodes nodes(client);
  Result<Value> reply;
  for (std::size_t node = 0; node < nodes.size() && reply; ++node)
    reply = nodes.command(node, command).get();
  return reply;
}

class Scenario {
 public:
  Scenario(const std::string& url, const json::value& scenario, const RunOptions& options)
      : url_(url), scenario_(scenario), clients_{connect(url, {.name = "first"}), connect(url, {.name = "second"})} {
    bound_["q"] = options.base + "." + text_of(scenario.at("name"));
    if (needs(scenario, "private"))
      settings_ = ask(clients_[0], {"CONFIG", "GET", "maxmemory*"});
  }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;
  ~Scenario() {
    try {
      const auto items = settings_.items();
      for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
        ask_each(clients_[0], {"CONFIG", "SET", std::string(items[i].as_text().value()),
                               std::string(items[i + 1].as_text().value())});
      }
      // Queues may have a name that begins with this one's, such as that of a flow's parent.
      remove_keys(clients_[0], "emq:{" + bound_["q"] + "*");
      remove_keys(clients_[0], "ecc:{" + bound_["q"] + "*");
    } catch (const std::exception&) {
      // The server is gone: the steps have said so.
    }
  }

  [[nodiscard]] std::string run() { return run_steps(scenario_.at("steps").as_array()); }

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
    if (call == "together") {
      result = together(args);
    } else if (call == "raw" && subscribed_ && (step.contains("on") || is_publication(args))) {
      std::vector<std::string> command;
      for (const json::value& part : args.at("command").as_array())
        command.push_back(text_of(part));
      result = to_json(step.contains("on") ? subscribed_->ask(command) : subscribed_->ask_beside(command));
    } else if (call == "pipeline") {
      result = pipeline(client, args.at("commands").as_array());
    } else if (auto host = host_.call(call, args)) {
      result = *std::move(host);
    } else {
      result = result_of(client, step);
    }
    // An error that the step does not expect is none of its replies, not even of `any`.
    const json::value* wanted = step.if_contains("reply");
    const bool expects_error = wanted != nullptr && wanted->is_object() && wanted->as_object().contains("error");
    if (call == "raw" && !expects_error && result.is_object() && result.as_object().contains("error"))
      return "got " + json::serialize(result);
    for (const char* name : {"result", "reply"}) {
      const json::value* expected = step.if_contains(name);
      if (expected != nullptr && !matches(*expected, result))
        return "got " + json::serialize(result);
    }
    if (const json::value* capture = step.if_contains("capture"))
      bind(*capture, result);
    return {};
  }

  [[nodiscard]] static bool is_publication(const json::object& args) {
    return text_of(args.at("command").at(0)) == "PUBLISH";
  }

  /// What one call or command answers; used by several threads at once.
  [[nodiscard]] static json::value result_of(const Client& client, const json::object& step) {
    const std::string call = text_of(step.at("call"));
    const json::object& args = step.at("args").as_object();
    if (call == "raw") {
      std::vector<std::string_view> views;
      std::vector<std::string> command;
      for (const json::value& part : args.at("command").as_array())
        command.push_back(text_of(part));
      views.assign(command.begin(), command.end());
      // Configuration and scripts are every node's own.
      const bool each_node = command.at(0) == "SCRIPT" || command.at(0) == "CONFIG";
      const auto reply = each_node ? on_each_node(client, views) : client.command(views).get();
      return reply ? to_json(*reply) : json::object{{"error", reply.error().text}};
    }
    if (auto pure = make_pure_call(call, args))
      return *std::move(pure);
    const json::value* queue = step.if_contains("queue");  // verbs of the cache have none
    return make_call(client, call, queue != nullptr ? text_of(*queue) : std::string(), args).result;
  }

  /// All steps at once, `times` each, from both clients in turns; their results in order.
  [[nodiscard]] json::value together(const json::object& args) {
    const json::value* number = args.if_contains("times");
    const std::size_t times = number != nullptr ? number->to_number<std::size_t>() : 1;
    std::promise<void> start;
    const std::shared_future<void> started = start.get_future().share();
    std::vector<std::future<json::value>> calls;
    for (const json::value& step : args.at("steps").as_array()) {
      for (std::size_t i = 0; i < times; ++i) {
        const Client& client = clients_[calls.size() % clients_.size()];
        calls.push_back(std::async(std::launch::async, [&client, &step, started] {
          started.wait();
          return result_of(client, step.as_object());
        }));
      }
    }
    start.set_value();
    json::array results;
    for (auto& call : calls)
      results.push_back(call.get());
    return results;
  }

  /// The value, or what is in `{"ok": value}`, under that name; of a list each element under its own.
  void bind(const json::value& names, const json::value& result) {
    const json::object* outcome = result.if_object();
    const json::value& value = outcome != nullptr && outcome->contains("ok") ? outcome->at("ok") : result;
    if (!names.is_array()) {
      if (value.is_string() || value.is_number())
        bound_[text_of(names)] = text_of(value);
      lists_[text_of(names)] = result;
      return;
    }
    for (std::size_t i = 0; i < names.as_array().size(); ++i)
      bound_[text_of(names.at(i))] = text_of(value.at(i));
  }

  /// Several commands in one write; their replies as a list.
  [[nodiscard]] static json::value pipeline(const Client& client, const json::array& list) {
    std::vector<std::vector<std::string>> texts;
    for (const json::value& command : list) {
      texts.emplace_back();
      for (const json::value& part : command.as_array())
        texts.back().push_back(text_of(part));
    }
    std::vector<std::vector<std::string_view>> views;
    for (const auto& command : texts)
      views.emplace_back(command.begin(), command.end());
    const std::vector<CommandParts> commands(views.begin(), views.end());
    const auto answers = client.pipeline(commands).get();
    if (!answers)
      return json::object{{"error", answers.error().message()}};
    json::array out;
    for (const Value& answer : *answers)
      out.push_back(to_json(answer));
    return out;
  }

  [[nodiscard]] std::string subscribe(const std::string& channel) {
    const json::array& steps = scenario_.at("steps").as_array();
    if (std::any_of(steps.begin(), steps.end(),
                    [](const json::value& one) { return one.as_object().contains("on"); })) {
      subscribed_.emplace(url_, channel);
      return {};
    }
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
    const auto text = subscribed_ ? subscribed_->message(within) : messages_.next(within);
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
    if (const json::value* wanted = args.if_contains("json_with")) {
      boost::system::error_code failed;
      const json::value got = json::parse(*text, failed);
      for (const auto& [name, value] : wanted->as_object()) {
        const json::value* field = got.is_object() ? got.as_object().if_contains(name) : nullptr;
        if (!field || *field != value)
          return "the message is " + *text;
      }
    }
    return {};
  }

  [[nodiscard]] std::string reconnect(milliseconds within) {
    // Nodes of a cluster count their connections apart: of that number there may be other clients elsewhere.
    const std::int64_t old = subscription_->connection_id();
    const std::uint64_t gaps = subscription_->gaps();
    ask_each(clients_[0], {"CLIENT", "KILL", "TYPE", "pubsub", "ID", std::to_string(old)});
    const auto until = steady_clock::now() + within;
    // First that the loss was repaired, then that it lives: the other way round the loss may lie between.
    while (subscription_->gaps() == gaps || !subscription_->live()) {
      if (steady_clock::now() > until)
        return "the subscription did not come back";
      std::this_thread::sleep_for(milliseconds(2));
    }
    return {};
  }

  const std::string url_;
  const json::value& scenario_;
  Value settings_;     // what CONFIG had of memory before, when the scenario may change it
  Messages messages_;  // outlives the subscription
  std::array<Client, 2> clients_;
  std::optional<Subscription> subscription_;
  std::optional<SubscribedConnection> subscribed_;  ///< instead, where commands go over the subscribed connection
  std::map<std::string, std::string> bound_;
  std::map<std::string, json::value> lists_;  // captured results
  HostState host_;
};

/// The first verb of the steps, inner ones too, that is not there yet.
[[nodiscard]] std::optional<std::string> missing_verb(const json::array& steps) {
  for (const json::value& step : steps) {
    const std::string call = text_of(step.at("call"));
    if (is_missing(call))
      return call;
    const json::value* inner = step.as_object().if_contains("steps");
    if (call == "together")
      inner = &step.at("args").at("steps");
    if (inner == nullptr)
      continue;
    if (auto missing = missing_verb(inner->as_array()))
      return missing;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> obstacle(const std::string& url, const json::value& scenario, const RunOptions& options) {
  if (auto verb = missing_verb(scenario.at("steps").as_array()))
    return "no verb " + *verb;
  const json::value* list = scenario.as_object().if_contains("needs");
  if (list == nullptr)
    return std::nullopt;
  for (const json::value& need : list->as_array()) {
    const std::string what = text_of(need);
    if (what == "subscriber" || what == "second_client")
      continue;
    if (what == "private") {
      if (!options.private_server)
        return "the server is not private";
    } else if (what == "hash_field_ttl") {
      if (!has_command(connect(url, {.name = "needs"}), "HPEXPIRE"))
        return "the server has no HPEXPIRE";
    } else {
      return "this driver has no " + what;
    }
  }
  return std::nullopt;
}

std::string run_scenario(const std::string& url, const json::value& scenario, const RunOptions& options) {
  return Scenario(url, scenario, options).run();
}

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  for (const ScenarioSource& one : embedded_scenarios()) {
    if (!one.own())
      files.emplace_back(one.path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace echomq::conformance
