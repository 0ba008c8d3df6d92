// Reads of a whole queue: depths, counters, limits.
#include <array>
#include <utility>

#include "queue/join.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;
using std::string_view;

/// Groups of one `lane_counts` script.
constexpr std::size_t kLanesChunk = 1000;

[[nodiscard]] Result<std::vector<std::int64_t>> read_integers(string_view verb, const resp::View& list,
                                                              std::size_t expected) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(expected);
  for (const resp::View& item : list.elements()) {
    const auto number = item.as_integer();
    if (!number)
      return unexpected_reply(verb, item);
    numbers.push_back(*number);
  }
  if (numbers.size() != expected)
    return unexpected_reply(verb, list);
  return numbers;
}

/// A counter that is absent is 0; one that is no number is told, not taken for 0.
[[nodiscard]] Result<std::int64_t> read_counter(string_view verb, const Value& value) {
  if (value.is_null())
    return 0;
  if (const auto number = value.as_integer())
    return *number;
  return fail(Errc::protocol_error, fmt::format("{}: not a number: {}", verb, value.to_string()));
}

/// Where a name of `counts_of` is counted: a set, or a field of the metrics.
struct Counted {
  string_view name;
  const std::string& (keyspace::QueueKeys::*set)() const noexcept = nullptr;
};
constexpr std::array kCounted = {
    Counted{"pending", &keyspace::QueueKeys::pending},
    Counted{"active", &keyspace::QueueKeys::active},
    Counted{"schedule", &keyspace::QueueKeys::schedule},
    Counted{"dead", &keyspace::QueueKeys::dead},
    Counted{"completed"},
    Counted{"failed"},
};

}  // namespace

Reply<QueueCounts> Queue::counts() const {
  const keyspace::QueueKeys& keys = state_->keys;
  return state_->core->eval<QueueCounts>(
      state_->scripts.counts, views(keys.base(), keys.pending(), keys.active(), keys.schedule(), keys.dead()),
      views(string_view("completed"), string_view("failed")), settings(Repeat::safe),
      [](const wire::Answer& answer) -> Result<QueueCounts> {
        ECHOMQ_TRY(const std::vector<std::int64_t> n, read_integers("counts", answer.view, 6));
        return QueueCounts{
            .pending = n[0], .active = n[1], .scheduled = n[2], .dead = n[3], .completed = n[4], .failed = n[5]};
      });
}

Reply<std::vector<std::int64_t>> Queue::counts_of(std::span<const string_view> names) const {
  const keyspace::QueueKeys& keys = state_->keys;
  std::vector<string_view> sets = {keys.base()};
  std::vector<string_view> metrics;
  std::vector<bool> is_set;
  for (const string_view name : names) {
    const Counted* counted = nullptr;
    for (const Counted& candidate : kCounted) {
      if (candidate.name == name)
        counted = &candidate;
    }
    if (counted == nullptr) {
      return fail(Errc::unknown_state, fmt::format("'{}' is not one of pending, active, schedule, dead, completed, "
                                                   "failed",
                                                   name.substr(0, 64)));
    }
    is_set.push_back(counted->set != nullptr);
    if (is_set.back()) {
      sets.push_back((keys.*counted->set)());
    } else {
      metrics.push_back(name);
    }
  }
  if (names.empty())
    return Result<std::vector<std::int64_t>>(std::vector<std::int64_t>());
  return state_->core->eval<std::vector<std::int64_t>>(
      state_->scripts.counts, sets, metrics, settings(Repeat::safe),
      [is_set = std::move(is_set)](const wire::Answer& answer) -> Result<std::vector<std::int64_t>> {
        // The script answers the sets first.
        ECHOMQ_TRY(const std::vector<std::int64_t> numbers, read_integers("counts_of", answer.view, is_set.size()));
        std::vector<std::int64_t> in_order;
        std::size_t set = 0;
        auto metric = static_cast<std::size_t>(std::count(is_set.begin(), is_set.end(), true));
        for (const bool one : is_set)
          in_order.push_back(numbers[one ? set++ : metric++]);
        return in_order;
      });
}

Reply<std::int64_t> Queue::pending_size() const {
  return state_->core->command<std::int64_t>(views(string_view("ZCARD"), state_->keys.pending()),
                                             settings(Repeat::safe), decode_integer("pending_size"));
}

Reply<std::vector<JobId>> Queue::browse(std::uint32_t count) const {
  ECHOMQ_CHECK(check_limit("count", count));
  const Decimal count_text(count);
  return state_->core->command<std::vector<JobId>>(
      views(string_view("ZRANGE"), state_->keys.pending(), string_view("+"), string_view("-"), string_view("BYLEX"),
            string_view("REV"), string_view("LIMIT"), string_view("0"), count_text),
      settings(Repeat::safe), [](const wire::Answer& answer) { return read_ids("browse", answer.view); });
}

Reply<bool> Queue::paused() const {
  return state_->core->command<bool>(views(string_view("HEXISTS"), state_->keys.meta(), string_view("paused")),
                                     settings(Repeat::safe), [](const wire::Answer& answer) -> Result<bool> {
                                       if (const auto paused = answer.view.as_bool())
                                         return *paused;
                                       return unexpected_reply("paused", answer.view);
                                     });
}

Reply<MetricValue> Queue::metric(Metric metric) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const bool completed = metric == Metric::completed;
  auto* join = make_join<MetricValue>(2, [](std::span<Value> answers) -> Result<MetricValue> {
    MetricValue value;
    ECHOMQ_TRY(value.count, read_counter("metric", answers[0]));
    ECHOMQ_TRY(value.data_points, read_counter("metric", answers[1]));
    return value;
  });
  const wire::CallSettings how = settings(Repeat::safe);
  join->ask(
      *state_->core, 0,
      views(string_view("HGET"), completed ? keys.metrics_completed() : keys.metrics_failed(), string_view("count")),
      nullptr, how);
  join->ask(*state_->core, 1,
            views(string_view("LLEN"), completed ? keys.metrics_completed_data() : keys.metrics_failed_data()), nullptr,
            how);
  return join->started();
}

Reply<void> Queue::check_concurrency() const {
  const keyspace::QueueKeys& keys = state_->keys;
  return state_->core->eval<void>(state_->scripts.is_maxed, views(keys.meta(), keys.active()), {},
                                  settings(Repeat::safe), [](const wire::Answer& answer) -> Result<void> {
                                    if (answer.view.as_integer() == 0)
                                      return {};
                                    return unexpected_reply("check_concurrency", answer.view);
                                  });
}

Reply<Milliseconds> Queue::rate_limit_ttl(std::uint64_t max_jobs) const {
  if (max_jobs > static_cast<std::uint64_t>(kMaxExact)) {
    return fail(Errc::invalid_argument, fmt::format("max_jobs must be at most {}, got {}", kMaxExact, max_jobs));
  }
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal max_text(max_jobs);
  return state_->core->eval<Milliseconds>(state_->scripts.rate_ttl, views(keys.limiter(), keys.meta()), views(max_text),
                                          settings(Repeat::safe),
                                          [](const wire::Answer& answer) -> Result<Milliseconds> {
                                            if (const auto ms = answer.view.as_integer())
                                              return Milliseconds(*ms);
                                            return unexpected_reply("rate_limit_ttl", answer.view);
                                          });
}

Reply<std::int64_t> Queue::global_rate_limit() const {
  return state_->core->command<std::int64_t>(
      views(string_view("HGET"), state_->keys.meta(), string_view("max")), settings(Repeat::safe),
      [](const wire::Answer& answer) { return read_counter("global_rate_limit", resp::to_value(answer.view)); });
}

Reply<std::int64_t> Queue::lane_depth(LaneId lane) const {
  const keyspace::KeyText key = state_->keys.lane(lane);
  return state_->core->command<std::int64_t>(views(string_view("ZCARD"), key), settings(Repeat::safe),
                                             decode_integer("lane_depth"));
}

Reply<std::vector<std::int64_t>> Queue::lane_depths(std::span<const LaneId> lanes) const {
  if (lanes.empty())
    return Result<std::vector<std::int64_t>>(std::vector<std::int64_t>());
  const keyspace::QueueKeys& keys = state_->keys;
  const script::ScriptSource& script = state_->scripts.lane_counts;
  const std::size_t chunks = (lanes.size() + kLanesChunk - 1) / kLanesChunk;
  auto* join = make_join<std::vector<std::int64_t>>(
      chunks, [expected = lanes.size()](std::span<Value> parts) -> Result<std::vector<std::int64_t>> {
        std::vector<std::int64_t> depths;
        for (const Value& part : parts) {
          for (const Value& depth : part.items())
            depths.push_back(depth.as_integer().value_or(-1));
        }
        if (depths.size() == expected)
          return depths;
        return fail(Errc::protocol_error, fmt::format("lane_depths: {} depths of {} lanes", depths.size(), expected));
      });
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t first = chunk * kLanesChunk;
    std::vector<string_view> arguments = {keys.base()};
    for (const LaneId& lane : lanes.subspan(first, std::min(kLanesChunk, lanes.size() - first))) {
      arguments.push_back(lane.text());
    }
    const ScriptParts parts(script, views(keys.base()), arguments);
    join->ask(*state_->core, chunk, parts.parts(), &script, settings(Repeat::safe));
  }
  return join->started();
}

}  // namespace v1
}  // namespace echomq
