// The dynamic half of the law: while the whole kit runs, MONITOR shows every command of every script, and each key in it
// must have been declared in the EVALSHA before it, or be rooted in a declared base of the same queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "conformance/database.hpp"
#include "conformance/scenario.hpp"
#include "conformance/values.hpp"
#include "echomq/client.hpp"
#include "echomq/testing/private_server.hpp"
#include "law/commands.hpp"
#include "script/registry.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace echomq::conformance {
namespace {

/// One line of MONITOR: whether a script made the call, and the words.
struct Line {
  bool script = false;
  std::vector<std::string> words;
};

/// `1700000000.1 [0 lua] "ZADD" "key" "0" "\x00"`, the escapes as bytes.
std::optional<Line> parse_line(const std::string& text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find("] \"", open);
  if (open == std::string::npos || close == std::string::npos)
    return std::nullopt;
  Line line;
  line.script = text.substr(open, close - open).ends_with(" lua");
  for (std::size_t at = close + 2; at < text.size(); ++at) {
    if (text[at] != '"')
      continue;
    std::string word;
    for (++at; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] != '\\') {
        word += text[at];
        continue;
      }
      const char escape = text[++at];
      if (escape == 'x') {
        word += static_cast<char>(std::stoi(text.substr(at + 1, 2), nullptr, 16));
        at += 2;
      } else {
        word += escape == 'n'   ? '\n'
                : escape == 'r' ? '\r'
                : escape == 't' ? '\t'
                : escape == 'a' ? '\a'
                : escape == 'b' ? '\b'
                                : escape;
      }
    }
    line.words.push_back(std::move(word));
  }
  return line;
}

/// A raw connection that has sent MONITOR; its lines are collected until it is stopped.
class Monitor {
 public:
  explicit Monitor(const std::string& socket_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    good_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
            ::write(fd_, "MONITOR\r\n", 9) == 9 && read_line() == "+OK";
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor() { ::close(fd_); }

  [[nodiscard]] bool good() const { return good_; }
  /// All lines up to the one that has the mark as its second word.
  [[nodiscard]] std::vector<Line> lines_until(const std::string& mark) {
    std::vector<Line> lines;
    for (;;) {
      const std::string text = read_line();
      if (text.empty())
        return lines;
      auto line = parse_line(text.substr(1));
      if (!line)
        continue;
      if (line->words.size() > 1 && line->words[1] == mark)
        return lines;
      lines.push_back(*std::move(line));
    }
  }

 private:
  [[nodiscard]] std::string read_line() {
    for (;;) {
      if (const std::size_t end = buffer_.find("\r\n"); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 2);
        return line;
      }
      char bytes[65536];
      const ssize_t count = ::read(fd_, bytes, sizeof(bytes));
      if (count <= 0)
        return {};
      buffer_.append(bytes, static_cast<std::size_t>(count));
    }
  }

  int fd_;
  bool good_ = false;
  std::string buffer_;
};

/// What one EVALSHA may touch.
struct Allowed {
  std::string script;
  std::set<std::string> keys;
  std::set<std::string> bases;  ///< `emq:{q}:` of each queue that a key names

  [[nodiscard]] bool covers(const std::string& key) const {
    return keys.contains(key) ||
           std::any_of(bases.begin(), bases.end(), [&](const std::string& base) { return key.starts_with(base); });
  }
};

/// `emq:{q}:` of a key of a queue; empty for others.
std::string base_of(const std::string& key) {
  const std::size_t close = key.find("}:");
  return key.starts_with("emq:{") && close != std::string::npos ? key.substr(0, close + 2) : std::string();
}

Allowed allowed_by(const std::vector<std::string>& evalsha) {
  Allowed allowed;
  for (const script::ScriptSource& one : script::all_scripts()) {
    if (one.sha1 == evalsha[1])
      allowed.script = one.name;
  }
  const std::size_t count = std::stoul(evalsha[2]);
  for (std::size_t i = 3; i < evalsha.size(); ++i) {
    const std::string& word = evalsha[i];
    if (i < 3 + count) {
      allowed.keys.insert(word);
      // The queue of a declared key is that of all keys built from it; a base in ARGV must be one of these.
      if (const std::string base = base_of(word); !base.empty())
        allowed.bases.insert(base);
    }
  }
  return allowed;
}

struct Report {
  std::size_t calls = 0;     ///< of scripts
  std::size_t commands = 0;  ///< by scripts
  std::set<std::string> scripts;
  std::set<std::string> violations;
};

Report check(const std::vector<Line>& lines) {
  Report report;
  Allowed allowed;
  for (const Line& line : lines) {
    if (line.words.empty())
      continue;
    std::string name = line.words[0];
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    if (!line.script) {
      if ((name == "EVALSHA" || name == "EVAL" || name == "EVALSHA_RO") && line.words.size() > 2) {
        allowed = allowed_by(line.words);
        ++report.calls;
        report.scripts.insert(allowed.script);
        if (allowed.bases.size() > 1)
          report.violations.insert(allowed.script + " declares keys of two queues");
      }
      continue;
    }
    ++report.commands;
    const law::Command* command = law::find_command(name);
    if (command == nullptr) {
      report.violations.insert(allowed.script + ": unknown command " + name);
      continue;
    }
    if (command->first == 0)
      continue;
    const std::size_t last = command->last == -1 ? line.words.size() - 1 : static_cast<std::size_t>(command->last);
    for (auto i = static_cast<std::size_t>(command->first); i <= last && i < line.words.size(); ++i) {
      if (!allowed.covers(line.words[i]))
        report.violations.insert(allowed.script + ": " + name + " " + line.words[i]);
    }
  }
  return report;
}

std::string text_of(const std::set<std::string>& list) {
  std::string text;
  for (const std::string& one : list)
    text += one + "\n";
  return text;
}

class DeclaredKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = testing::PrivateServer::start({.engine = testing::Engine::valkey,
                                                  .listen = testing::Listen::unix_socket,
                                                  .arguments = {"--client-output-buffer-limit", "normal 0 0 0"}});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
  }
  /// What scripts did while `work` ran.
  [[nodiscard]] Report watch(const std::function<void()>& work) {
    Monitor monitor(server_->socket_path());
    EXPECT_TRUE(monitor.good());
    std::vector<Line> lines;
    std::thread reader([&] { lines = monitor.lines_until("that-is-all"); });
    work();
    const Client client = connect(server_->url(), {.name = "end", .node_lease = NodeLease::never});
    ask(client, {"ECHO", "that-is-all"});
    reader.join();
    return check(lines);
  }

  std::optional<testing::PrivateServer> server_;
};

TEST_F(DeclaredKeys, EveryKeyOfEveryScriptOfTheKit) {
  std::size_t scenarios = 0;
  const Report report = watch([&] {
    const RunOptions options{.base = "declared", .private_server = true};
    for (const ScenarioSource& source : embedded_scenarios()) {
      const json::value scenario = json::parse(source.text);
      if (obstacle(server_->url(), scenario, options))
        continue;
      EXPECT_EQ(run_scenario(server_->url(), scenario, options), "") << source.path;
      ++scenarios;
    }
  });
  EXPECT_EQ(text_of(report.violations), "");
  EXPECT_GE(scenarios, 60U);
  EXPECT_GE(report.calls, 300U);
  EXPECT_GE(report.commands, 2000U);
  // Two thirds of all scripts: the check has seen what it is for.
  EXPECT_GE(report.scripts.size() * 3, script::all_scripts().size() * 2) << text_of(report.scripts);
}

TEST_F(DeclaredKeys, FindsASeededViolation) {
  const Client client = connect(server_->url(), {.name = "seeder", .node_lease = NodeLease::never});
  const struct {
    const char* text;
    std::vector<std::string> arguments;
    std::size_t violations;
  } seeds[] = {
      {"return redis.call('ZADD', KEYS[1], 0, ARGV[1])", {"1", "emq:{q1}:pending", "JOB"}, 0},
      {"return redis.call('ZADD', ARGV[1] .. 'dead', 0, 'x')", {"1", "emq:{q1}:pending", "emq:{q1}:"}, 0},
      {"return redis.call('ZADD', ARGV[1] .. 'dead', 0, 'x')", {"1", "emq:{q1}:pending", "emq:{q2}:"}, 1},
      {"return redis.call('SET', 'emq:{q2}:wake', ARGV[1])", {"1", "emq:{q1}:pending", "x"}, 1},
      {"return redis.call('DEL', KEYS[1], 'other', 'emq:{q10}:wake')", {"1", "emq:{q1}:pending"}, 2},
      {"return redis.call('GET', '{emq}:version')", {"1", "emq:{q1}:pending"}, 1},
      {"return redis.call('DBSIZE')", {"1", "emq:{q1}:pending"}, 1},
      {"return 1", {"2", "emq:{q1}:pending", "emq:{q2}:pending"}, 1},
  };
  for (const auto& seed : seeds) {
    const Report report = watch([&] {
      std::vector<std::string> command = {"EVAL", seed.text};
      command.insert(command.end(), seed.arguments.begin(), seed.arguments.end());
      ask(client, command);
      ask(client, {"DEL", "emq:{q1}:pending", "emq:{q1}:dead", "emq:{q2}:dead", "emq:{q2}:wake"});
    });
    EXPECT_EQ(report.calls, 1U) << seed.text;
    EXPECT_EQ(report.violations.size(), seed.violations) << seed.text << "\n" << text_of(report.violations);
  }
}

TEST(MonitorLine, IsReadBackAsBytes) {
  const auto line = parse_line(R"(1700000000.000001 [0 lua] "SET" "a\"b\\c" "\x00\n\xff")");
  ASSERT_TRUE(line);
  EXPECT_TRUE(line->script);
  EXPECT_EQ(line->words, (std::vector<std::string>{"SET", "a\"b\\c", std::string("\0\n\xff", 3)}));
  EXPECT_FALSE(parse_line(R"(1700000000.000001 [0 127.0.0.1:5] "SET" "a")")->script);
}

}  // namespace
}  // namespace echomq::conformance
