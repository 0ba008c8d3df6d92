// The connection, the loading of scripts with faults and the test clock, and the look at all keys.
#include "model/server.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "resp/encode.hpp"
#include "resp/view.hpp"

namespace echomq::model {
namespace {

constexpr std::string_view kClock = "redis.call('TIME')";
constexpr std::string_view kTestClock = "redis.call('HMGET', '{emq}:test-clock', 's', 'us')";

// Every key with its type's letter and all it holds, in one flat array a key: key, letter, content...
constexpr const char* kDump = R"(
local found = {}
for _, key in ipairs(redis.call('KEYS', 'emq:*')) do
  local kind = redis.call('TYPE', key).ok
  local content
  if kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then content = redis.call('SMEMBERS', key)
  else content = {redis.call('GET', key)} end
  found[#found + 1] = {key, kind, content}
end
return found
)";

testing::PrivateServer started() {
  testing::PrivateServerOptions options;
  options.listen = testing::Listen::unix_socket;
  auto server = testing::PrivateServer::start(options);
  if (!server)
    throw std::runtime_error("no server: " + server.error().message());
  return std::move(*server);
}

int connected(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw std::runtime_error("the socket's path is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error(std::string("no connection: ") + std::strerror(errno));
  return socket;
}

/// Every occurrence; how many there were.
int replace(std::string& text, std::string_view from, std::string_view to) {
  int count = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
    ++count;
  }
  return count;
}

std::vector<std::string> content_of(const Value& kind, const Value& content) {
  std::vector<std::string> items;
  for (const Value& item : content.items())
    items.emplace_back(item.as_text().value_or(""));
  const std::string_view type = kind.as_text().value_or("");
  std::vector<std::string> made{type == "set" ? "S" : std::string(type.substr(0, 1))};
  if (type == "hash") {
    std::map<std::string, std::string> fields;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      fields.emplace(items[i], items[i + 1]);
    for (auto& [field, value] : fields) {
      made.push_back(field);
      made.push_back(value);
    }
    return made;
  }
  if (type == "set")
    std::ranges::sort(items);
  made.insert(made.end(), items.begin(), items.end());
  return made;
}

}  // namespace

Server::Server(const std::vector<Fault>& faults) : server_(started()), socket_(connected(server_.socket_path())) {
  const char* const named = std::getenv("ECHOMQ_MODEL_SCRIPTS");
  const std::string folder = named != nullptr ? named : ECHOMQ_PROTOCOL_DIR "/lua";
  std::set<std::string> unseeded;
  for (const Fault& fault : faults)
    unseeded.insert(fault.script + ": " + fault.text);
  for (const char* const part : {"/canonical", "/extension"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder + part)) {
      if (entry.path().extension() != ".lua")
        continue;
      std::stringstream read;
      read << std::ifstream(entry.path()).rdbuf();
      std::string text = read.str();
      const std::string name = entry.path().stem().string();
      for (const Fault& fault : faults) {
        if (fault.script == name && replace(text, fault.text, fault.replacement) > 0)
          unseeded.erase(fault.script + ": " + fault.text);
      }
      replace(text, kClock, kTestClock);
      scripts_.emplace(name, load(text));
    }
  }
  if (!unseeded.empty())
    throw std::runtime_error("a fault's text is not in its script: " + *unseeded.begin());
  dump_ = load(kDump);
}

Server::~Server() { ::close(socket_); }

std::string Server::load(const std::string& text) {
  const Value sha = command({"SCRIPT", "LOAD", text});
  if (!sha.is_text())
    throw std::runtime_error("a script does not load: " + sha.to_string());
  return std::string(*sha.as_text());
}

void Server::reset(const State& state) {
  append({"FLUSHALL"});
  append({"HSET", "{emq}:test-clock", "s", std::to_string(state.micros / 1'000'000), "us",
          std::to_string(state.micros % 1'000'000)});
  flush();
  for (int reply = 0; reply < 2; ++reply) {
    if (const Value value = read(); value.is_error())
      throw std::runtime_error(value.to_string());
  }
}

Server::Answer Server::ask(const Turn& turn) {
  Answer answer;
  const bool repeated = !turn.empty() && turn.front().until_zero;
  for (const Call& call : turn)
    append_call(call);
  if (repeated) {
    Value reply = Value::integer(1);
    for (int call = 0; reply == Value::integer(1) && call < 100; ++call) {
      if (call > 0)
        append_call(turn.front());
      flush();
      reply = read();
    }
    answer.replies.push_back(std::move(reply));
  }
  append({"EVALSHA", dump_, "0"});
  flush();
  if (!repeated) {
    for (std::size_t call = 0; call < turn.size(); ++call)
      answer.replies.push_back(read());
  }
  const Value keys = read();
  if (!keys.is_aggregate())
    throw std::runtime_error("no look at the keys: " + keys.to_string());
  for (const Value& key : keys.items())
    answer.keys.emplace(key[0].as_text().value_or(""), content_of(key[1], key[2]));
  return answer;
}

Value Server::command(const std::vector<std::string>& parts) {
  append(parts);
  flush();
  return read();
}

void Server::append(const std::vector<std::string>& parts) {
  resp::CommandWriter writer(out_);
  writer.begin(parts.size());
  for (const std::string& part : parts)
    writer.part(part);
}

void Server::append_call(const Call& call) {
  if (call.script.empty()) {
    append(call.args);
    return;
  }
  resp::CommandWriter writer(out_);
  writer.begin(3 + call.keys.size() + call.args.size());
  writer.part("EVALSHA").part(scripts_.at(call.script)).part(call.keys.size());
  for (const std::string& key : call.keys)
    writer.part(key);
  for (const std::string& arg : call.args)
    writer.part(arg);
}

void Server::flush() {
  for (std::size_t sent = 0; sent < out_.size();) {
    const ssize_t count = ::send(socket_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (count <= 0)
      throw std::runtime_error("the server is gone");
    sent += static_cast<std::size_t>(count);
  }
  out_.clear();
}

Value Server::read() {
  char chunk[1 << 16];
  while (true) {
    const auto step = scanner_.scan(in_.data() + at_, in_.size() - at_);
    if (step == resp::Step::frame) {
      Value value = resp::to_value(resp::View(in_.data() + at_, scanner_.frame_size()));
      at_ += scanner_.frame_size();
      if (at_ == in_.size()) {
        in_.clear();
        at_ = 0;
      }
      return value;
    }
    if (step == resp::Step::error)
      throw std::runtime_error(std::string(scanner_.error()));
    const ssize_t count = ::recv(socket_, chunk, sizeof chunk, 0);
    if (count <= 0)
      throw std::runtime_error("the server is gone");
    in_.append(chunk, static_cast<std::size_t>(count));
  }
}

}  // namespace echomq::model
