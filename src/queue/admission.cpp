// Admission of one job.
#include <limits>
#include <utility>

#include "queue/admit_call.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// Part `n` of the arguments of a script call with `keys` keys.
[[nodiscard]] constexpr std::uint8_t argument_part(std::size_t keys, std::size_t n) noexcept {
  return static_cast<std::uint8_t>(ScriptParts::kFirstKey + keys + n);
}

struct Admitting {
  const Queue::State& state;
  JobId id;
  IdOrigin origin;
  wire::CallSettings how;

  template <std::size_t K, std::size_t A>
  [[nodiscard]] Reply<Admission> run(const script::ScriptSource& script, const Views<K>& keys,
                                     const Views<A>& arguments, std::size_t id_argument = 0) const {
    const ScriptParts parts(script, keys, arguments);
    client::Core& core = *state.core;
    AdmitCall* call = AdmitCall::make(core, parts.parts(), argument_part(K, id_argument), id, origin);
    return start<Admission>(core, call, how, &script);
  }
};

}  // namespace

Reply<Admission> Queue::enqueue(std::string_view payload, EnqueueOptions options) const {
  ECHOMQ_CHECK(check_text("payload", payload));
  ECHOMQ_CHECK(check_due(options.at, options.in));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const State& state = *state_;
  const keyspace::QueueKeys& keys = state.keys;
  Admitting admitting{state, {}, IdOrigin::chosen, settings(Repeat::safe, options.deadline)};
  if (options.id) {
    admitting.id = *options.id;
  } else {
    ECHOMQ_TRY(const BrandedId minted, state.core->mint("JOB"));
    admitting.id = JobId(minted);
    admitting.origin = IdOrigin::minted;
  }
  const std::string_view id = admitting.id.text();

  const bool scheduled = options.at || options.in;
  const std::string_view mode = options.in ? "in" : options.at ? "at" : "";
  const Decimal value = options.in ? Decimal(*options.in) : options.at ? Decimal(*options.at) : Decimal(0);
  if (options.lane && scheduled) {
    return admitting.run(state.scripts.admit,
                         views(keys.pending(), keys.schedule(), keys.ring(), keys.paused(), keys.glimit(),
                               keys.gactive(), keys.wake(), keys.parked()),
                         views(keys.base(), options.lane->text(), mode, value, id, payload), 4);
  }
  const keyspace::KeyText row = keys.job(admitting.id);
  if (options.lane) {
    const keyspace::KeyText lane = keys.lane(*options.lane);
    return admitting.run(state.scripts.genqueue,
                         views(row, lane, keys.ring(), keys.paused(), keys.glimit(), keys.gactive(), keys.wake()),
                         views(id, payload, options.lane->text()));
  }
  if (scheduled) {
    return admitting.run(state.scripts.schedule, views(row, keys.schedule()), views(id, payload, mode, value));
  }
  return admitting.run(state.scripts.enqueue, views(row, keys.pending()), views(id, payload));
}

Reply<Admission> Queue::enqueue_at(std::string_view payload, Instant at, EnqueueOptions options) const {
  if (options.at) {
    return fail(Errc::invalid_argument, fmt::format("at is given twice: {}ms and {}ms", at.time_since_epoch().count(),
                                                    options.at->time_since_epoch().count()));
  }
  options.at = at;
  return enqueue(payload, options);
}

Reply<Admission> Queue::enqueue_in(std::string_view payload, Milliseconds in, EnqueueOptions options) const {
  if (options.in) {
    return fail(Errc::invalid_argument,
                fmt::format("in is given twice: {}ms and {}ms", in.count(), options.in->count()));
  }
  options.in = in;
  return enqueue(payload, options);
}

}  // namespace v1
}  // namespace echomq
