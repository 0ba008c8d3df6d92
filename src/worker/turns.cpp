// Fair turns between lanes and the flat set.
#include "worker/turns.hpp"

#include <algorithm>

namespace echomq {
inline namespace v1 {
namespace worker {
namespace {
constexpr std::size_t kFirstWindow = 2;
constexpr std::size_t kLargestWindow = 1024;
}  // namespace

Source Turns::send(Source source, TimePoint now) {
  State& asked = state(source);
  asked.in_flight += 1;
  asked.passed_over = 0;
  asked.asked = now;
  last_ = source;
  return source;
}

std::optional<Source> Turns::next(TimePoint now) {
  if (in_flight() >= window_)
    return std::nullopt;
  const Source turn = other(last_);
  State& its = state(turn);
  State& others = state(last_);
  if (its.dry && others.dry)
    return std::nullopt;
  if (!its.dry && !others.dry)
    return send(turn, now);

  const Source full = its.dry ? last_ : turn;
  const Source dry = other(full);
  State& passed = state(dry);
  // One probe at a time is enough to learn whether it is still dry, and never two without a claim of the other between.
  if (last_ != dry && passed.in_flight == 0 &&
      (passed.passed_over >= kPassOver || now - passed.asked >= kPassOverFor)) {
    return send(dry, now);
  }
  passed.passed_over += 1;
  return send(full, now);
}

void Turns::answered(Source source, bool job, TimePoint now) {
  State& its = state(source);
  its.in_flight -= 1;
  its.dry = !job;
  if (job) {
    gave_ = source;
    window_ = std::min(window_ + 1, kLargestWindow);
  } else {
    its.asked = now;
    if (dry())
      window_ = kFirstWindow;
  }
}

void Turns::failed(Source source) {
  state(source).in_flight -= 1;
  window_ = kFirstWindow;
}

void Turns::refresh() {
  if (dry())
    last_ = other(gave_);
  for (State& its : sources_)
    its.dry = false;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
