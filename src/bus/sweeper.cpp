// The loop that applies retention policies, and shares the work with its like on other hosts.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "bus/checks.hpp"
#include "bus/retention.hpp"
#include "bus/state.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;

/// Names of one call of `retention_take`.
constexpr std::size_t kNamesACall = 400;
/// Streams that are swept at the same time: each waits for its own answers only.
constexpr std::size_t kStreamsAtOnce = 256;

/// A queue's policies as they stand on the server.
using Stored = std::vector<std::pair<std::string, std::string>>;

[[nodiscard]] Result<Stored> read_stored(const wire::Answer& answer) {
  Stored out;
  if (!answer.view.is_aggregate())
    return unexpected_reply("sweeper", answer.view);
  for (const auto& [name, policy] : answer.view.pairs()) {
    auto stream = name.copy_text();
    auto text = policy.copy_text();
    if (!stream || !text)
      return unexpected_reply("sweeper", answer.view);
    out.emplace_back(*std::move(stream), *std::move(text));
  }
  return out;
}

[[nodiscard]] Result<std::vector<bool>> read_turns(const wire::Answer& answer) {
  std::vector<bool> turns;
  if (!answer.view.is_aggregate())
    return unexpected_reply("sweeper", answer.view);
  for (const resp::View& one : answer.view.elements())
    turns.push_back(one.as_integer().value_or(0) == 1);
  return turns;
}

}  // namespace

class StreamSweeper::Loop {
 public:
  Loop(std::shared_ptr<client::Core> core, std::vector<StreamPolicy> policies, StreamSweeperOptions options)
      : core_(std::move(core)), options_(std::move(options)) {
    for (StreamPolicy& one : policies) {
      const Stream::State& state = one.stream.internal();
      queues_[std::string(state.queue.text())].in_code.insert_or_assign(std::string(state.name.text()), std::move(one));
    }
    for (const QueueName& name : options_.queues)
      queues_[std::string(name.text())].from_server = true;
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() { stop(); }

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable())
      thread_.join();
  }
  [[nodiscard]] StreamSweeperStats stats() const {
    return {.rounds = rounds_.load(),
            .swept = swept_.load(),
            .removed = removed_.load(),
            .held = held_.load(),
            .errors = errors_.load()};
  }

 private:
  struct OfQueue {
    std::map<std::string, StreamPolicy> in_code;
    bool from_server = false;
  };
  struct Due {
    Stream stream;
    RetentionPolicy policy;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      const auto begin = detail::Clock::now();
      round();
      rounds_.fetch_add(1);
      lock.lock();
      changed_.wait_until(lock, begin + options_.period, [this] { return stopping_; });
    }
  }
  [[nodiscard]] bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  void round() {
    std::vector<Due> candidates = gather();
    std::vector<Due> due = take(std::move(candidates));
    for (std::size_t at = 0; at < due.size() && !stopping(); at += kStreamsAtOnce) {
      std::vector<Reply<Retained>> sent;
      const std::size_t end = std::min(due.size(), at + kStreamsAtOnce);
      for (std::size_t i = at; i < end; ++i)
        sent.push_back(retain(due[i].stream, due[i].policy));
      for (std::size_t i = at; i < end; ++i) {
        const auto done = sent[i - at].get();
        swept_.fetch_add(1);
        if (!succeeded(done, "sweep", due[i].stream.queue().text(), due[i].stream.name()))
          continue;
        removed_.fetch_add(done->removed);
        held_.fetch_add(done->held_by == HeldBy::nothing ? 0 : 1);
      }
    }
  }

  /// Every policy, those of the server in place of those of the code.
  [[nodiscard]] std::vector<Due> gather() {
    std::vector<std::pair<const std::string*, Reply<Stored>>> asked;
    for (const auto& [name, queue] : queues_) {
      if (!queue.from_server)
        continue;
      const keyspace::QueueKeys keys(*QueueName::parse(name));
      asked.emplace_back(&name, core_->command<Stored>(parts(string_view("HGETALL"), keys.retention()),
                                                       settings(Repeat::safe), read_stored));
    }
    std::map<std::string, std::map<std::string, Due>> all;
    for (const auto& [name, queue] : queues_) {
      for (const auto& [stream, one] : queue.in_code)
        all[name].insert_or_assign(stream, Due{one.stream, one.policy});
    }
    for (auto& [name, reply] : asked) {
      const auto stored = reply.get();
      if (!succeeded(stored, "policies", *name)) {
        // What the fleet has said is not known: what the code says might remove too much.
        all.erase(*name);
        continue;
      }
      for (const auto& [stream, text] : *stored) {
        const auto parsed = StreamName::parse(stream);
        auto policy = RetentionPolicy::parse(text);
        const Result<void> sound =
            parsed && policy ? Result<void>() : std::unexpected(parsed ? policy.error() : parsed.error());
        if (!succeeded(sound, "policy", *name, stream)) {
          all[*name].erase(stream);
          continue;
        }
        const auto state = std::make_shared<const Stream::State>(*QueueName::parse(*name), *parsed, core_);
        all[*name].insert_or_assign(stream, Due{Stream(state), *std::move(policy)});
      }
    }
    std::vector<Due> out;
    for (auto& [name, streams] : all) {
      for (auto& [stream, due] : streams)
        out.push_back(std::move(due));
    }
    return out;
  }

  /// Those whose turn it is here. The candidates stand queue by queue.
  [[nodiscard]] std::vector<Due> take(std::vector<Due> candidates) {
    static const script::ScriptSource* const script = script::find_script("retention_take");
    // A little less than a period: two rounds of one sweeper are never quite a period apart.
    const Decimal period(std::max<std::int64_t>(1, options_.period.count() * 7 / 8));
    std::vector<std::pair<std::size_t, Reply<std::vector<bool>>>> asked;
    for (std::size_t at = 0; at < candidates.size();) {
      const Stream::State& first = candidates[at].stream.internal();
      std::vector<string_view> arguments = {period};
      std::size_t end = at;
      while (end < candidates.size() && end - at < kNamesACall &&
             candidates[end].stream.internal().queue.text() == first.queue.text()) {
        arguments.push_back(candidates[end++].stream.name());
      }
      const keyspace::QueueKeys keys(first.queue);
      asked.emplace_back(at, core_->eval<std::vector<bool>>(*script, parts(keys.retention_swept()), arguments,
                                                            settings(Repeat::unsafe), read_turns));
      at = end;
    }
    std::vector<Due> due;
    for (auto& [at, reply] : asked) {
      const auto turns = reply.get();
      if (!succeeded(turns, "turns", candidates[at].stream.queue().text()))
        continue;
      for (std::size_t i = 0; i < turns->size() && at + i < candidates.size(); ++i) {
        if ((*turns)[i])
          due.push_back(std::move(candidates[at + i]));
      }
    }
    return due;
  }

  /// Tells an error once in a row: of the same deed (`what`) on the same stream, or on the whole queue.
  template <typename T>
  [[nodiscard]] bool succeeded(const Result<T>& result, string_view what, string_view queue, string_view stream = {}) {
    if (result && last_errors_.empty())
      return true;
    std::string deed = fmt::format("{} {} {}", what, queue, stream);
    if (result) {
      last_errors_.erase(deed);
      return true;
    }
    errors_.fetch_add(1);
    std::string text = result.error().message();
    std::string& last = last_errors_[deed];
    if (options_.log && last != text) {
      const LogField fields[] = {{"queue", queue}, {"stream", stream.empty() ? queue : stream}, {"text", text}};
      options_.log(LogLevel::warning, "stream.sweep_failed", fields);
    }
    last = std::move(text);
    if (last_errors_.size() > 1000)
      last_errors_.clear();
    return false;
  }

  const std::shared_ptr<client::Core> core_;
  const StreamSweeperOptions options_;
  std::map<std::string, OfQueue> queues_;
  std::map<std::string, std::string> last_errors_;  // the loop's own

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::mutex join_mutex_;
  std::thread thread_;
  std::atomic<std::uint64_t> rounds_{0}, swept_{0}, removed_{0}, held_{0}, errors_{0};
};

StreamSweeper::StreamSweeper(std::unique_ptr<Loop> loop) noexcept : loop_(std::move(loop)) {}
StreamSweeper::StreamSweeper(StreamSweeper&&) noexcept = default;
StreamSweeper& StreamSweeper::operator=(StreamSweeper&&) noexcept = default;
StreamSweeper::~StreamSweeper() = default;

Result<StreamSweeper> StreamSweeper::start(const Client& client, std::vector<StreamPolicy> policies,
                                           StreamSweeperOptions options) {
  if (options.period < Milliseconds(10))
    return fail(Errc::invalid_argument, fmt::format("period must be 10ms or more, got {}ms", options.period.count()));
  if (policies.empty() && options.queues.empty())
    return fail(Errc::invalid_argument, "a sweeper needs a policy, or a queue to read policies of");
  for (const StreamPolicy& one : policies) {
    if (auto sound = check_policy(one.policy); !sound)
      return fail(Errc::invalid_argument, fmt::format("policy of {}: {}", one.stream.name(), sound.error().text));
  }
  auto loop = std::make_unique<Loop>(client.core(), std::move(policies), std::move(options));
  loop->start();
  return StreamSweeper(std::move(loop));
}

void StreamSweeper::stop() { loop_->stop(); }
StreamSweeperStats StreamSweeper::stats() const { return loop_->stats(); }

}  // namespace v1
}  // namespace echomq
