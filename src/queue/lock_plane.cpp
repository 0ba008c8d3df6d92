// Lock markers and leases of the jobs that one holder has in hand.
#include "echomq/lock_plane.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "queue/join.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Jobs of one `lock_beat` script.
constexpr std::size_t kBeatChunk = 400;

[[nodiscard]] Result<void> any_integer(const wire::Answer& answer) {
  if (answer.view.as_integer())
    return {};
  return unexpected_reply("lock plane", answer.view);
}

}  // namespace

LockPlane::LockPlane(Queue queue, Milliseconds lease, Milliseconds interval, Milliseconds marker)
    : queue_(std::move(queue)), lease_(lease), interval_(interval), marker_(marker) {}

Result<LockPlane> LockPlane::create(const Queue& queue, LockPlaneOptions options) {
  ECHOMQ_CHECK(check_lease(options.lease));
  if (options.extend)
    ECHOMQ_CHECK(check_period("extend", *options.extend));
  const auto lease = options.lease.count();
  const double marker = std::round(static_cast<double>(lease) * options.marker_multiple);
  if (!(options.marker_multiple > 0) || marker > static_cast<double>(kMaxExact)) {
    return fail(Errc::invalid_argument,
                fmt::format("marker_multiple must be above 0, and the marker's life at most {}ms, got {}", kMaxExact,
                            options.marker_multiple));
  }
  const auto interval = options.extend ? options.extend->count() : (lease + 1) / 2;
  return LockPlane(queue, options.lease,
                   Milliseconds(std::max<std::int64_t>(1, std::min<std::int64_t>(interval, lease - 1))),
                   Milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(marker))));
}

Reply<void> LockPlane::track(JobId id, Token token) {
  held_[id] = token;
  const Queue::State& state = queue_.internal();
  const Decimal marker(marker_);
  const Decimal token_text(token);
  return state.core->eval<void>(state.scripts.lock_mark, views(state.keys.active()),
                                views(state.keys.base(), marker, id.text(), token_text), settings(Repeat::safe),
                                any_integer);
}

Reply<void> LockPlane::untrack(JobId id) {
  const auto found = held_.find(id);
  if (found == held_.end())
    return Result<void>();
  const Queue::State& state = queue_.internal();
  const Decimal token(found->second);
  held_.erase(found);
  return state.core->eval<void>(state.scripts.lock_clear, views(state.keys.active()),
                                views(state.keys.base(), id.text(), token), settings(Repeat::safe), any_integer);
}

Reply<std::vector<JobId>> LockPlane::beat() {
  if (held_.empty())
    return Result<std::vector<JobId>>(std::vector<JobId>());
  const Queue::State& state = queue_.internal();
  const Decimal lease(lease_);
  const Decimal marker(marker_);
  const std::size_t chunks = (held_.size() + kBeatChunk - 1) / kBeatChunk;
  auto* join = make_join<std::vector<JobId>>(chunks, [](std::span<Value> parts) -> Result<std::vector<JobId>> {
    std::vector<JobId> lost;
    for (const Value& part : parts) {
      for (const Value& item : part.items()) {
        ECHOMQ_TRY(const JobId id, JobId::parse(item.as_text().value_or("")));
        lost.push_back(id);
      }
    }
    return lost;
  });
  auto next = held_.begin();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<Decimal> tokens;
    tokens.reserve(kBeatChunk);  // the views below stay valid
    std::vector<std::string_view> arguments = {state.keys.base(), lease, marker};
    for (std::size_t i = 0; i < kBeatChunk && next != held_.end(); ++i, ++next) {
      arguments.push_back(next->first.text());
      arguments.push_back(tokens.emplace_back(next->second));
    }
    const ScriptParts parts(state.scripts.lock_beat, views(state.keys.active()), arguments);
    join->ask(*state.core, chunk, parts.parts(), &state.scripts.lock_beat, settings(Repeat::safe));
  }
  return join->started();
}

}  // namespace v1
}  // namespace echomq
