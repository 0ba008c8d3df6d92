// Admission of one job.
#include <limits>
#include <utility>
#include <vector>

#include "queue/admit_call.hpp"
#include "queue/admit_many.hpp"
#include "queue/run_fields.hpp"
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

/// A job with fields of its own, whatever its target.
[[nodiscard]] Reply<Admission> enqueue_own(const Admitting& admitting, std::string_view payload,
                                           const EnqueueOptions& options) {
  const keyspace::QueueKeys& keys = admitting.state.keys;
  RecordTail tail;
  tail.set(options.lane, options.at, options.in, options.run);
  std::vector<std::string_view> arguments = {keys.base(), "", "each", "0", admitting.id.text(), payload};
  arguments.insert(arguments.end(), tail.parts().begin(), tail.parts().end());
  const auto of_queue = admit_keys(keys);
  const ScriptParts parts(admitting.state.scripts.admit, of_queue, arguments);
  client::Core& core = *admitting.state.core;
  AdmitCall* call =
      AdmitCall::make(core, parts.parts(), argument_part(of_queue.size(), 4), admitting.id, admitting.origin);
  return start<Admission>(core, call, admitting.how, &admitting.state.scripts.admit);
}

}  // namespace

Reply<Admission> Queue::enqueue(std::string_view payload, EnqueueOptions options) const {
  ECHOMQ_CHECK(check_text("payload", payload));
  ECHOMQ_CHECK(check_due(options.at, options.in));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  const bool own = options.run.any();
  if (own)
    ECHOMQ_CHECK(check_run(options.run, options.in));
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

  if (own)
    return enqueue_own(admitting, payload, options);
  const bool scheduled = options.at || options.in;
  const std::string_view mode = options.in ? "in" : options.at ? "at" : "";
  const Decimal value = options.in ? Decimal(*options.in) : options.at ? Decimal(*options.at) : Decimal(0);
  if (options.lane && scheduled) {
    return admitting.run(state.scripts.admit, admit_keys(keys),
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
