// A server for histories: private, on its Unix socket, with the scripts of a folder loaded and its clock in a key.
//
// One blocking connection carries raw commands; a step and the look at all keys are one round trip. The scripts read time by one
// expression, `redis.call('TIME')`; here it is replaced by a read of `{emq}:test-clock`, so time moves by a plain HSET.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/testing/private_server.hpp"
#include "echomq/value.hpp"
#include "model/play.hpp"
#include "model/state.hpp"
#include "resp/scanner.hpp"

namespace echomq::model {

/// A defect put into a copy of a script: `text`, which must be there, becomes `replacement`.
struct Fault {
  std::string script;
  std::string text;
  std::string replacement;
};

class Server {
 public:
  /// The scripts are those of `protocol/lua`, or of the folder that ECHOMQ_MODEL_SCRIPTS names. Throws std::runtime_error when
  /// no server starts, a script does not load, or a fault's text is not found.
  explicit Server(const std::vector<Fault>& faults = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] bool has_script(const std::string& name) const { return scripts_.contains(name); }
  /// Empties the server and sets its clock.
  void reset(const State& state);
  /// Plays the calls in order and looks at all keys: replies, one a call, and the keyspace behind the last.
  struct Answer {
    std::vector<Value> replies;
    Keyspace keys;
  };
  [[nodiscard]] Answer ask(const Turn& turn);

 private:
  [[nodiscard]] Value command(const std::vector<std::string>& parts);
  void append(const std::vector<std::string>& parts);
  void append_call(const Call& call);
  void flush();
  [[nodiscard]] Value read();
  [[nodiscard]] std::string load(const std::string& text);

  testing::PrivateServer server_;
  int socket_ = -1;
  std::map<std::string, std::string> scripts_{};  // name to SHA1
  std::string dump_{};
  std::string out_{};
  std::string in_{};
  std::size_t at_ = 0;
  resp::Scanner scanner_{};
};

}  // namespace echomq::model
