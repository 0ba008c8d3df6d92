// The second speaker (peer.js) as a child: verbs asked by line, answers as JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "conformance/values.hpp"
#include "interop/node_process.hpp"

namespace echomq::interop {

namespace json = conformance::json;

/// One thread at a time may call.
class NodePeer {
 public:
  explicit NodePeer(const std::string& url) : process_("peer.js", {"--url", url}) {}

  /// Sends a verb and gives its number; `wait` takes the answer.
  std::int64_t start(std::string_view verb, std::string_view queue, json::object args = {}) {
    json::object request{{"n", ++sent_}, {"do", verb}, {"args", std::move(args)}};
    if (!queue.empty())
      request["queue"] = queue;
    process_.write_line(json::serialize(request));
    return sent_;
  }
  /// What the verb answered. Throws when it failed, or when no answer came in time.
  json::value wait(std::int64_t number, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!answers_.contains(number)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      const auto line = process_.read_line(left);
      if (!line)
        throw std::runtime_error("the Node peer gave no answer");
      json::object answer = json::parse(*line).as_object();
      const std::int64_t n = answer.at("n").as_int64();
      answers_[n] = std::move(answer);
    }
    const json::object answer = answers_.extract(number).mapped();
    if (const json::value* failed = answer.if_contains("failed"))
      throw std::runtime_error("the Node peer failed: " + std::string(failed->as_string()));
    return answer.at("result");
  }
  json::value ask(std::string_view verb, std::string_view queue, json::object args = {}) {
    return wait(start(verb, queue, std::move(args)));
  }
  /// A fresh id, minted by the peer.
  std::string mint(std::string_view brand) { return std::string(ask("mint", "", {{"namespace", brand}}).as_string()); }

  /// SIGKILL: what it has claimed stays claimed.
  void kill() { process_.kill(); }

 private:
  NodeProcess process_;
  std::int64_t sent_ = 0;
  std::map<std::int64_t, json::object> answers_;
};

}  // namespace echomq::interop
