#include "conformance/golden.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <stdexcept>
#include <thread>

#include "conformance/database.hpp"
#include "conformance/verbs.hpp"
#include "echomq/client.hpp"

namespace echomq::conformance {
namespace {

namespace fs = std::filesystem;

/// When a step ran, by the server's clock.
struct Times {
  std::int64_t before = 0;
  std::int64_t after = 0;
};

/// Steps where ours differs on purpose, of `protocol/repairs.json`.
[[nodiscard]] std::set<std::size_t> repaired_steps(std::string_view history) {
  std::set<std::size_t> steps;
  const json::value repairs = read_json(std::string(ECHOMQ_PROTOCOL_DIR) + "/repairs.json");
  for (const json::value& repair : repairs.as_array()) {
    if (text_of(repair.at("history")) == history)
      steps.insert(repair.at("step").to_number<std::size_t>());
  }
  return steps;
}

/// Messages of the queues' event channels.
class Ears {
 public:
  Ears(const Client& client, const std::set<std::string>& channels) : client_(client) {
    for (const std::string& channel : channels) {
      SubscriptionHandlers handlers;
      handlers.on_message = [this](std::string_view from, std::string_view message) {
        const std::lock_guard lock(mutex_);
        heard_.push_back(json::object{{"channel", from}, {"message", message}});
        changed_.notify_all();
      };
      auto subscription = client.subscribe(channel, handlers).get();
      if (!subscription)
        throw std::runtime_error("subscribe: " + subscription.error().message());
      subscriptions_.push_back(*std::move(subscription));
      channels_.push_back(channel);
    }
  }

  /// What came since the last call. A mark on each channel, published now, comes after all of it.
  [[nodiscard]] json::array take() {
    // From where the queue's scripts publish: in a cluster another node's mark might overtake what it marks.
    for (const std::string& channel : channels_)
      ask(client_, {"EVAL", "return redis.call('PUBLISH', KEYS[1], ARGV[1])", "1", channel, std::string(kMark)});
    std::unique_lock lock(mutex_);
    const auto marks = [&] {
      return static_cast<std::size_t>(std::count_if(heard_.begin(), heard_.end(), &Ears::is_mark));
    };
    if (!changed_.wait_for(lock, std::chrono::seconds(5), [&] { return marks() == channels_.size(); })) {
      throw std::runtime_error("the mark on a channel did not come");
    }
    json::array messages;
    for (const json::value& one : heard_) {
      if (!is_mark(one))
        messages.push_back(one);
    }
    heard_.clear();
    return messages;
  }

 private:
  static constexpr std::string_view kMark = "mark";
  [[nodiscard]] static bool is_mark(const json::value& one) { return one.at("message") == json::value(kMark); }

  const Client& client_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<json::value> heard_;  // guarded by mutex_
  std::vector<std::string> channels_;
  std::vector<Subscription> subscriptions_;
};

/// `{"<name>": n}` within a value, such as `{"now_plus": 30000, "step": 1}`.
[[nodiscard]] const json::value* field(const json::value& value, std::string_view name) {
  const json::object* object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(name);
}

/// A reply that was recorded as a map comes as a flat list of names and values.
[[nodiscard]] bool same_reply(const json::value& expected, const json::value& reply) {
  if (!expected.is_object() || !reply.is_array() || expected.as_object().contains("hex"))
    return same(expected, reply);
  json::object by_name;
  const json::array& list = reply.as_array();
  for (std::size_t i = 0; i + 1 < list.size(); i += 2)
    by_name[text_of(list[i])] = list[i + 1];
  return same(expected, by_name);
}

class Replay {
 public:
  Replay(std::string url, const json::value& history)
      : url_(std::move(url)),
        history_(history),
        subject_(connect(url_, {.name = "subject", .node_lease = mints(history)})),
        raw_(connect(url_, {.name = "raw", .node_lease = NodeLease::never})) {
    ask_each(raw_, {"FLUSHALL"});
    repaired_ = repaired_steps(text_of(history.at("name")));
    known_ids_ = ids_in(json::serialize(history));
    std::set<std::string> channels;
    for (const json::value& step : history.at("steps").as_array()) {
      if (const json::value* queue = field(step, "queue"))
        channels.insert("emq:{" + text_of(*queue) + "}:events");
      if (const json::value* published = field(step, "published")) {
        for (const json::value& one : published->as_array())
          channels.insert(text_of(one.at("channel")));
      }
    }
    ears_.emplace(raw_, channels);
  }

  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  /// What a history leaves, such as a version that refuses every client, must not meet the next one.
  ~Replay() { ask_each(raw_, {"FLUSHALL"}); }

  [[nodiscard]] std::vector<std::string> run() {
    const json::array& steps = history_.at("steps").as_array();
    for (index_ = 0; index_ < steps.size(); ++index_) {
      const std::size_t before = differences_.size();
      run_step(steps[index_]);
      const bool differs = differences_.size() > before;
      if (!repaired_.contains(index_))
        continue;
      differences_.resize(before);
      if (!differs)
        differ("protocol/repairs.json names this step, but nothing differs");
    }
    return differences_;
  }

  /// The steps took so much longer than their waits that a lease or a delay of the history may have run out between two of
  /// them: then a difference says nothing about the library.
  [[nodiscard]] bool was_slow() const {
    std::int64_t planned = 0;
    for (const json::value& step : history_.at("steps").as_array()) {
      if (text_of(step.at("call")) == "wait")
        planned += integer_of(step.at("args").at("ms"));
    }
    constexpr std::int64_t kSlackMs = 40;  // the shortest delay that a history counts on is 60 ms
    return !times_.empty() && times_.back().after - times_.front().before > planned + kSlackMs;
  }

 private:
  /// Only a history that mints needs a node id.
  [[nodiscard]] static NodeLease mints(const json::value& history) {
    const bool any = json::serialize(history).find("<minted:") != std::string::npos;
    return any ? NodeLease::at_open : NodeLease::never;
  }

  void differ(const std::string& what) {
    const std::string call = text_of(history_.at("steps").at(index_).at("call"));
    differences_.push_back("step " + std::to_string(index_) + " " + call + ": " + what);
  }

  void run_step(const json::value& as_written) {
    const std::uint64_t commands = subject_.stats().commands;
    Times& times = times_.emplace_back();
    times.before = server_time(raw_);
    make(json::parse(with_minted(json::serialize(as_written))));
    times.after = server_time(raw_);
    bind_minted(as_written);
    const json::value step = json::parse(with_minted(json::serialize(as_written)));
    const json::value* wire = field(step, "wire");
    const bool silent = wire != nullptr && wire->is_array() && wire->as_array().empty();
    if (silent && !worker_ran_ && subject_.stats().commands != commands) {
      differ("nothing was to be sent");
    }
    check_published(step);
    if (const json::value* state = field(step, "state")) {
      if (state->is_object())
        expected_ = state->as_object();
      check_state();
    }
  }

  void make(const json::value& step) {
    const std::string call = text_of(step.at("call"));
    const json::object& args = step.at("args").as_object();
    if (call == "wait") {
      std::this_thread::sleep_for(std::chrono::milliseconds(integer_of(args.at("ms"))));
      return;
    }
    if (call == "raw") {
      std::vector<std::string> command;
      for (const json::value& part : args.at("command").as_array())
        command.push_back(text_of(part));
      const json::value reply = to_json(ask(raw_, command));
      const json::value* expected = field(step, "reply");
      if (expected != nullptr && !same_reply(*expected, reply))
        differ("reply is " + json::serialize(reply));
      return;
    }
    if (call == "eval")
      return eval(step, args);
    Outcome outcome;
    if (call == "fence") {
      outcome.result = fence(args.at("stored"));
    } else if (call == "consumer_run") {
      outcome.result = run_consumer(subject_, text_of(step.at("queue")), args);
      worker_ran_ = true;
    } else if (LockHand::knows(call)) {
      outcome = lock_hand_.make_call(subject_, call, text_of(step.at("queue")), args);
    } else if (auto pure = make_pure_call(call, args)) {
      outcome.result = *std::move(pure);
    } else {
      const json::value* queue = field(step, "queue");
      outcome = make_call(subject_, call, queue != nullptr ? text_of(*queue) : std::string(), args);
      // A consumer that was refused sends nothing; one that ran sends as much as it likes.
      worker_ran_ =
          worker_ran_ || call == "batch_run" || (call == "group_run" && field(outcome.result, "raises") == nullptr);
    }
    // One of those who hear a broadcast is this test.
    if (call == "broadcast" && outcome.result.is_object() && outcome.result.as_object().contains("ok"))
      outcome.result.at("ok") = integer_of(outcome.result.at("ok")) - 1;
    check_result(step, outcome);
  }

  /// Ids are 14 bytes of their own alphabet, wherever they stand; in a frame the value follows at once.
  [[nodiscard]] static std::set<std::string> ids_in(const std::string& text) {
    static const std::regex kId("\\b[A-Z]{3}[0-9A-Za-z]{11}");
    std::set<std::string> ids;
    for (std::sregex_iterator at(text.begin(), text.end(), kId), end; at != end; ++at)
      ids.insert(at->str());
    return ids;
  }

  /// `<minted:n>` stands for the n-th id that this runtime mints: bound at the first step that names it, to the ids in
  /// the state that the history does not have, in their order, which is mint order.
  void bind_minted(const json::value& step) {
    static const std::regex kMark("<minted:([0-9]+)>");
    const std::string text = json::serialize(step);
    std::set<std::size_t> unbound;
    for (std::sregex_iterator at(text.begin(), text.end(), kMark), end; at != end; ++at) {
      if (!minted_.contains(std::stoul((*at)[1])))
        unbound.insert(std::stoul((*at)[1]));
    }
    if (unbound.empty())
      return;
    std::set<std::string> fresh = ids_in(json::serialize(dump(raw_, extensions_)));
    for (auto id = fresh.begin(); id != fresh.end();)
      id = known_ids_.contains(*id) ? fresh.erase(id) : std::next(id);
    for (const std::size_t n : unbound) {
      if (fresh.empty())
        return differ("no id was minted for <minted:" + std::to_string(n) + ">");
      if (const auto id = BrandedId::parse(*fresh.begin()); !id || !is_minted_brand(id->brand()))
        differ("minted " + *fresh.begin());
      if (!minted_.empty() && *fresh.begin() <= minted_.rbegin()->second)
        differ(*fresh.begin() + " was minted after " + minted_.rbegin()->second);
      known_ids_.insert(*fresh.begin());
      minted_[n] = *fresh.begin();
      fresh.erase(fresh.begin());
    }
  }
  /// Receipts stand in the result itself: bound there, so that the state is compared with them.
  void bind_receipts(const json::value& expected, const json::value& actual) {
    if (const json::array* list = expected.if_array()) {
      for (std::size_t i = 0; i < list->size() && actual.is_array() && i < actual.as_array().size(); ++i)
        bind_receipts((*list)[i], actual.at(i));
    } else if (const json::object* object = expected.if_object()) {
      for (const auto& [name, value] : *object) {
        if (const json::value* place = field(actual, name))
          bind_receipts(value, *place);
      }
    } else if (expected.is_string() && expected.as_string().starts_with("<minted:")) {
      const std::size_t n = std::stoul(std::string(expected.as_string()).substr(8));
      const auto id = EventId::parse(text_of(actual));
      if (!minted_.contains(n) && id && (minted_.empty() || minted_.rbegin()->second < id->text())) {
        minted_[n] = std::string(id->text());
        known_ids_.emplace(id->text());
      }
    }
  }
  /// Jobs and records, and the kinds of the history's cache tables.
  [[nodiscard]] bool is_minted_brand(std::string_view brand) const {
    if (brand == "JOB" || brand == "EVT")
      return true;
    const json::array& steps = history_.at("steps").as_array();
    return std::any_of(steps.begin(), steps.end(), [&](const json::value& step) {
      const json::value* kind = field(step.at("args"), "kind");
      return kind != nullptr && text_of(*kind) == brand;
    });
  }
  /// The text with the bound ids in the places of their names; `<entry:n>` is the stream entry of the n-th.
  [[nodiscard]] std::string with_minted(std::string text) const {
    const auto put = [&text](const std::string& mark, std::string_view value) {
      for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + value.size()))
        text.replace(at, mark.size(), value);
    };
    for (const auto& [n, id] : minted_) {
      put("<minted:" + std::to_string(n) + ">", id);
      if (const auto event = EventId::parse(id))
        put("<entry:" + std::to_string(n) + ">", event->entry_id().text());
    }
    return text;
  }

  /// A script of that role, with exactly these keys and arguments.
  void eval(const json::value& step, const json::object& args) {
    const auto texts = [&](std::string_view name) {
      std::vector<std::string> list;
      for (const json::value& part : args.at(name).as_array())
        list.push_back(text_of(part));
      return list;
    };
    const std::vector<std::string> keys = texts("keys");
    const std::vector<std::string> arguments = texts("argv");
    const auto reply = subject_
                           .eval(text_of(args.at("script")), std::vector<std::string_view>(keys.begin(), keys.end()),
                                 std::vector<std::string_view>(arguments.begin(), arguments.end()))
                           .get();
    const json::value said = reply ? to_json(*reply) : json::value(nullptr);
    if (!same(step.at("reply"), said))
      differ("reply is " + json::serialize(said) + ", not " + json::serialize(step.at("reply")));
    check_error(step, reply ? std::string() : reply.error().text);
  }

  /// Stores a version or deletes it, connects, and tells what is stored then.
  [[nodiscard]] json::value fence(const json::value& stored) {
    if (stored.is_null()) {
      ask(raw_, {"DEL", "{emq}:version"});
    } else {
      ask(raw_, {"SET", "{emq}:version", text_of(stored)});
    }
    const auto client = Client::open(url_, {.node_lease = NodeLease::never});
    json::array result;
    if (client) {
      result.push_back("connected");
    } else if (client.error().is(Errc::version_mismatch)) {
      result.push_back(json::object{{"error", json::array{"version_fence", stored}}});
    } else {
      result.push_back(json::string(client.error().message()));
    }
    result.push_back(to_json(ask(raw_, {"GET", "{emq}:version"})));
    return result;
  }

  /// The first word of `{"error": {"server": text}}`: the rest of such a text is the server's own affair.
  [[nodiscard]] static std::optional<std::string> server_error(const json::value& result) {
    const json::value* error = field(result, "error");
    const json::value* server = error != nullptr ? field(*error, "server") : nullptr;
    if (server == nullptr)
      return std::nullopt;
    const std::string text = text_of(*server);
    return text.substr(0, text.find(' '));
  }

  void check_result(const json::value& step, const Outcome& outcome) {
    const json::value& expected = step.at("result");
    const json::value* remaining = nullptr;
    if (const json::value* value = field(expected, "ok"))
      remaining = field(*value, "remaining_of_ms");
    bool agrees = false;
    if (field(expected, "raises") != nullptr) {
      agrees = field(outcome.result, "raises") != nullptr;
    } else if (remaining != nullptr) {
      const json::value* actual = field(outcome.result, "ok");
      const std::int64_t most = integer_of(*remaining);
      agrees = actual != nullptr && integer_of(*actual) <= most && integer_of(*actual) > most - 5000;
    } else if (const auto class_of_error = server_error(expected)) {
      agrees = server_error(outcome.result) == class_of_error;
    } else {
      bind_receipts(expected, outcome.result);
      agrees = same(json::parse(with_minted(json::serialize(expected))), outcome.result);
    }
    if (!agrees)
      differ("result is " + json::serialize(outcome.result) + ", not " + json::serialize(expected));

    check_error(step, outcome.error_text);
  }

  void check_error(const json::value& step, const std::string& actual) {
    const json::value* error = field(step, "error");
    if (error == nullptr || error->is_null())
      return;
    const std::string text = text_of(*error);
    const bool by_letter = text.starts_with("EMQ");
    const auto first_word = [](const std::string& sentence) { return sentence.substr(0, sentence.find(' ')); };
    if (by_letter ? actual != text : first_word(actual) != first_word(text)) {
      differ("error text is '" + actual + "', not '" + text + "'");
    }
  }

  void check_published(const json::value& step) {
    const json::array heard = ears_->take();
    const json::value* expected = field(step, "published");
    const json::array wanted = expected != nullptr ? expected->as_array() : json::array();
    const auto agrees = [](const json::value& a, const json::value& b) {
      if (a.at("channel") != b.at("channel"))
        return false;
      boost::system::error_code failed;
      const json::value left = json::parse(text_of(a.at("message")), failed);
      if (failed)
        return a.at("message") == b.at("message");
      const json::value right = json::parse(text_of(b.at("message")), failed);
      return !failed && left == right;
    };
    if (!std::equal(wanted.begin(), wanted.end(), heard.begin(), heard.end(), agrees)) {
      differ("published " + json::serialize(heard) + ", not " + json::serialize(wanted));
    }
  }

  void check_state() {
    const std::int64_t before = server_time(raw_);
    const json::object actual = dump(raw_, extensions_);
    const std::int64_t after = server_time(raw_);
    for (const auto& [key, entry] : actual) {
      if (is_free(key))
        continue;
      if (!expected_.contains(key))
        differ("key " + std::string(key) + " is too much: " + json::serialize(entry));
    }
    for (const auto& [key, wanted] : expected_) {
      if (is_free(key))
        continue;
      const json::value* entry = actual.if_contains(key);
      if (entry == nullptr) {
        differ("key " + std::string(key) + " is missing");
      } else if (wanted.at("type") != entry->at("type") || !agrees(wanted, *entry) ||
                 !expires_alike(wanted, *entry, before, after)) {
        differ("key " + std::string(key) + " is " + json::serialize(*entry) + ", not " + json::serialize(wanted));
      }
    }
  }

  /// Wake tokens are hints: how many are left after a worker ran is its own affair.
  [[nodiscard]] bool is_free(std::string_view key) const { return worker_ran_ && key.ends_with(":wake"); }

  [[nodiscard]] bool agrees(const json::value& wanted, const json::value& entry) {
    const std::string type = text_of(wanted.at("type"));
    if (type == "stream") {
      const auto groups = [](const json::value& of) {
        const json::value* list = field(of, "groups");
        return list != nullptr ? *list : json::value(json::array());
      };
      return same(wanted.at("value"), entry.at("value")) && same(groups(wanted), groups(entry));
    }
    if (type != "zset")
      return same(wanted.at("value"), entry.at("value"));
    const json::array& members = wanted.at("value").as_array();
    std::map<std::string, double> scores;
    for (const json::value& one : entry.at("value").as_array())
      scores[text_of(one.at(0))] = *number_of(one.at(1));
    if (scores.size() != members.size())
      return false;
    return std::all_of(members.begin(), members.end(), [&](const json::value& member) {
      const auto found = scores.find(text_of(member.at(0)));
      return found != scores.end() && score_agrees(member.at(1), found->second);
    });
  }

  [[nodiscard]] bool score_agrees(const json::value& wanted, double score) const {
    const json::value* plus = field(wanted, "now_plus");
    if (plus == nullptr)
      return number_of(wanted) == score;
    const Times& set = times_of(wanted);
    const auto offset = static_cast<double>(integer_of(*plus));
    return score >= static_cast<double>(set.before) + offset && score <= static_cast<double>(set.after) + offset;
  }

  [[nodiscard]] bool expires_alike(const json::value& wanted, const json::value& entry, std::int64_t before,
                                   std::int64_t after) const {
    const json::value* ttl = field(wanted, "ttl");
    const json::value* left = field(entry, "ttl_ms");
    if (ttl == nullptr || left == nullptr)
      return ttl == nullptr && left == nullptr;
    const Times& set = times_of(*ttl);
    const std::int64_t span = integer_of(ttl->at("ms"));
    const std::int64_t rest = integer_of(*left);
    constexpr std::int64_t kSlack = 5;
    return after + rest >= set.before + span - kSlack && before + rest <= set.after + span + kSlack;
  }

  [[nodiscard]] const Times& times_of(const json::value& instant) const {
    const json::value* step = field(instant, "step");
    return step == nullptr ? times_.back() : times_.at(step->to_number<std::size_t>());
  }

  std::string url_;
  const json::value& history_;
  Client subject_;
  Client raw_;
  Extensions extensions_;
  std::set<std::size_t> repaired_;
  std::optional<Ears> ears_;
  std::size_t index_ = 0;
  bool worker_ran_ = false;
  LockHand lock_hand_;
  std::set<std::string> known_ids_;
  std::map<std::size_t, std::string> minted_;
  std::vector<Times> times_;
  json::object expected_;
  std::vector<std::string> differences_;
};

}  // namespace

std::string golden_folder() {
  if (const char* named = std::getenv("ECHOMQ_GOLDEN_DIR"); named != nullptr && *named != '\0')
    return named;
  std::error_code ignored;
  for (const fs::directory_entry& beside : fs::directory_iterator(fs::path(ECHOMQ_SOURCE_DIR) / "..", ignored)) {
    const fs::path folder = beside.path() / "golden";
    if (fs::is_directory(folder / "queue", ignored))
      return folder.string();
  }
  return {};
}

std::vector<std::string> golden_histories(const std::vector<std::string>& areas) {
  std::vector<std::string> names;
  const fs::path folder = golden_folder();
  if (folder.empty())
    return names;
  for (const std::string& area : areas) {
    std::error_code ignored;
    for (const fs::directory_entry& file : fs::directory_iterator(folder / area, ignored)) {
      if (file.path().extension() == ".json")
        names.push_back(area + "/" + file.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> missing_verb(const json::value& history) {
  for (const json::value& step : history.at("steps").as_array()) {
    std::string call = text_of(step.at("call"));
    if (is_missing(call))
      return call;
  }
  return std::nullopt;
}

std::optional<std::string> unmet_need(const std::string& url, const json::value& history) {
  const json::value* needs = field(history, "needs");
  if (needs == nullptr)
    return std::nullopt;
  const Client client = connect(url, {.node_lease = NodeLease::never});
  const bool met = text_of(*needs).starts_with("server without HPEXPIRE") && !has_command(client, "HPEXPIRE");
  return met ? std::nullopt : std::optional(text_of(*needs));
}

std::vector<std::string> replay(const std::string& url, const json::value& history) {
  constexpr int kTries = 5;
  for (int left = kTries - 1;; --left) {
    Replay replay(url, history);
    std::vector<std::string> differences = replay.run();
    if (differences.empty() || !replay.was_slow())
      return differences;
    if (left == 0) {
      differences.emplace_back("and each of " + std::to_string(kTries) +
                               " tries took longer than the history's waits allow");
      return differences;
    }
  }
}

}  // namespace echomq::conformance
