// Cancellation from outside: the request, and what a worker asks that may have missed it.
#include "queue/cancel.hpp"

#include <algorithm>
#include <utility>

#include "queue/join.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

std::string_view to_string(CancelVerdict verdict) noexcept {
  switch (verdict) {
    case CancelVerdict::cancelled: return "cancelled";
    case CancelVerdict::requested: return "requested";
    case CancelVerdict::awaiting_children: return "awaiting_children";
    case CancelVerdict::dead: return "dead";
    case CancelVerdict::unknown: return "unknown";
  }
  return "unknown";
}

Reply<CancelVerdict> Queue::cancel(JobId id) const {
  using namespace queue;
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  // Safe to repeat: a job that the first attempt has ended answers `cancelled` again.
  return state_->core->eval<CancelVerdict>(
      state_->scripts.cancel, views(row, keys.pending(), keys.active(), keys.schedule(), keys.dead()), views(id.text()),
      settings(Repeat::safe), [](const wire::Answer& answer) -> Result<CancelVerdict> {
        const auto word = answer.view.as_text();
        if (!word)
          return unexpected_reply("cancel", answer.view);
        if (*word == "absent")
          return job_gone("cancel");
        for (const CancelVerdict verdict :
             {CancelVerdict::cancelled, CancelVerdict::requested, CancelVerdict::awaiting_children, CancelVerdict::dead,
              CancelVerdict::unknown}) {
          if (*word == to_string(verdict))
            return verdict;
        }
        return unexpected_reply("cancel", answer.view);
      });
}

namespace queue {

Reply<std::vector<JobId>> marked_of(const Queue& queue, std::span<const JobId> held) {
  constexpr std::size_t kChunk = 1000;  // what the script takes
  if (held.empty())
    return Result<std::vector<JobId>>(std::vector<JobId>());
  const Queue::State& state = queue.internal();
  const script::ScriptSource& script = state.scripts.marks;
  std::vector<std::string_view> ids;
  ids.reserve(std::min(held.size(), kChunk));
  const auto encode = [&](std::span<const JobId> some) {
    ids.clear();
    for (const JobId& id : some)
      ids.push_back(id.text());
  };
  if (held.size() <= kChunk) {
    encode(held);
    return state.core->eval<std::vector<JobId>>(
        script, views(state.keys.active()), ids, settings(Repeat::safe),
        [](const wire::Answer& answer) { return read_ids("marks", answer.view); });
  }
  const std::size_t chunks = (held.size() + kChunk - 1) / kChunk;
  auto* join = make_join<std::vector<JobId>>(chunks, [](std::span<Value> parts) -> Result<std::vector<JobId>> {
    std::vector<JobId> marked;
    for (const Value& part : parts) {
      for (const Value& item : part.items()) {
        ECHOMQ_TRY(const JobId id, JobId::parse(item.as_text().value_or("")));
        marked.push_back(id);
      }
    }
    return marked;
  });
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t first = chunk * kChunk;
    encode(held.subspan(first, std::min(kChunk, held.size() - first)));
    const ScriptParts parts(script, views(state.keys.active()), ids);
    join->ask(*state.core, chunk, parts.parts(), &script, settings(Repeat::safe));
  }
  return join->started();
}

void take_mark_off(client::Core& core, std::string_view row) {
  core.command<void>(views(std::string_view("HDEL"), row, std::string_view("cancel")),
                     {.repeat = Repeat::unsafe, .never_refused = true},
                     [](const wire::Answer&) -> Result<void> { return {}; })
      .detach();
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
