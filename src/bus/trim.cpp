// Removing old records: single trims, and the sweep of a retention policy.
#include <atomic>
#include <limits>
#include <utility>

#include "bus/checks.hpp"
#include "bus/state.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;

/// XTRIM. Safe to repeat: what is gone stays gone, though the repeated call counts only what it removed itself.
/// `LIMIT 0`: without it an approximate trim stops after 10,000 entries and leaves the rest to a call that nobody makes.
template <typename Start>
[[nodiscard]] Reply<std::uint64_t> trim(const Stream::State& state, string_view strategy, Trim how, string_view bound,
                                        Start start) {
  if (how == Trim::exact)
    return start(parts(string_view("XTRIM"), state.key, strategy, string_view("="), bound));
  return start(parts(string_view("XTRIM"), state.key, strategy, string_view("~"), bound, string_view("LIMIT"),
                     string_view("0")));
}

[[nodiscard]] Reply<std::uint64_t> trim(const Stream::State& state, string_view strategy, Trim how, string_view bound) {
  return trim(state, strategy, how, bound, [&](const auto& words) {
    return state.core->command<std::uint64_t>(words, settings(Repeat::safe), decode_count("trim"));
  });
}

/// Gathers the results of a sweep; complete when its last trim is.
class Sweep final : public detail::CallOf<RetentionSweep> {
 public:
  explicit Sweep(std::size_t rules) : left_(rules) {
    sweep_.calls = rules;
    sweep_.results.resize(rules);
  }
  void accept(const resp::View&) noexcept override {}

  void set(std::size_t index, Result<std::uint64_t> result) {
    sweep_.results[index] = std::move(result);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1 || !win())
      return;
    for (const auto& one : sweep_.results)
      sweep_.trimmed += one.value_or(0);
    store(std::move(sweep_));
    publish();
  }

 private:
  void destroy() noexcept override { delete this; }

  RetentionSweep sweep_;
  std::atomic<std::size_t> left_;
};

/// One trim of a sweep.
class SweepPart final : public detail::Call {
 public:
  SweepPart(Sweep& sweep, std::size_t index, std::span<const string_view> words, std::uint16_t of_slot)
      : sweep_((sweep.retain(), &sweep)), index_(index), bytes_(resp::encoded_size(words), '\0') {
    resp::encode_to(bytes_.data(), words);
    request = bytes_.data();
    request_size = static_cast<std::uint32_t>(bytes_.size());
    slot = of_slot;
  }
  void accept(const resp::View& reply) noexcept override {
    if (reply.is_error()) {
      sweep_->set(index_, std::unexpected<Error>(wire::to_error(reply.error_text())));
    } else {
      sweep_->set(index_, decode_count("retention")(wire::Answer{reply, resent}));
    }
    publish();
  }
  void fail(Error error) noexcept override {
    sweep_->set(index_, std::unexpected<Error>(std::move(error)));
    publish();
  }

 private:
  ~SweepPart() override = default;
  void destroy() noexcept override { delete this; }

  detail::CallPointer<Sweep> sweep_;
  std::size_t index_;
  std::string bytes_;
};

/// The XTRIM bound of a window, and its strategy.
[[nodiscard]] Result<std::pair<string_view, std::string>> bound_of(const Window& window, Instant now) {
  switch (window.kind()) {
    case Window::Kind::newest: return std::pair{string_view("MAXLEN"), std::to_string(window.count())};
    case Window::Kind::since: {
      ECHOMQ_TRY(std::string bound, minid_floor(Instant(Milliseconds(window.milliseconds()))));
      return std::pair{string_view("MINID"), std::move(bound)};
    }
    case Window::Kind::last: break;
  }
  ECHOMQ_CHECK(check_span("age", Milliseconds(window.milliseconds())));
  // A span that reaches beyond 1970 keeps everything.
  const std::int64_t from = std::max<std::int64_t>(now.time_since_epoch().count() - window.milliseconds(), 0);
  ECHOMQ_TRY(std::string bound, minid_floor(Instant(Milliseconds(from))));
  return std::pair{string_view("MINID"), std::move(bound)};
}

}  // namespace

Reply<std::uint64_t> Stream::trim_to(std::uint64_t count, Trim how) const {
  // The server reads a signed number.
  if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return fail(Errc::invalid_argument, fmt::format("count must be below 2^63, got {}", count));
  return trim(*state_, "MAXLEN", how, Decimal(count));
}

Reply<std::uint64_t> Stream::trim_before(Instant instant, Trim how) const {
  ECHOMQ_TRY(const std::string floor, minid_floor(instant));
  return trim(*state_, "MINID", how, floor);
}

Reply<std::uint64_t> Stream::trim_through(EventId id, Trim how) const {
  const auto entry = parse_entry(id.entry_id());
  return trim(*state_, "MINID", how, fmt::format("{}-{}", entry->milliseconds, entry->tail + 1));
}

Reply<RetentionSweep> sweep_retention(std::span<const RetentionRule> rules, std::optional<Instant> now) {
  if (rules.empty())
    return Result<RetentionSweep>(RetentionSweep());
  const Instant at = now.value_or(std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now()));
  ECHOMQ_CHECK(check_instant("now", at));
  // All bounds before the first trim: a bad rule refuses the whole sweep.
  std::vector<std::pair<string_view, std::string>> bounds;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    auto bound = bound_of(rules[i].window, at);
    if (!bound) {
      return fail(Errc::invalid_argument,
                  fmt::format("rule {} of stream {}: {}", i, rules[i].stream.name(), bound.error().text));
    }
    if (rules[i].window.count() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(Errc::invalid_argument, fmt::format("rule {} of stream {}: count must be below 2^63, got {}", i,
                                                      rules[i].stream.name(), rules[i].window.count()));
    }
    bounds.push_back(*std::move(bound));
  }
  auto* sweep = new Sweep(rules.size());
  sweep->source = rules.front().stream.internal().core->source();
  sweep->default_target = rules.front().stream.internal().core->continuations();
  detail::CallPointer<detail::CallOf<RetentionSweep>> mine(sweep);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Stream::State& state = rules[i].stream.internal();
    const auto submit = [&](const auto& words) {
      state.core->submit(new SweepPart(*sweep, i, words, state.slot), settings(Repeat::safe));
      return Reply<std::uint64_t>(Result<std::uint64_t>(0));
    };
    (void)trim(state, bounds[i].first, rules[i].window.how(), bounds[i].second, submit);
  }
  return Reply<RetentionSweep>(std::move(mine));
}

}  // namespace v1
}  // namespace echomq
