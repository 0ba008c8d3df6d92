// The verbs of results: wait, enqueue_and_wait, result.
#include <utility>

#include "queue/start.hpp"
#include "queue/wait_hub.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;

/// How long `enqueue_and_wait` keeps a result when the caller does not say.
constexpr Milliseconds kUsualKeep{60000};

[[nodiscard]] Result<void> check_wait_options(const WaitOptions& options) {
  ECHOMQ_CHECK(check_period("timeout", options.timeout));
  if (options.beat.count() < 10)
    return fail(Errc::invalid_argument, fmt::format("beat must be 10ms or more, got {}ms", options.beat.count()));
  return {};
}

struct Begun {
  WaitHub::Waiting for_hub;
  detail::CallPointer<detail::CallOf<Ended>> for_reply;
};
[[nodiscard]] Begun begin(const client::Core& core, JobId id, WaitOptions options) {
  auto* call = new WaitCall(core, id, options);
  call->retain();
  return {WaitHub::Waiting(call), detail::CallPointer<detail::CallOf<Ended>>(call)};
}

}  // namespace

std::string_view to_string(EndedAs how) noexcept {
  switch (how) {
    case EndedAs::completed: return "completed";
    case EndedAs::dead: return "dead";
    case EndedAs::gone: return "gone";
    case EndedAs::timeout: return "timeout";
  }
  return "gone";
}

Reply<Ended> Queue::wait(JobId id, WaitOptions options) const {
  ECHOMQ_CHECK(check_wait_options(options));
  if (!id.is_job())
    return fail(Errc::wrong_kind, fmt::format("job id must be JOB-namespaced, got {}", id.text()));
  const State& state = *state_;
  if (state.core->closed())
    return fail(Errc::client_closed, "the client is closed");
  Begun begun = begin(*state.core, id, options);
  WaitHub::of(state.core, state.keys.queue())->wait(std::move(begun.for_hub));
  return Reply<Ended>(std::move(begun.for_reply));
}

Reply<Ended> Queue::enqueue_and_wait(std::string_view payload, EnqueueOptions options, WaitOptions wait) const {
  ECHOMQ_CHECK(check_wait_options(wait));
  if (!options.run.keep)
    options.run.keep = kUsualKeep;
  const State& state = *state_;
  Begun begun = begin(*state.core, {}, wait);
  Reply<Admission> admission = enqueue(payload, options);
  if (!admission.ready())
    WaitHub::of(state.core, state.keys.queue())->warm_up();
  std::move(admission).then([core = state.core, name = state.keys.queue(),
                             call = std::move(begun.for_hub)](Result<Admission> admitted) mutable {
    if (!admitted)
      return call->finish(std::unexpected<Error>(std::move(admitted).error()));
    call->id = admitted->id;
    WaitHub::of(core, name)->wait(std::move(call));
  });
  return Reply<Ended>(std::move(begun.for_reply));
}

Reply<std::optional<Ended>> Queue::result(JobId id) const {
  const keyspace::KeyText key = state_->keys.result(id);
  const auto decode = [id](const wire::Answer& answer) -> Result<std::optional<Ended>> {
    if (answer.view.is_null())
      return std::optional<Ended>();
    const auto bytes = answer.view.copy_text();
    auto kept = bytes ? read_kept(id, *bytes) : std::nullopt;
    if (!kept)
      return fail(Errc::protocol_error, fmt::format("what is kept of {} is no result", id.text()));
    return kept;
  };
  return state_->core->command<std::optional<Ended>>(views(std::string_view("GET"), key), settings(Repeat::safe),
                                                     decode);
}

}  // namespace v1
}  // namespace echomq
