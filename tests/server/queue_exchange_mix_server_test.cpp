// settle, take and settle_and_take through `exchange`, sweep_lapsed and flow_death_deliver: whole databases after random mixes beside
// those that the canonical verbs leave one by one.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "script/registry.hpp"
#include "server/exchange_fixture.hpp"

namespace echomq::test {
namespace {

using namespace echomq::queue;
using ::testing::HasSubstr;

/// Everything in the database as text, a line a member. Instants (scores beyond 1e12) are told in steps of 1,000 s from
/// now, rounded up: the test's own times are further apart and its runs shorter.
constexpr std::string_view kDump = R"(
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  local lines = {}
  local keys = redis.call('KEYS', 'emq:{q}:*')
  table.sort(keys)
  for _, key in ipairs(keys) do
    local kind = redis.call('TYPE', key).ok
    local own = {}
    if kind == 'string' then
      own[1] = redis.call('GET', key)
    elseif kind == 'hash' then
      local all = redis.call('HGETALL', key)
      for i = 1, #all, 2 do own[#own + 1] = all[i] .. '=' .. all[i + 1] end
      table.sort(own)
    elseif kind == 'list' then
      own = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'set' then
      own = redis.call('SMEMBERS', key)
      table.sort(own)
    elseif kind == 'zset' then
      local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do
        local score = tonumber(all[i + 1])
        own[#own + 1] = all[i] .. '@' .. (score > 1e12 and 'now+' .. math.ceil((score - now) / 1e6) or all[i + 1])
      end
      table.sort(own)
    end
    for _, one in ipairs(own) do lines[#lines + 1] = key .. ' ' .. kind .. ' ' .. one end
    if redis.call('PTTL', key) >= 0 then lines[#lines + 1] = key .. ' expires' end
  end
  return table.concat(lines, '\n')
)";

/// A server with one queue, reached by raw script calls and by `exchange`.
class Side {
 public:
  Side() {
    auto started = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
    EXPECT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    client_.emplace(Client::open(server_->url()).value());
    queue_.emplace(client_->queue("q"));
  }
  [[nodiscard]] Queue& queue() { return *queue_; }

  Value raw(const std::vector<std::string>& parts) {
    const std::vector<std::string_view> views(parts.begin(), parts.end());
    auto reply = client_->command(CommandParts(views)).get();
    if (reply)
      return *std::move(reply);
    return Value();
  }
  /// A script by name, its keys below the queue's base. An error reply is its text.
  std::string script(std::string_view name, const std::vector<std::string>& keys, std::vector<std::string> arguments) {
    const Value reply = call(name, keys, std::move(arguments));
    return reply.to_string();
  }
  Value call(std::string_view name, const std::vector<std::string>& keys, std::vector<std::string> arguments) {
    const script::ScriptSource* source = script::find_script(name);
    std::vector<std::string> parts = {"EVAL", std::string(source->source), std::to_string(keys.size())};
    for (const std::string& key : keys)
      parts.push_back(kP + key);
    parts.insert(parts.end(), arguments.begin(), arguments.end());
    const std::vector<std::string_view> views(parts.begin(), parts.end());
    auto reply = client_->command(CommandParts(views)).get();
    if (!reply) {
      error_ = reply.error().message();
      return Value();
    }
    error_.clear();
    return *std::move(reply);
  }
  /// Of the last script.
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::string dump() {
    const Value reply = raw({"EVAL", std::string(kDump), "0"});
    return std::string(reply.as_text().value_or("(no dump)"));
  }
  [[nodiscard]] std::vector<std::string> members(const std::string& set) {
    std::vector<std::string> ids;
    const Value reply = raw({"ZRANGE", kP + set, "0", "-1"});
    for (const Value& one : reply.items())
      ids.emplace_back(one.as_text().value_or(""));
    return ids;
  }

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
  std::optional<Queue> queue_;
  std::string error_;
};

/// Lines of one text that the other lacks.
std::string difference(const std::string& a, const std::string& b) {
  const auto lines = [](const std::string& text) {
    std::multiset<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      all.insert(line);
    return all;
  };
  const auto left = lines(a);
  const auto right = lines(b);
  std::vector<std::string> only;
  std::set_difference(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(only));
  std::string out = "only one by one:\n";
  for (const std::string& line : only)
    out += "  " + line + "\n";
  only.clear();
  std::set_difference(right.begin(), right.end(), left.begin(), left.end(), std::back_inserter(only));
  out += "only together:\n";
  for (const std::string& line : only)
    out += "  " + line + "\n";
  return out;
}

struct HeldJob {
  std::string id;
  std::uint64_t token = 0;
};

/// The same history on two servers: `one` is driven by the canonical scripts one by one, `all` by `exchange`.
class Twins {
 public:
  explicit Twins(unsigned seed) : random_(seed) {}

  void round() {
    steps_.clear();
    const int admissions = below(12);
    for (int i = 0; i < admissions; ++i)
      admit();
    if (below(3) == 0)
      flow();
    for (int i = below(3); i > 0; --i)
      disturb();
    if (!ceiling_ && below(2) == 0) {  // workers sleep, and few tokens are left: then it counts which wake comes first
      both({"DEL", kP + "wake"});
      for (int i = below(6); i > 0; --i)
        both({"ZADD", kP + "parked", "9000000000000", "w" + std::to_string(i)});
    }
    const bool settle = below(5) != 0;
    const bool take = below(5) != 0;
    std::vector<Settlement> settlements;
    if (settle)
      settlements = choose();
    std::optional<TakeRequest> request;
    if (take)
      request = claim();
    if (settlements.empty() && !request)
      return;
    exchange_both(settlements, request);
  }
  /// Flows, most of all: leases lapse and are swept, and records of deaths are brought.
  void sweep_round() {
    steps_.clear();
    for (int i = below(4); i > 0; --i)
      admit();
    for (int i = 1 + below(3); i > 0; --i)
      flow();
    if (below(4) == 0)
      disturb();
    for (const std::string& id : parents_) {
      const std::optional<std::string> state = one_field(id, "state");
      if (state == "awaiting_children" && below(3) == 0) {  // as one that was reprocessed: it runs beside its children
        both({"HSET", kP + "job:" + id, "state", "pending"});
        both({"ZADD", kP + "pending", "0", id});
      }
      if (state && below(6) == 0)
        both({"HSET", kP + "job:" + id, "cancel", "1"});
    }
    for (int i = 0; i < 2; ++i)
      exchange_both({}, claim());
    if (below(3) != 0)
      sweep_both();
    for (int i = below(4); i > 0; --i)
      deliver_both();
    if (parents_.size() > 30)
      parents_.erase(parents_.begin(), parents_.begin() + 15);
  }
  [[nodiscard]] std::string compare() {
    const std::string a = one_.dump();
    const std::string b = all_.dump();
    if (a == b)
      return {};
    std::string story;
    for (const std::string& step : steps_)
      story += step + "\n";
    return story + difference(a, b);
  }
  std::map<std::string, int> seen;  ///< what has happened, by name

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  template <typename T>
  const T& any(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }
  std::string fresh() {
    std::string digits = std::to_string(next_++);
    // Not always in mint order.
    return std::string("JOB0") + static_cast<char>('A' + below(4)) + std::string(9 - digits.size(), '0') + digits;
  }
  std::string lane() { return std::string("PRT0000000000") + static_cast<char>('A' + below(5)); }
  void both(const std::vector<std::string>& command) {
    const std::string a = one_.raw(command).to_string();
    const std::string b = all_.raw(command).to_string();
    EXPECT_EQ(a, b) << command[0] << " " << (command.size() > 1 ? command[1] : "");
  }
  void both(std::string_view name, const std::vector<std::string>& keys, const std::vector<std::string>& arguments) {
    const std::string a = one_.script(name, keys, arguments);
    const std::string b = all_.script(name, keys, arguments);
    EXPECT_EQ(a, b) << name;
    steps_.push_back(std::string(name) + (arguments.empty() ? "" : " " + arguments[0]));
  }

  void admit() {
    const std::string id = fresh();
    if (below(2) == 0) {
      both("enqueue", {"job:" + id, "pending"}, {id, "p" + id});
    } else {
      const std::string g = lane();
      both("genqueue", {"job:" + id, "g:" + g + ":pending", "ring", "paused", "glimit", "gactive", "wake"},
           {id, "p" + id, g});
    }
    if (below(8) == 0)
      both("add_log", {"job:" + id, "job:" + id + ":logs"}, {"line"});
  }

  /// A parent with a few children in this queue, or a child whose parent is in another one, or a parent that has one.
  void flow() {
    const std::string parent = fresh();
    if (below(4) == 0) {
      both("enqueue_flow_child", {"job:" + parent, "pending"},
           {parent, "x", fresh(), "other", below(2) == 0 ? "fp" : "id"});
      return;
    }
    const int count = 1 + below(3);
    std::vector<std::string> keys = {"job:" + parent, "job:" + parent + ":dependencies", "pending"};
    std::vector<std::string> arguments = {parent, "parent", std::to_string(count)};
    std::vector<std::string> policies;
    for (int i = 0; i < count; ++i) {
      const std::string id = fresh();
      keys.push_back("job:" + id);
      arguments.insert(arguments.end(), {id, "child"});
      policies.push_back(below(2) == 0 ? "fp" : "id");
    }
    arguments.insert(arguments.end(), policies.begin(), policies.end());
    both("enqueue_flow", keys, arguments);
    parents_.push_back(parent);
    if (below(3) == 0)
      both({"HSET", kP + "job:" + parent, "parent", fresh(), "parent_queue", below(2) == 0 ? "other" : ""});
    if (below(4) == 0)  // a parent that runs while a child of its is not done
      both({"EVAL", "redis.call('HSET', KEYS[1], 'state', 'pending') return redis.call('ZADD', KEYS[2], 0, ARGV[1])",
            "2", kP + "job:" + parent, kP + "pending", parent});
    seen["flow"]++;
  }

  /// What happens beside workers: operators, lost leases, members and rows that do not fit.
  void disturb() {
    const std::string g = lane();
    switch (below(20)) {
      case 0:
        both("glimit", {"glimit", "gactive", "ring", "paused", "wake"}, {kP, g, std::to_string(1 + below(4))});
        break;
      case 1: both("gweight", {"gweight"}, {g, std::to_string(1 + below(5))}); break;
      case 2: both("gpause", {"paused", "ring"}, {g}); break;
      // As an operator does by hand: the ring learns of it at the next settle.
      case 3: both({"SREM", kP + "paused", g}); break;
      case 4:
      case 5: {  // leases lapse
        const auto active = one_.members("active");
        for (const std::string& id : active) {
          if (below(3) == 0)
            both({"ZADD", kP + "active", "XX", "1", id});
        }
        both("reap", {"active", "pending"}, {kP});
        seen["reap"]++;
        break;
      }
      case 6: {
        const auto active = one_.members("active");
        for (const std::string& id : active) {
          if (below(3) == 0)
            both({"ZADD", kP + "active", "XX", "1", id});
        }
        both("sweep_stalled", {"active", "pending", "dead"}, {kP, "3", "100"});
        seen["sweep"]++;
        break;
      }
      case 7: {  // what is scheduled is due
        for (const std::string& id : one_.members("schedule")) {
          if (below(2) == 0)
            both({"ZADD", kP + "schedule", "XX", "1", id});
        }
        both("promote", {"schedule", "pending"}, {kP, "100"});
        break;
      }
      case 8: both({"ZADD", kP + (below(2) == 0 ? "pending" : "g:" + g + ":pending"), "0", fresh()}); break;  // ghosts
      case 9: {  // members that are at home elsewhere
        const auto active = one_.members("active");
        if (!active.empty())
          both({"ZADD", kP + (below(2) == 0 ? "pending" : "g:" + g + ":pending"), "0", any(active)});
        break;
      }
      case 10:
        if (!held_.empty())
          both({"DEL", kP + "job:" + any(held_).id});
        break;
      case 11: both({"HSET", kP + "gactive", g, below(2) == 0 ? "no number" : std::to_string(below(6))}); break;
      case 12:
        both(!ceiling_ && below(2) == 0
                 ? std::vector<std::string>{"ZADD", kP + "parked", "9000000000000", "w" + std::to_string(below(4))}
                 : std::vector<std::string>{"DEL", kP + "parked", kP + "wake"});
        break;
      case 13: {
        const auto dead = one_.members("dead");
        if (!dead.empty()) {
          const std::string id = any(dead);
          both("reprocess", {"job:" + id, "dead", "pending"}, {id});
        }
        break;
      }
      case 14: {  // a long ring, of lanes that have a job each
        for (int i = 0; i < 70; ++i)
          both({"RPUSH", kP + "ring", "PRT00000000" + std::to_string(100 + i)});
        break;
      }
      case 15:
        both(below(3) == 0 ? std::vector<std::string>{"HSET", kP + "meta", "paused", "1"}
                           : std::vector<std::string>{"HDEL", kP + "meta", "paused"});
        break;
      case 16:  // no worker sleeps meanwhile: the canonical settles push no hint for a slot
        ceiling_ = below(2) == 0;
        both({"DEL", kP + "parked", kP + "wake"});
        both(ceiling_ ? std::vector<std::string>{"HSET", kP + "meta", "concurrency", std::to_string(1 + below(12))}
                      : std::vector<std::string>{"HDEL", kP + "meta", "concurrency"});
        break;
      case 17:
        switch (below(3)) {
          case 0: both({"HSET", kP + "meta", "max", std::to_string(1 + below(10)), "duration", kWindow}); break;
          case 1:  // counted by the operator
            both({"HDEL", kP + "meta", "duration"});
            both({"HSET", kP + "meta", "max", std::to_string(1 + below(10))});
            both({"SET", kP + "limiter", std::to_string(below(8)), "PX", kWindow});
            break;
          default:
            both({"HDEL", kP + "meta", "max", "duration"});
            both({"DEL", kP + "limiter"});
            break;
        }
        break;
      case 18:
      case 19: own_fields(); break;
      default: break;
    }
  }

  /// How some jobs are run, as their rows say it.
  void own_fields() {
    std::vector<std::string> ids = one_.members("pending");
    for (const HeldJob& job : held_)
      ids.push_back(job.id);
    for (const std::string& id : ids) {
      const std::string row = kP + "job:" + id;
      if (below(3) != 0 || one_.raw({"EXISTS", row}).as_integer() != 1)
        continue;
      switch (below(4)) {
        case 0: both({"HSET", row, "keep", "900000"}); break;
        case 1: both({"HSET", row, "max_attempts", std::to_string(1 + below(3))}); break;
        case 2: both({"HSET", row, "cancel", "1"}); break;
        default:  // what waits in the flat set, and is nobody's child: `claim_one` knows what becomes of those
          if (one_field(id, "state") == "pending" && !one_field(id, "group") && !one_field(id, "parent"))
            both({"HSET", row, "expires_at", "1000"});
          break;
      }
    }
  }
  std::optional<std::string> one_field(const std::string& id, const std::string& name) {
    const Value value = one_.raw({"HGET", kP + "job:" + id, name});
    const auto text = value.as_text();
    return text ? std::optional<std::string>(*text) : std::nullopt;
  }
  std::int64_t one_number(const std::string& key, const std::string& name) {
    const Value value = one_.raw({"HGET", kP + key, name});
    return value.as_text() ? std::stoll(std::string(*value.as_text())) : 0;
  }
  /// What the row's `keep` asks for once the job has ended.
  void keep_one(const std::string& id, const std::optional<std::string>& keep, const std::string& ended) {
    if (!keep)
      return;
    one_.raw({"SET", kP + "result:" + id, ended, "PX", *keep});
    seen["kept"]++;
  }

  std::vector<Settlement> choose() {
    std::vector<Settlement> out;
    std::shuffle(held_.begin(), held_.end(), random_);
    std::size_t count = held_.empty() ? 0 : static_cast<std::size_t>(below(static_cast<int>(held_.size()) + 1));
    texts_.clear();
    texts_.reserve(3 * held_.size() + 8);
    std::vector<HeldJob> chosen(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    // Now and then: a settlement twice in one call, one with a wrong token, one of a job that never was.
    if (!chosen.empty() && below(3) == 0)
      chosen.insert(chosen.begin() + below(static_cast<int>(chosen.size())), any(chosen));
    if (!chosen.empty() && below(3) == 0)
      chosen.push_back({any(chosen).id, any(chosen).token + 1 - static_cast<std::uint64_t>(2 * below(2))});
    if (!past_.empty() && below(2) == 0)
      chosen.push_back(any(past_));
    if (below(6) == 0)
      chosen.push_back({fresh(), 1});
    for (const HeldJob& job : chosen) {
      past_.push_back(job);
      Settlement one{.id = JobId(*BrandedId::parse(job.id)), .token = Token(job.token)};
      one.kind = any<SettleKind>({SettleKind::done, SettleKind::done, SettleKind::retry, SettleKind::dead,
                                  SettleKind::delay, SettleKind::hand_back});
      if (one.kind != SettleKind::done || below(2) == 0)
        one.text = texts_.emplace_back("text of " + job.id);
      // Times that no two settlements share, so that which is due first does not hang on the milliseconds of a run.
      one.wait = Milliseconds(1'000'000LL * (1000 + (7919LL * next_wait_++) % 100003));
      one.max_attempts = static_cast<std::uint32_t>(1 + below(3));
      out.push_back(one);
    }
    if (past_.size() > 40)
      past_.erase(past_.begin(), past_.begin() + 20);
    return out;
  }

  TakeRequest claim() {
    TakeRequest request;
    request.most = static_cast<std::uint32_t>(1 + below(14));
    request.lease = Milliseconds(5'000'000'000LL);
    const int which = below(6);
    request.lanes = which != 0;
    request.flat = which != 1;
    request.lanes_first = below(2) == 0;
    request.find_parents = true;
    return request;
  }

  /// The parent of this queue that lives and would die of a child.
  std::optional<std::string> one_living_parent(const std::string& child) {
    const std::optional<std::string> parent = one_field(child, "parent");
    const std::string queue = one_field(child, "parent_queue").value_or("");
    if (!parent || (!queue.empty() && queue != "q") || one_field(*parent, "state").value_or("dead") == "dead")
      return std::nullopt;
    return parent;
  }
  /// Jobs by their rows' states.
  std::map<std::string, std::string> one_states() {
    std::map<std::string, std::string> states;
    const Value reply = one_.raw({"EVAL", R"(
      local out = {}
      for _, key in ipairs(redis.call('KEYS', 'emq:{q}:job:??????????????')) do
        out[#out + 1] = string.sub(key, -14)
        out[#out + 1] = redis.call('HGET', key, 'state') or ''
      end
      return out)",
                                  "0"});
    for (std::size_t i = 0; i + 1 < reply.size(); i += 2)
      states[std::string(reply[i].as_text().value_or(""))] = reply[i + 1].as_text().value_or("");
    return states;
  }
  static std::vector<std::string> texts(const Value& list) {
    std::vector<std::string> out;
    for (const Value& one : list.items())
      out.emplace_back(one.as_text().value_or(""));
    return out;
  }

  /// One side by `sweep_stalled`, the other by `sweep_lapsed`: who died is found by looking at all rows before and after.
  void sweep_both() {
    for (const std::string& id : one_.members("active")) {
      if (below(3) == 0)
        continue;
      both({"ZADD", kP + "active", "XX", "1", id});
      if (!one_field(id, "parent") || below(2) == 0)
        continue;
      for (const char* field : {"attempts", "stalled"})  // a child that has lost more leases than its parent
        both({"HINCRBY", kP + "job:" + id, field, "5"});
    }
    const auto before = one_states();
    const std::vector<std::string> arguments = {kP, std::to_string(1 + below(3)), std::to_string(1 + below(20))};
    const std::vector<std::string> keys = {"active", "pending", "dead"};
    const Value said = one_.call("sweep_stalled", keys, arguments);
    ASSERT_EQ(one_.error(), "");
    const Value named = all_.call("sweep_lapsed", keys, arguments);
    ASSERT_EQ(all_.error(), "");
    ASSERT_EQ(said.size(), 2U);
    ASSERT_EQ(named.size(), 3U);
    EXPECT_EQ(texts(named[0]), texts(said[0]));
    EXPECT_EQ(texts(named[1]), texts(said[1]));
    const auto recovered = texts(said[0]);
    const auto died = texts(said[1]);
    std::vector<std::string> fallen = texts(named[2]);
    steps_.push_back("sweep: " + std::to_string(recovered.size()) + ", " + std::to_string(died.size()) + ", " +
                     std::to_string(fallen.size()));
    std::vector<std::string> expected;
    for (const auto& [id, state] : one_states()) {
      const auto was = before.find(id);
      if (state == "dead" && was != before.end() && was->second != "dead" && std::ranges::count(died, id) == 0)
        expected.push_back(id);
    }
    for (const std::string& id : died)
      end_mark(id);
    for (const std::string& id : expected) {
      if (one_field(id, "cancel"))
        seen["marked parent"]++;
      end_mark(id);
      seen["fallen by a sweep"]++;
      if (std::ranges::count(recovered, id) > 0)
        seen["recovered and fallen"]++;
      if (one_.raw({"HLEN", kP + "job:" + id + ":failed"}).as_integer().value_or(0) > 1)
        seen["of several"]++;
    }
    std::ranges::sort(fallen);
    EXPECT_EQ(fallen, expected);
  }

  /// One side by `flow_fail_deliver`, the other by `flow_death_deliver`.
  void deliver_both() {
    if (parents_.empty())
      return;
    const std::string& parent = any(parents_);
    const std::string row = "job:" + parent;
    if (children_.size() > 20)
      children_.erase(children_.begin(), children_.begin() + 10);
    if (children_.empty() || below(3) != 0)
      children_.push_back(fresh());
    const std::string& child = any(children_);  // a record may come again
    if (below(10) == 0)
      both({"HSET", kP + row + ":processed", child, "done before"});
    const bool lived = one_field(parent, "state").value_or("dead") != "dead";
    const std::vector<std::string> keys = {row + ":dependencies", row + ":failed", row + ":unsuccessful", row};
    const std::vector<std::string> arguments = {child, "of " + child, below(3) == 0 ? "id" : "fp", kP, parent};
    EXPECT_EQ(one_.call("flow_fail_deliver", keys, arguments).as_integer(), 1);
    const Value named = all_.call("flow_death_deliver", keys, arguments);
    const bool fallen = lived && one_field(parent, "state") == "dead";
    steps_.push_back("deliver " + child + " to " + parent + (fallen ? ": dead" : ""));
    EXPECT_EQ(named.as_integer(), fallen ? 2 : 1);
    seen[fallen ? "fallen by a record" : "a record that kills nobody"]++;
    if (fallen && one_field(parent, "cancel"))
      seen["marked parent"]++;
    if (fallen)
      end_mark(parent);
  }

  /// One settlement by its own script: the verdict.
  Settled settle_one(const Settlement& s) {
    const std::string id(s.id.text());
    const std::optional<std::string> keep = one_field(id, "keep");
    const std::optional<std::string> parent = one_living_parent(id);
    const std::int64_t failed = one_number("metrics:failed", "count");
    const Settled verdict = settle_by_verb(s);
    if (parent && one_field(*parent, "state") == "dead") {
      end_mark(*parent);
      fallen_.push_back(*parent);
      seen["fallen by a settle"]++;
    }
    if (verdict == Settled::completed)
      keep_one(id, keep, "completed" + std::string(1, '\0') + std::string(s.text.value_or(s.id.text())));
    if (verdict == Settled::dead && one_number("metrics:failed", "count") > failed) {
      keep_one(id, keep, "dead" + std::string(1, '\0') + std::string(s.text.value_or("")));
      end_mark(id);
    }
    return verdict;
  }
  /// The extensions take the mark of `cancel` off whom they end as dead; the canonical verbs do not know it.
  void end_mark(const std::string& id) { one_.raw({"HDEL", kP + "job:" + id, "cancel"}); }
  Settled settle_by_verb(const Settlement& s) {
    const std::string id(s.id.text());
    const std::string token = s.token.text();
    const std::string row = "job:" + id;
    const std::string text(s.text.value_or(""));
    const std::string wait = std::to_string(s.wait.count());
    Value reply;
    switch (s.kind) {
      case SettleKind::done: {
        std::vector<std::string> arguments = {id, token, kP};
        if (s.text)
          arguments.insert(arguments.end(), {"", text});
        reply = one_.call("complete", {"active", row}, arguments);
        break;
      }
      case SettleKind::retry: {
        const std::optional<std::string> own = one_field(id, "max_attempts");
        if (own)
          seen["own maximum"]++;
        reply = one_.call("retry", {"active", "schedule", "dead", row},
                          {id, token, wait, own.value_or(std::to_string(s.max_attempts)), text, kP});
        break;
      }
      case SettleKind::dead:
        reply = one_.call("retry", {"active", "schedule", "dead", row}, {id, token, wait, "-1000000", text, kP});
        break;
      case SettleKind::delay:
        reply = one_.call("delay", {row, "active", "schedule"}, {id, token, "in", wait, "count"});
        break;
      case SettleKind::hand_back: reply = one_.call("hand_back", {"active", row}, {id, token, kP}); break;
    }
    if (!one_.error().empty()) {
      EXPECT_THAT(one_.error(), HasSubstr("EMQSTALE"));
      return one_.error().find("gone") != std::string::npos ? Settled::gone : Settled::stale;
    }
    if (reply.as_text() == "scheduled")
      return Settled::scheduled;
    if (reply.as_text() == "dead")
      return Settled::dead;
    if (reply.as_integer() == 0)
      return Settled::gone;
    return s.kind == SettleKind::done    ? Settled::completed
           : s.kind == SettleKind::delay ? Settled::delayed
                                         : Settled::handed_back;
  }

  /// How many of `most` the gates of the queue let through.
  std::size_t gates(std::size_t most) {
    const std::int64_t ceiling = one_number("meta", "concurrency");
    const std::int64_t window = one_number("meta", "max");
    auto allowed = static_cast<std::int64_t>(most);
    const auto at_most = [&](std::int64_t room, const char* gate) {
      if (room < allowed)
        seen[gate]++;
      allowed = std::max<std::int64_t>(0, std::min(allowed, room));
    };
    if (one_.raw({"HEXISTS", kP + "meta", "paused"}).as_integer() == 1)
      at_most(0, "paused");
    if (ceiling > 0)
      at_most(ceiling - static_cast<std::int64_t>(one_.members("active").size()), "ceiling");
    if (window > 0) {
      const Value used = one_.raw({"GET", kP + "limiter"});
      at_most(window - (used.as_text() ? std::stoll(std::string(*used.as_text())) : 0), "window");
    }
    return static_cast<std::size_t>(allowed);
  }
  /// Takes what a claim would not give off the head of the flat set: members without a row or at home elsewhere, and jobs
  /// past their time, which die. The head is a job to be given then, or there is none.
  void clear_head() {
    for (;;) {
      const auto waiting = one_.members("pending");
      if (waiting.empty())
        return;
      const std::string& id = waiting.front();
      const std::optional<std::string> state = one_field(id, "state");
      const std::string home = state == "active" ? "active" : state == "scheduled" ? "schedule" : "dead";
      const bool elsewhere = (state == "active" || state == "scheduled" || state == "dead") &&
                             !one_.raw({"ZSCORE", kP + home, id}).is_null();
      const bool old = one_field(id, "expires_at").has_value();
      if (one_.raw({"EXISTS", kP + "job:" + id}).as_integer() == 1 && !elsewhere && !old)
        return;
      one_.raw({"ZREM", kP + "pending", id});
      if (!old || elsewhere)
        continue;
      one_.raw({"HSET", kP + "job:" + id, "state", "dead", "last_error", "expired"});
      one_.raw({"ZADD", kP + "dead", "0", id});
      one_.raw({"HINCRBY", kP + "metrics:failed", "count", "1"});
      keep_one(id, one_field(id, "keep"), std::string("dead\0expired", 12));
      end_mark(id);
      seen["expired"]++;
    }
  }

  /// The claims of a request, by `bclaim` and `gwclaim`, as far as the gates let them.
  std::vector<HeldJob> claim_one(const TakeRequest& request) {
    std::vector<HeldJob> jobs;
    const std::string lease = std::to_string(request.lease.count());
    const auto add = [&](const Value& reply) {
      EXPECT_EQ(one_.error(), "");
      for (const Value& one : reply.items())
        jobs.push_back({std::string(one[0].as_text().value_or("")), static_cast<std::uint64_t>(*one[2].as_integer())});
      return reply.size();
    };
    const auto flat = [&](std::size_t upto) {
      while (jobs.size() < upto) {
        clear_head();
        if (add(one_.call("bclaim", {"pending", "active"}, {kP + "job:", lease, "1"})) == 0)
          break;
      }
    };
    const auto lanes = [&](std::size_t upto) {
      while (jobs.size() < upto &&
             add(one_.call("gwclaim", {"ring", "active"}, {kP, lease, std::to_string(upto - jobs.size())})) > 0)
        ;
    };
    const std::size_t most = gates(request.most);
    const std::size_t half = request.lanes && request.flat ? (most + 1) / 2 : most;
    if (!request.lanes) {
      flat(most);
    } else if (!request.flat) {
      lanes(most);
    } else if (request.lanes_first) {
      lanes(half);
      flat(most);
      lanes(most);
    } else {
      flat(half);
      lanes(most);
      flat(most);
    }
    if (!jobs.empty() && one_number("meta", "max") > 0 && one_number("meta", "duration") > 0) {
      one_.raw({"INCRBY", kP + "limiter", std::to_string(jobs.size())});
      if (one_.raw({"PTTL", kP + "limiter"}).as_integer().value_or(-1) < 0)
        one_.raw({"PEXPIRE", kP + "limiter", kWindow});
      seen["charged"]++;
    }
    return jobs;
  }

  void exchange_both(const std::vector<Settlement>& settlements, const std::optional<TakeRequest>& request) {
    std::vector<Settled> verdicts;
    fallen_.clear();
    for (const Settlement& s : settlements) {
      verdicts.push_back(settle_one(s));
      steps_.push_back("settle " + std::string(s.id.text()) + " token " + s.token.text() + " kind " +
                       std::to_string(static_cast<int>(s.kind)) + ": " +
                       std::to_string(static_cast<int>(verdicts.back())));
      seen["verdict " + std::to_string(static_cast<int>(verdicts.back()))]++;
    }
    std::vector<HeldJob> jobs;
    if (request)
      jobs = claim_one(*request);
    const auto answer = exchange(all_.queue(), settlements, request).get();
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_EQ(answer->settled, verdicts);
    std::vector<std::string> fallen;
    for (const Fallen& one : answer->fallen)
      fallen.emplace_back(one.parent.text());
    EXPECT_EQ(fallen, fallen_);
    ASSERT_EQ(answer->jobs.size(), jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(answer->jobs[i].job.id.text(), jobs[i].id);
      EXPECT_EQ(answer->jobs[i].job.token.value(), jobs[i].token);
      steps_.push_back("claim " + jobs[i].id);
      seen[answer->jobs[i].job.lane ? "lane" : "flat"]++;
      if (answer->jobs[i].flow_child)
        seen["child"]++;
      if (answer->jobs[i].flow_parent)
        seen["parent"]++;
      if (answer->jobs[i].failures + 1 < jobs[i].token)
        seen["spared"]++;
      const std::string row = "job:" + jobs[i].id;
      std::int64_t spared = 0;
      for (const char* field : {"stalled", "handbacks", "delays"})
        spared += one_number(row, field);
      EXPECT_EQ(answer->jobs[i].failures, jobs[i].token - 1 - static_cast<std::uint64_t>(spared));
      // The mark is left by a request to end an earlier run.
      EXPECT_EQ(answer->jobs[i].cancelled, jobs[i].token > 1 && one_field(jobs[i].id, "cancel").has_value());
      if (answer->jobs[i].cancelled)
        seen["cancelled"]++;
    }
    held_.insert(held_.end(), jobs.begin(), jobs.end());
  }

  /// Longer than a run of the test.
  static constexpr const char* kWindow = "900000000";

  std::mt19937 random_;
  bool ceiling_ = false;  ///< meta.concurrency is set
  Side one_;
  Side all_;
  std::vector<HeldJob> held_;
  std::vector<HeldJob> past_;
  std::vector<std::string> texts_;
  std::vector<std::string> parents_;   // in this queue
  std::vector<std::string> children_;  // elsewhere
  std::vector<std::string> fallen_;    // parents that died of the settlements of this round
  std::vector<std::string> steps_;
  int next_ = 1;
  std::int64_t next_wait_ = 1;
};

TEST(ExchangeServerTest, LeavesTheDatabaseThatTheVerbsLeaveOneByOne) {
  std::map<std::string, int> seen;
  for (unsigned seed = 1; seed <= 13; ++seed) {
    Twins twins(seed);
    for (int round = 0; round < 80; ++round) {
      twins.round();
      const std::string differs = twins.compare();
      ASSERT_EQ(differs, "") << "seed " << seed << " round " << round;
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " round " << round;
    }
    for (const auto& [name, count] : twins.seen)
      seen[name] += count;
  }
  // The mixes have come by everything.
  for (const char* name :
       {"flow",      "reap",      "sweep",     "lane",      "flat",      "child",       "parent",    "spared",
        "verdict 0", "verdict 1", "verdict 2", "verdict 3", "verdict 4", "verdict 5",   "verdict 6", "paused",
        "ceiling",   "window",    "charged",   "expired",   "kept",      "own maximum", "cancelled"})
    EXPECT_GE(seen[name], 10) << name;
  EXPECT_GE(seen["fallen by a settle"], 3);
}

TEST(ExchangeServerTest, ASweepAndADeliveryThatNameTheDeadLeaveTheDatabaseOfThoseThatDoNot) {
  std::map<std::string, int> seen;
  for (unsigned seed = 101; seed <= 108; ++seed) {
    Twins twins(seed);
    for (int round = 0; round < 60; ++round) {
      twins.sweep_round();
      const std::string differs = twins.compare();
      ASSERT_EQ(differs, "") << "seed " << seed << " round " << round;
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " round " << round;
    }
    for (const auto& [name, count] : twins.seen)
      seen[name] += count;
  }
  for (const char* name : {"fallen by a sweep", "recovered and fallen", "of several", "fallen by a record",
                           "a record that kills nobody", "marked parent"})
    EXPECT_GE(seen[name], 10) << name << " " << seen[name];
}

}  // namespace
}  // namespace echomq::test
