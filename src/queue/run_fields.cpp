// How a job is run, checked and as names and values of its row.
#include "queue/run_fields.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "queue/backoff_text.hpp"
#include "queue/checks.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

/// `00-<trace id>-<parent id>-<flags>` in lowercase hex, of a version of that length; all zeros is no id.
[[nodiscard]] bool is_traceparent(std::string_view text) noexcept {
  constexpr std::string_view kShape = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (text.size() != kShape.size())
    return false;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const char byte = text[i];
    const bool hex = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
    if (kShape[i] == '-' ? byte != '-' : !hex)
      return false;
  }
  const auto is_zero = [](std::string_view id) { return id.find_first_not_of('0') == std::string_view::npos; };
  return text.substr(0, 2) != "ff" && !is_zero(text.substr(3, 32)) && !is_zero(text.substr(36, 16));
}

}  // namespace

Result<void> check_run(const RunOptions& run, std::optional<Milliseconds> in) {
  if (run.max_attempts)
    ECHOMQ_CHECK(check_limit("max_attempts", *run.max_attempts));
  if (!run.backoff.empty())
    ECHOMQ_CHECK(parse_backoff(run.backoff));
  if (run.timeout)
    ECHOMQ_CHECK(check_period("timeout", *run.timeout));
  if (run.expire) {
    ECHOMQ_CHECK(check_period("expire", *run.expire));
    if (in && *in >= *run.expire) {
      return fail(Errc::invalid_argument, fmt::format("expire must be more than in, got expire {}ms and in {}ms",
                                                      run.expire->count(), in->count()));
    }
  }
  if (run.keep)
    ECHOMQ_CHECK(check_period("keep", *run.keep));
  if (!run.traceparent.empty() && !is_traceparent(run.traceparent)) {
    return fail(
        Errc::invalid_argument,
        fmt::format("traceparent must be 00-<32 hex digits>-<16>-<2> in lower case, got {:.80}", run.traceparent));
  }
  return {};
}

void RunFields::set(const RunOptions& run) {
  size_ = 0;
  std::size_t number = 0;
  const auto add_number = [&](std::string_view name, auto value) {
    numbers_[number] = Decimal(value);
    add(name, numbers_[number]);
    ++number;
  };
  if (run.max_attempts)
    add_number("max_attempts", *run.max_attempts);
  if (!run.backoff.empty())
    add("backoff", run.backoff);
  if (run.timeout)
    add_number("timeout", *run.timeout);
  if (run.expire)
    add_number("expire", *run.expire);
  if (run.keep)
    add_number("keep", *run.keep);
  if (!run.traceparent.empty())
    add("traceparent", run.traceparent);
}

void RecordTail::set(const std::optional<LaneId>& lane, std::optional<Instant> at, std::optional<Milliseconds> in,
                     const RunOptions& run) {
  fields_.set(run);
  value_ = in ? Decimal(*in) : at ? Decimal(*at) : Decimal(0);
  const std::span<const std::string_view> fields = fields_.parts();
  count_ = Decimal(fields.size() / 2);
  parts_[0] = lane ? lane->text() : std::string_view();
  parts_[1] = in ? "in" : at ? "at" : "";
  parts_[2] = value_;
  parts_[3] = count_;
  std::copy(fields.begin(), fields.end(), parts_.begin() + kHead);
  size_ = kHead + fields.size();
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
