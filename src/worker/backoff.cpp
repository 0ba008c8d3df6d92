// How long a failed job waits before its next run.
#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "echomq/worker.hpp"
#include "queue/backoff_text.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

[[nodiscard]] std::mt19937_64& random_engine() {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  return engine;
}

[[nodiscard]] std::int64_t doubled(std::int64_t base, std::int64_t cap, std::uint64_t attempt) {
  std::int64_t wait = base;
  for (std::uint64_t step = 1; step < attempt && wait < cap; ++step) {
    if (wait > std::numeric_limits<std::int64_t>::max() / 2)
      return cap;
    wait *= 2;
  }
  return std::min(wait, cap);
}

}  // namespace

Backoff Backoff::fixed(Milliseconds wait) {
  Backoff backoff;
  backoff.kind_ = Kind::fixed;
  backoff.base_ = wait;
  return backoff;
}

Backoff Backoff::exponential(Milliseconds base, Milliseconds cap) {
  Backoff backoff;
  backoff.kind_ = Kind::exponential;
  backoff.base_ = base;
  backoff.cap_ = cap;
  return backoff;
}

Result<Backoff> Backoff::parse(std::string_view text) {
  ECHOMQ_TRY(const queue::BackoffText parsed, queue::parse_backoff(text));
  Backoff backoff = parsed.exponential ? exponential(parsed.base, parsed.cap) : fixed(parsed.base);
  backoff.jitter_ = parsed.jitter;
  return backoff;
}

std::string Backoff::text() const {
  if (kind_ == Kind::custom)
    return {};
  return queue::BackoffText{kind_ == Kind::exponential, base_, cap_, jitter_}.text();
}

Backoff Backoff::custom(std::function<Milliseconds(std::uint64_t attempt)> function) {
  Backoff backoff;
  backoff.kind_ = Kind::custom;
  backoff.custom_ = std::move(function);
  return backoff;
}

Backoff Backoff::with_jitter() const {
  Backoff backoff = *this;
  backoff.jitter_ = true;
  return backoff;
}

Milliseconds Backoff::operator()(std::uint64_t attempt) const {
  Milliseconds wait = base_;
  if (kind_ == Kind::exponential)
    wait = Milliseconds{doubled(base_.count(), cap_.count(), attempt)};
  if (kind_ == Kind::custom)
    wait = custom_(attempt);
  if (wait <= Milliseconds::zero())
    return Milliseconds::zero();
  if (!jitter_)
    return wait;
  return Milliseconds{std::uniform_int_distribution<std::int64_t>(0, wait.count())(random_engine())};
}

Result<void> Backoff::check() const {
  const auto refuse = [](const char* what, Milliseconds got) {
    return fail(Errc::invalid_argument, std::string(what) + ", got " + std::to_string(got.count()) + "ms");
  };
  switch (kind_) {
    case Kind::fixed:
      if (base_ < Milliseconds::zero())
        return refuse("backoff: the fixed wait must not be negative", base_);
      break;
    case Kind::exponential:
      if (base_ < Milliseconds{1})
        return refuse("backoff: the base must be at least 1ms", base_);
      if (cap_ < Milliseconds{1})
        return refuse("backoff: the cap must be at least 1ms", cap_);
      break;
    case Kind::custom:
      if (!custom_)
        return fail(Errc::invalid_argument, "backoff: the custom function is empty");
      break;
  }
  return {};
}

}  // namespace v1
}  // namespace echomq
