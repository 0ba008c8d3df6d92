#include "support/exchange_twins.hpp"

#include <algorithm>
#include <functional>

namespace echomq::test {

using namespace echomq::queue;

namespace {

/// Of the rate, in milliseconds: longer than a run of the test.
constexpr const char* kWindow = "900000000";

}  // namespace

std::string Twins::compare() {
  const std::string a = one_.dump();
  const std::string b = all_.dump();
  for (const std::string& step : steps_)
    history = 31 * history + std::hash<std::string>()(step);
  if (a == b)
    return {};
  std::string story;
  for (const std::string& step : steps_)
    story += step + "\n";
  return story + difference(a, b);
}

void Twins::both(const std::vector<std::string>& command) {
  const std::string a = one_.raw(command).to_string();
  const std::string b = all_.raw(command).to_string();
  EXPECT_EQ(a, b) << command[0] << " " << (command.size() > 1 ? command[1] : "");
}

void Twins::both(std::string_view name, const std::vector<std::string>& keys,
                 const std::vector<std::string>& arguments) {
  const std::string a = one_.script(name, keys, arguments);
  const std::string b = all_.script(name, keys, arguments);
  EXPECT_EQ(a, b) << name;
  steps_.push_back(std::string(name) + (arguments.empty() ? "" : " " + arguments[0]));
}

std::string Twins::fresh() {
  std::string digits = std::to_string(next_++);
  // Not always in mint order.
  return std::string("JOB0") + static_cast<char>('A' + below(4)) + std::string(9 - digits.size(), '0') + digits;
}

void Twins::admit() {
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

void Twins::flow() {
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
    both({"HSET", kBase + "job:" + parent, "parent", fresh(), "parent_queue", below(2) == 0 ? "other" : ""});
  if (below(4) == 0)  // a parent that runs while a child of its is not done
    both({"EVAL", "redis.call('HSET', KEYS[1], 'state', 'pending') return redis.call('ZADD', KEYS[2], 0, ARGV[1])", "2",
          kBase + "job:" + parent, kBase + "pending", parent});
  seen["flow"]++;
}

void Twins::disturb() {
  const std::string g = lane();
  switch (below(20)) {
    case 0:
      both("glimit", {"glimit", "gactive", "ring", "paused", "wake"}, {kBase, g, std::to_string(1 + below(4))});
      break;
    case 1: both("gweight", {"gweight"}, {g, std::to_string(1 + below(5))}); break;
    case 2: both("gpause", {"paused", "ring"}, {g}); break;
    // As an operator does by hand: the ring learns of it at the next settle.
    case 3: both({"SREM", kBase + "paused", g}); break;
    case 4:
    case 5: {  // leases lapse
      const auto active = one_.members("active");
      for (const std::string& id : active) {
        if (below(3) == 0)
          both({"ZADD", kBase + "active", "XX", "1", id});
      }
      both("reap", {"active", "pending"}, {kBase});
      seen["reap"]++;
      break;
    }
    case 6: {
      const auto active = one_.members("active");
      for (const std::string& id : active) {
        if (below(3) == 0)
          both({"ZADD", kBase + "active", "XX", "1", id});
      }
      both("sweep_stalled", {"active", "pending", "dead"}, {kBase, "3", "100"});
      seen["sweep"]++;
      break;
    }
    case 7: {  // what is scheduled is due
      for (const std::string& id : one_.members("schedule")) {
        if (below(2) == 0)
          both({"ZADD", kBase + "schedule", "XX", "1", id});
      }
      both("promote", {"schedule", "pending"}, {kBase, "100"});
      break;
    }
    case 8: both({"ZADD", kBase + (below(2) == 0 ? "pending" : "g:" + g + ":pending"), "0", fresh()}); break;  // ghosts
    case 9: {  // members that are at home elsewhere
      const auto active = one_.members("active");
      if (!active.empty())
        both({"ZADD", kBase + (below(2) == 0 ? "pending" : "g:" + g + ":pending"), "0", any(active)});
      break;
    }
    case 10:
      if (!held_.empty())
        both({"DEL", kBase + "job:" + any(held_).id});
      break;
    case 11: both({"HSET", kBase + "gactive", g, below(2) == 0 ? "no number" : std::to_string(below(6))}); break;
    case 12:
      both(!ceiling_ && below(2) == 0
               ? std::vector<std::string>{"ZADD", kBase + "parked", "9000000000000", "w" + std::to_string(below(4))}
               : std::vector<std::string>{"DEL", kBase + "parked", kBase + "wake"});
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
        both({"RPUSH", kBase + "ring", "PRT00000000" + std::to_string(100 + i)});
      break;
    }
    case 15:
      both(below(3) == 0 ? std::vector<std::string>{"HSET", kBase + "meta", "paused", "1"}
                         : std::vector<std::string>{"HDEL", kBase + "meta", "paused"});
      break;
    case 16:  // no worker sleeps meanwhile: the canonical settles push no hint for a slot
      ceiling_ = below(2) == 0;
      both({"DEL", kBase + "parked", kBase + "wake"});
      both(ceiling_ ? std::vector<std::string>{"HSET", kBase + "meta", "concurrency", std::to_string(1 + below(12))}
                    : std::vector<std::string>{"HDEL", kBase + "meta", "concurrency"});
      break;
    case 17:
      switch (below(3)) {
        case 0: both({"HSET", kBase + "meta", "max", std::to_string(1 + below(10)), "duration", kWindow}); break;
        case 1:  // counted by the operator
          both({"HDEL", kBase + "meta", "duration"});
          both({"HSET", kBase + "meta", "max", std::to_string(1 + below(10))});
          both({"SET", kBase + "limiter", std::to_string(below(8)), "PX", kWindow});
          break;
        default:
          both({"HDEL", kBase + "meta", "max", "duration"});
          both({"DEL", kBase + "limiter"});
          break;
      }
      break;
    case 18:
    case 19: own_fields(); break;
    default: break;
  }
}

void Twins::own_fields() {
  std::vector<std::string> ids = one_.members("pending");
  for (const HeldJob& job : held_)
    ids.push_back(job.id);
  for (const std::string& id : ids) {
    const std::string row = kBase + "job:" + id;
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

std::optional<std::string> Twins::one_field(const std::string& id, const std::string& name) {
  const Value value = one_.raw({"HGET", kBase + "job:" + id, name});
  const auto text = value.as_text();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

std::int64_t Twins::one_number(const std::string& key, const std::string& name) {
  const Value value = one_.raw({"HGET", kBase + key, name});
  return value.as_text() ? std::stoll(std::string(*value.as_text())) : 0;
}

void Twins::keep_one(const std::string& id, const std::optional<std::string>& keep, const std::string& ended) {
  if (!keep)
    return;
  one_.raw({"SET", kBase + "result:" + id, ended, "PX", *keep});
  seen["kept"]++;
}

TakeRequest Twins::claim() {
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

std::size_t Twins::gates(std::size_t most) {
  const std::int64_t ceiling = one_number("meta", "concurrency");
  const std::int64_t window = one_number("meta", "max");
  auto allowed = static_cast<std::int64_t>(most);
  const auto at_most = [&](std::int64_t room, const char* gate) {
    if (room < allowed)
      seen[gate]++;
    allowed = std::max<std::int64_t>(0, std::min(allowed, room));
  };
  if (one_.raw({"HEXISTS", kBase + "meta", "paused"}).as_integer() == 1)
    at_most(0, "paused");
  if (ceiling > 0)
    at_most(ceiling - static_cast<std::int64_t>(one_.members("active").size()), "ceiling");
  if (window > 0) {
    const Value used = one_.raw({"GET", kBase + "limiter"});
    at_most(window - (used.as_text() ? std::stoll(std::string(*used.as_text())) : 0), "window");
  }
  return static_cast<std::size_t>(allowed);
}

void Twins::clear_head() {
  for (;;) {
    const Value head = one_.raw({"ZRANGE", kBase + "pending", "0", "0"});
    if (head.size() == 0)
      return;
    const std::string id(head[0].as_text().value_or(""));
    const std::optional<std::string> state = one_field(id, "state");
    const std::string home = state == "active" ? "active" : state == "scheduled" ? "schedule" : "dead";
    const bool elsewhere = (state == "active" || state == "scheduled" || state == "dead") &&
                           !one_.raw({"ZSCORE", kBase + home, id}).is_null();
    const bool old = one_field(id, "expires_at").has_value();
    if (one_.raw({"EXISTS", kBase + "job:" + id}).as_integer() == 1 && !elsewhere && !old)
      return;
    one_.raw({"ZREM", kBase + "pending", id});
    if (!old || elsewhere)
      continue;
    one_.raw({"HSET", kBase + "job:" + id, "state", "dead", "last_error", "expired"});
    one_.raw({"ZADD", kBase + "dead", "0", id});
    one_.raw({"HINCRBY", kBase + "metrics:failed", "count", "1"});
    keep_one(id, one_field(id, "keep"), std::string("dead\0expired", 12));
    end_mark(id);
    seen["expired"]++;
  }
}

std::vector<HeldJob> Twins::claim_one(const TakeRequest& request) {
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
      if (add(one_.call("bclaim", {"pending", "active"}, {kBase + "job:", lease, "1"})) == 0)
        break;
    }
  };
  const auto lanes = [&](std::size_t upto) {
    while (jobs.size() < upto &&
           add(one_.call("gwclaim", {"ring", "active"}, {kBase, lease, std::to_string(upto - jobs.size())})) > 0)
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
    one_.raw({"INCRBY", kBase + "limiter", std::to_string(jobs.size())});
    if (one_.raw({"PTTL", kBase + "limiter"}).as_integer().value_or(-1) < 0)
      one_.raw({"PEXPIRE", kBase + "limiter", kWindow});
    seen["charged"]++;
  }
  return jobs;
}

void Twins::exchange_both(const std::vector<Settlement>& settlements, const std::vector<Settled>& verdicts,
                          const std::vector<std::string>& fallen, const std::optional<TakeRequest>& request) {
  std::vector<HeldJob> jobs;
  if (request)
    jobs = claim_one(*request);
  const auto answer = exchange(all_.queue(), settlements, request).get();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->settled, verdicts);
  std::vector<std::string> named;
  for (const Fallen& one : answer->fallen)
    named.emplace_back(one.parent.text());
  EXPECT_EQ(named, fallen);
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

}  // namespace echomq::test
