// The examination of one queue.
#include "examine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "client/nodes.hpp"
#include "keyspace/keys.hpp"
#include "session.hpp"

namespace emq {
namespace {

using echomq::Result;
using echomq::Value;
using echomq::keyspace::KeyType;
using Values = std::vector<Value>;
using Command = std::vector<std::string>;
using Commands = std::vector<Command>;
using Counts = std::map<std::string, std::int64_t>;

constexpr std::size_t kBite = 500;
/// Members of active that are read at one moment.
constexpr std::int64_t kOneMoment = 1000;
constexpr int kLooks = 3;
constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::array kSets{KeyType::pending, KeyType::active, KeyType::schedule, KeyType::dead};

[[nodiscard]] std::string text_of(const Value& value) { return std::string(value.as_text().value_or("")); }

[[nodiscard]] std::int64_t number_of(const Value& value) {
  if (const auto number = value.as_integer()) {
    return *number;
  }
  return static_cast<std::int64_t>(std::strtod(text_of(value).c_str(), nullptr));
}

/// As HINCRBY takes it; nothing the scripts write is anything else.
[[nodiscard]] bool whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && text == std::to_string(number);
}

/// A limit as the scripts read it: none when it is no number.
[[nodiscard]] std::optional<double> limit_of(const Value& value) {
  const std::string text = text_of(value);
  char* end = nullptr;
  const double limit = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nullopt : std::optional(limit);
}

/// The text as a pattern that matches it only.
[[nodiscard]] std::string literal(std::string_view text) {
  std::string out;
  for (const char byte : text) {
    if (std::string_view("*?[]\\^").contains(byte)) {
      out += '\\';
    }
    out += byte;
  }
  return out;
}

class Examination {
 public:
  Examination(const echomq::Client& client, const echomq::QueueName& queue, std::size_t most)
      : client_(client), keys_(queue), most_(most) {}

  Result<Findings> run() {
    const std::array steps = {&Examination::types, &Examination::rows,        &Examination::members,
                              &Examination::ring,  &Examination::lanes_turns, &Examination::lane_counts};
    for (const auto step : steps) {
      if (auto done = (this->*step)(); !done) {
        return echomq::fail(std::move(done).error());
      }
    }
    found_.lanes = lanes_.size();
    return std::move(found_);
  }

 private:
  void add(std::string_view kind, std::string_view what, std::string_view name, std::string says) {
    if (!told_.emplace(std::string(kind) + ' ' + std::string(name) + ' ' + says).second) {
      return;
    }
    if (++found_.counts[std::string(kind)] <= most_) {
      found_.kept.push_back({std::string(kind), std::string(what), std::string(name), std::move(says)});
    }
  }

  // Asking.

  [[nodiscard]] Result<Values> ask(const Commands& commands, bool at_one_moment) {
    std::vector<std::vector<std::string_view>> words;
    for (const Command& command : commands) {
      words.emplace_back(command.begin(), command.end());
    }
    const std::vector<echomq::CommandParts> parts(words.begin(), words.end());
    return (at_one_moment ? client_.transaction(parts) : client_.pipeline(parts)).get();
  }
  /// One answer each, in order, a bite at a time.
  [[nodiscard]] Result<Values> ask_all(const Commands& commands) {
    Values all;
    for (std::size_t first = 0; first < commands.size(); first += kBite) {
      const auto begin = commands.begin() + static_cast<std::ptrdiff_t>(first);
      const auto size = std::min(kBite, commands.size() - first);
      auto some = ask(Commands(begin, begin + static_cast<std::ptrdiff_t>(size)), false);
      if (!some) {
        return some;
      }
      std::ranges::move(*some, std::back_inserter(all));
      progress();
    }
    return all;
  }
  /// Calls `visit` with each page of ZSCAN, HSCAN or SSCAN.
  template <typename Visit>
  [[nodiscard]] Result<void> scan(const std::string& command, const std::string& key, Visit visit) {
    std::string cursor = "0";
    do {
      auto page = client_.command(command, key, cursor, "COUNT", std::to_string(kBite)).get();
      if (!page) {
        return echomq::fail(std::move(page).error());
      }
      if (page->size() != 2) {
        return echomq::fail(echomq::Errc::protocol_error, command + " answered " + page->to_string());
      }
      cursor = text_of((*page)[0]);
      if (Result<void> done = visit((*page)[1].items()); !done) {
        return done;
      }
      progress();
    } while (cursor != "0");
    return {};
  }
  void progress() {
    if (progress_.due()) {
      progress_.show(fmt::format("{} rows, {} members of sets", found_.rows, found_.members));
    }
  }

  [[nodiscard]] std::string row(const std::string& id) const { return keys_.job_prefix() + id; }
  [[nodiscard]] std::string lane_set(const std::string& lane) const { return keys_.base() + "g:" + lane + ":pending"; }
  [[nodiscard]] bool sound(KeyType type) const { return !broken_.contains(keys_.fixed(type)); }
  /// The key of the set where a row of this state belongs; empty: in none.
  [[nodiscard]] std::string home_of(const std::string& state, const std::string& lane) const {
    if (state == "pending") {
      return lane.empty() ? keys_.pending() : lane_set(lane);
    }
    return state == "active"      ? keys_.active()
           : state == "scheduled" ? keys_.schedule()
           : state == "dead"      ? keys_.dead()
                                  : std::string();
  }
  [[nodiscard]] std::string short_name(const std::string& key) const { return key.substr(keys_.base().size()); }

  // Keys of another type.

  Result<void> types() {
    std::vector<KeyType> asked;
    Commands commands;
    for (const auto& spec : echomq::keyspace::key_table()) {
      const auto index = static_cast<std::size_t>(spec.type);
      if (index < echomq::keyspace::kFixedKeys && spec.holds != echomq::keyspace::ValueType::channel &&
          spec.holds != echomq::keyspace::ValueType::none) {
        asked.push_back(spec.type);
        commands.push_back({"TYPE", keys_.fixed(spec.type)});
      }
    }
    auto answers = ask(commands, false);
    if (!answers) {
      return echomq::fail(std::move(answers).error());
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
      type_is(keys_.fixed(asked[i]), text_of((*answers)[i]), to_string(echomq::keyspace::spec(asked[i]).holds));
    }
    return {};
  }
  void type_is(const std::string& key, std::string_view is, std::string_view should) {
    if (is != should && is != "none") {
      broken_.insert(key);
      add("wrong_type", "key", key, fmt::format("it is a {}, not a {}", is, should));
    }
  }

  // Rows and members.

  Result<void> rows() {
    const std::string pattern = literal(keys_.base()) + "*";
    const echomq::client::Nodes nodes(client_);
    std::string cursor = "0";
    for (std::size_t node = 0; node < nodes.size();) {
      const std::string_view words[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"};
      auto page = nodes.command(node, words).get();
      if (!page) {
        return echomq::fail(std::move(page).error());
      }
      if (page->size() != 2) {
        return echomq::fail(echomq::Errc::protocol_error, "SCAN answered " + page->to_string());
      }
      cursor = text_of((*page)[0]);
      std::vector<std::string> ids;
      Commands lane_types;
      for (const Value& one : (*page)[1].items()) {
        const std::string key = text_of(one);
        const auto info = echomq::keyspace::classify(key);
        if (info.type == KeyType::job) {
          ids.emplace_back(info.part);
        } else if (info.type == KeyType::lane && lanes_.emplace(info.part).second) {
          lane_types.push_back({"TYPE", key});
        }
      }
      auto types_of_lanes = ask_all(lane_types);
      if (!types_of_lanes) {
        return echomq::fail(std::move(types_of_lanes).error());
      }
      for (std::size_t i = 0; i < lane_types.size(); ++i) {
        type_is(lane_types[i][1], text_of((*types_of_lanes)[i]), "zset");
      }
      found_.rows += ids.size();
      if (Result<void> done = look_at_rows(ids); !done) {
        return done;
      }
      if (cursor == "0") {
        ++node;
      }
    }
    return {};
  }

  Result<void> look_at_rows(const std::vector<std::string>& ids) {
    Commands commands;
    for (const std::string& id : ids) {
      commands.push_back({"HMGET", row(id), "state", "group"});
    }
    auto fields = ask_all(commands);
    if (!fields) {
      return echomq::fail(std::move(fields).error());
    }
    struct Row {
      std::string id, lane;
    };
    std::vector<Row> asked;
    commands.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Value& one = (*fields)[i];
      if (one.size() != 2) {
        auto type = client_.command("TYPE", row(ids[i])).get();
        if (!type) {
          return echomq::fail(std::move(type).error());
        }
        type_is(row(ids[i]), text_of(*type), "hash");
        continue;
      }
      const std::string state = text_of(one[0]);
      const std::string lane = text_of(one[1]);
      if (!lane.empty()) {
        lanes_.insert(lane);
      }
      const std::string home = home_of(state, lane);
      if (home.empty() || broken_.contains(home)) {
        if (Result<void> done = home.empty() ? judge(ids[i], lane) : Result<void>(); !done) {
          return done;
        }
        continue;
      }
      asked.push_back({ids[i], lane});
      commands.push_back({"ZSCORE", home, ids[i]});
    }
    auto scores = ask_all(commands);
    if (!scores) {
      return echomq::fail(std::move(scores).error());
    }
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if ((*scores)[i].is_null()) {
        if (Result<void> done = judge(asked[i].id, asked[i].lane); !done) {
          return done;
        }
      }
    }
    return {};
  }

  Result<void> members() {
    for (const KeyType type : kSets) {
      if (sound(type)) {
        if (Result<void> done = look_at_members(keys_.fixed(type), ""); !done) {
          return done;
        }
      }
    }
    const std::set<std::string> lanes = lanes_;
    for (const std::string& lane : lanes) {
      if (!broken_.contains(lane_set(lane))) {
        if (Result<void> done = look_at_members(lane_set(lane), lane); !done) {
          return done;
        }
      }
    }
    return {};
  }

  Result<void> look_at_members(const std::string& set, const std::string& lane_of_set) {
    return scan("ZSCAN", set, [&](std::span<const Value> page) -> Result<void> {
      std::vector<std::string> ids;
      Commands commands;
      for (std::size_t i = 0; i + 1 < page.size(); i += 2) {
        ids.push_back(text_of(page[i]));
        commands.push_back({"HMGET", row(ids.back()), "state", "group"});
      }
      found_.members += ids.size();
      auto fields = ask_all(commands);
      if (!fields) {
        return echomq::fail(std::move(fields).error());
      }
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const Value& one = (*fields)[i];
        if (one.size() == 2 && home_of(text_of(one[0]), text_of(one[1])) == set) {
          continue;
        }
        if (Result<void> done = judge(ids[i], lane_of_set); !done) {
          return done;
        }
      }
      return {};
    });
  }

  // Everything about one job at one moment.
  Result<void> judge(const std::string& id, const std::string& lane) {
    std::set<std::string> lanes;
    if (!lane.empty()) {
      lanes.insert(lane);
    }
    for (int round = 0; round < kLooks; ++round) {
      Commands commands = {
          {"HMGET", row(id), "state", "group"}, {"EXISTS", row(id)}, {"GET", row(id) + ":dependencies"}};
      std::vector<std::string> sets;
      for (const KeyType type : kSets) {
        sets.push_back(keys_.fixed(type));
      }
      for (const std::string& one : lanes) {
        sets.push_back(lane_set(one));
      }
      std::erase_if(sets, [&](const std::string& set) { return broken_.contains(set); });
      for (const std::string& set : sets) {
        commands.push_back({"ZSCORE", set, id});
      }
      auto answers = ask(commands, true);
      if (!answers) {
        return echomq::fail(std::move(answers).error());
      }
      const Value& fields = (*answers)[0];
      if (fields.size() != 2) {
        return {};  // no hash: told by its type
      }
      const std::string group = text_of(fields[1]);
      if (!group.empty() && lanes.insert(group).second) {
        lanes_.insert(group);
        continue;  // its lane was not asked
      }
      std::vector<std::string> in;
      for (std::size_t i = 0; i < sets.size(); ++i) {
        const Value& score = (*answers)[3 + i];
        if (!score.is_null() && !score.is_error()) {
          in.push_back(sets[i]);
        }
      }
      tell(id, text_of(fields[0]), group, number_of((*answers)[1]) == 1, (*answers)[2], in);
      return {};
    }
    return {};
  }

  void tell(const std::string& id, const std::string& state, const std::string& lane, bool exists,
            const Value& dependencies, const std::vector<std::string>& in) {
    if (!exists) {
      for (const std::string& set : in) {
        add("member_without_row", "job", id, "it is in " + short_name(set) + " and has no row");
      }
      return;
    }
    const std::string home = home_of(state, lane);
    const bool at_home = std::ranges::find(in, home) != in.end();
    for (const std::string& set : in) {
      if (set != home) {
        add("member_in_wrong_set", "job", id,
            fmt::format("its state is {}, and it is {}in {}", state.empty() ? "missing" : state,
                        at_home ? "as a leftover " : "", short_name(set)));
      }
    }
    if (state == "awaiting_children") {
      if (number_of(dependencies) <= 0) {
        add("parent_waits_for_nobody", "job", id, "its state is awaiting_children, and no child is left to wait for");
      }
    } else if (in.empty() && !broken_.contains(home)) {
      add("row_in_no_set", "job", id, fmt::format("its state is {}", state.empty() ? "missing" : state));
    }
  }

  // Lanes.

  Result<void> ring() {
    if (sound(KeyType::ring)) {
      for (std::size_t first = 0;; first += kBite) {
        auto page =
            client_.command("LRANGE", keys_.ring(), std::to_string(first), std::to_string(first + kBite - 1)).get();
        if (!page) {
          return echomq::fail(std::move(page).error());
        }
        for (const Value& lane : page->items()) {
          ++on_ring_[text_of(lane)];
          lanes_.insert(text_of(lane));
        }
        if (page->size() < kBite) {
          break;
        }
      }
    }
    if (sound(KeyType::gactive)) {
      return scan("HSCAN", keys_.gactive(), [&](std::span<const Value> page) -> Result<void> {
        for (std::size_t i = 0; i + 1 < page.size(); i += 2) {
          const std::string lane = text_of(page[i]);
          lanes_.insert(lane);
          if (!whole_number(text_of(page[i + 1])) && uncounted_.insert(lane).second) {
            add("lane_count_no_number", "lane", lane,
                fmt::format("gactive says {} for it, and counts no job in flight", text_of(page[i + 1])));
          }
        }
        return {};
      });
    }
    return {};
  }

  struct Turn {
    bool waiting = false, paused = false, full = false;
    std::int64_t times = 0;
    [[nodiscard]] bool right() const { return times == (waiting && !paused && !full ? 1 : 0); }
  };
  [[nodiscard]] Commands questions(const std::string& lane) const {
    return {{"ZCARD", lane_set(lane)},
            {"SISMEMBER", keys_.paused(), lane},
            {"HGET", keys_.glimit(), lane},
            {"HGET", keys_.gactive(), lane}};
  }
  [[nodiscard]] static Turn turn_of(std::span<const Value> answers, std::int64_t times) {
    const auto limit = limit_of(answers[2]);
    return {.waiting = answers[0].as_integer().value_or(0) > 0,
            .paused = answers[1].as_integer().value_or(0) == 1,
            .full = limit && static_cast<double>(number_of(answers[3])) >= *limit,
            .times = times};
  }

  Result<void> lanes_turns() {
    if (!sound(KeyType::ring)) {
      return {};
    }
    const std::vector<std::string> lanes(lanes_.begin(), lanes_.end());
    for (std::size_t first = 0; first < lanes.size(); first += kBite / 4) {
      const auto some = std::span(lanes).subspan(first, std::min(kBite / 4, lanes.size() - first));
      Commands commands;
      for (const std::string& lane : some) {
        std::ranges::move(questions(lane), std::back_inserter(commands));
      }
      auto answers = ask_all(commands);
      if (!answers) {
        return echomq::fail(std::move(answers).error());
      }
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto found = on_ring_.find(some[i]);
        const Turn turn = turn_of(std::span(*answers).subspan(4 * i, 4), found == on_ring_.end() ? 0 : found->second);
        if (!turn.right()) {
          if (Result<void> done = judge_lane(some[i]); !done) {
            return done;
          }
        }
      }
    }
    return {};
  }

  Result<void> judge_lane(const std::string& lane) {
    Commands commands = questions(lane);
    commands.push_back({"LPOS", keys_.ring(), lane, "COUNT", "0"});
    auto answers = ask(commands, true);
    if (!answers) {
      return echomq::fail(std::move(answers).error());
    }
    const Turn turn = turn_of(*answers, static_cast<std::int64_t>((*answers)[4].size()));
    if (turn.right()) {
      return {};
    }
    if (turn.times == 0) {
      add("lane_missing_on_ring", "lane", lane, "it has jobs and may run them, and is not on the ring");
    } else if (turn.times > 1) {
      add("lane_twice_on_ring", "lane", lane, fmt::format("it is on the ring {} times", turn.times));
    } else if (!turn.waiting) {
      add("lane_empty_on_ring", "lane", lane, "it is on the ring and has no jobs");
    } else if (turn.paused) {
      add("lane_paused_on_ring", "lane", lane, "it is on the ring and paused");
    } else {
      add("lane_full_on_ring", "lane", lane, "it is on the ring and at its limit");
    }
    return {};
  }

  /// Jobs in flight of each lane: as `active` has them, and as `gactive` says, at most and at least while it was read.
  struct InFlight {
    Counts counted, low, high;
    std::int64_t gone = 0;  ///< members whose row had gone before its lane was read
  };

  Result<void> lane_counts() {
    if (!sound(KeyType::active) || !sound(KeyType::gactive)) {
      return {};
    }
    std::map<std::string, std::string> blamed;
    for (int look = 0; look < kLooks; ++look) {
      if (look > 0) {
        std::this_thread::sleep_for(kBetweenLooks);
      }
      auto seen = in_flight();
      if (!seen) {
        return echomq::fail(std::move(seen).error());
      }
      std::map<std::string, std::string> now;
      std::set<std::string> names;
      for (const Counts* counts : {&seen->counted, &seen->low, &seen->high}) {
        for (const auto& [lane, count] : *counts) {
          names.insert(lane);
        }
      }
      for (const std::string& lane : names) {
        const auto of = [&](const Counts& counts) {
          const auto found = counts.find(lane);
          return found == counts.end() ? 0 : found->second;
        };
        const std::int64_t counted = of(seen->counted);
        if (of(seen->low) > counted + seen->gone) {
          now.emplace(lane, "lane_count_high");
        } else if (of(seen->high) < counted) {
          now.emplace(lane, "lane_count_low");
        }
        if (uncounted_.contains(lane)) {
          now.erase(lane);  // told already
        }
        if (const auto before = blamed.find(lane);
            look == kLooks - 1 && before != blamed.end() && now.contains(lane) && now.at(lane) == before->second) {
          add(before->second, "lane", lane,
              fmt::format("gactive says {} in flight, active has {}", of(seen->high), counted));
        }
      }
      if (look > 0) {
        std::erase_if(now, [&](const auto& one) {
          const auto before = blamed.find(one.first);
          return before == blamed.end() || before->second != one.second;
        });
      }
      blamed = std::move(now);
      if (blamed.empty()) {
        break;
      }
    }
    return {};
  }

  Result<InFlight> in_flight() {
    InFlight seen;
    auto sizes = ask({{"ZCARD", keys_.active()}, {"HLEN", keys_.gactive()}}, false);
    if (!sizes) {
      return echomq::fail(std::move(sizes).error());
    }
    const auto count_members = [&](const std::vector<std::string>& ids) -> Result<void> {
      Commands commands;
      for (const std::string& id : ids) {
        commands.push_back({"HMGET", row(id), "group", "state"});
      }
      auto fields = ask_all(commands);
      if (!fields) {
        return echomq::fail(std::move(fields).error());
      }
      for (const Value& one : *fields) {
        if (one.size() == 2 && !one[0].is_null()) {
          ++seen.counted[text_of(one[0])];
        } else if (one.size() != 2 || one[1].is_null()) {
          ++seen.gone;
        }
      }
      return {};
    };
    if (number_of((*sizes)[0]) <= kOneMoment && number_of((*sizes)[1]) <= kOneMoment) {
      auto both = ask({{"ZRANGE", keys_.active(), "0", "-1"}, {"HGETALL", keys_.gactive()}}, true);
      if (!both) {
        return echomq::fail(std::move(both).error());
      }
      std::vector<std::string> ids;
      for (const Value& id : (*both)[0].items()) {
        ids.push_back(text_of(id));
      }
      const auto pairs = (*both)[1].items();
      for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
        seen.low[text_of(pairs[i])] = seen.high[text_of(pairs[i])] = number_of(pairs[i + 1]);
      }
      if (Result<void> done = count_members(ids); !done) {
        return echomq::fail(std::move(done).error());
      }
      return seen;
    }
    Counts first;
    Counts last;
    const auto read_counts = [&](Counts& into) {
      return scan("HSCAN", keys_.gactive(), [&](std::span<const Value> page) -> Result<void> {
        for (std::size_t i = 0; i + 1 < page.size(); i += 2) {
          into[text_of(page[i])] = number_of(page[i + 1]);
        }
        return {};
      });
    };
    if (Result<void> done = read_counts(first); !done) {
      return echomq::fail(std::move(done).error());
    }
    std::set<std::string> counted;  // ZSCAN may give one twice
    const auto page_of_active = [&](std::span<const Value> page) -> Result<void> {
      std::vector<std::string> ids;
      for (std::size_t i = 0; i + 1 < page.size(); i += 2) {
        if (counted.insert(text_of(page[i])).second) {
          ids.push_back(text_of(page[i]));
        }
      }
      return count_members(ids);
    };
    if (Result<void> done = scan("ZSCAN", keys_.active(), page_of_active); !done) {
      return echomq::fail(std::move(done).error());
    }
    if (Result<void> done = read_counts(last); !done) {
      return echomq::fail(std::move(done).error());
    }
    for (const Counts* counts : {&first, &last}) {
      for (const auto& [lane, count] : *counts) {
        const auto in = [&](const Counts& from) {
          const auto found = from.find(lane);
          return found == from.end() ? 0 : found->second;
        };
        seen.low[lane] = std::min(in(first), in(last));
        seen.high[lane] = std::max(in(first), in(last));
      }
    }
    return seen;
  }

  const echomq::Client& client_;
  const echomq::keyspace::QueueKeys keys_;
  const std::size_t most_;
  Findings found_;
  std::set<std::string> told_;    // so that what is met twice is told once
  std::set<std::string> broken_;  // keys of another type
  std::set<std::string> lanes_;
  std::set<std::string> uncounted_;  // lanes whose count is no number
  Counts on_ring_;
  Progress progress_;
};

}  // namespace

Result<Findings> examine(const echomq::Client& client, const echomq::QueueName& queue, std::size_t most) {
  return Examination(client, queue, most).run();
}

}  // namespace emq
