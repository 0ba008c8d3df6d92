// What operators and handlers do to a queue, a lane or a job.
#include <array>
#include <string>

#include "events/event_text.hpp"
#include "queue/progress.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {

using namespace queue;  // NOLINT(google-build-using-namespace): the room's own

Reply<void> Queue::pause() const {
  return state_->core->eval<void>(state_->scripts.queue_pause, views(state_->keys.meta()), {}, settings(Repeat::safe),
                                  decode_done("pause", Gone::refused));
}

Reply<void> Queue::resume() const {
  return state_->core->eval<void>(state_->scripts.queue_resume, views(state_->keys.meta()), {}, settings(Repeat::safe),
                                  decode_done("resume", Gone::refused));
}

Reply<void> Queue::pause_lane(LaneId lane) const {
  const keyspace::QueueKeys& keys = state_->keys;
  return state_->core->eval<void>(state_->scripts.gpause, views(keys.paused(), keys.ring()), views(lane.text()),
                                  settings(Repeat::safe), decode_done("pause_lane", Gone::refused));
}

Reply<void> Queue::resume_lane(LaneId lane) const {
  const keyspace::QueueKeys& keys = state_->keys;
  return state_->core->eval<void>(
      state_->scripts.gresume, views(keys.paused(), keys.ring(), keys.glimit(), keys.gactive(), keys.wake()),
      views(keys.base(), lane.text()), settings(Repeat::safe), decode_done("resume_lane", Gone::refused));
}

Reply<void> Queue::limit_lane(LaneId lane, std::uint32_t ceiling) const {
  ECHOMQ_CHECK(check_limit("ceiling", ceiling));
  const keyspace::QueueKeys& keys = state_->keys;
  const Decimal text(ceiling);
  return state_->core->eval<void>(
      state_->scripts.glimit, views(keys.glimit(), keys.gactive(), keys.ring(), keys.paused(), keys.wake()),
      views(keys.base(), lane.text(), text), settings(Repeat::safe), decode_done("limit_lane", Gone::refused));
}

Reply<void> Queue::weigh_lane(LaneId lane, std::uint32_t weight) const {
  ECHOMQ_CHECK(check_limit("weight", weight));
  const Decimal text(weight);
  return state_->core->eval<void>(state_->scripts.gweight, views(state_->keys.gweight()), views(lane.text(), text),
                                  settings(Repeat::safe), decode_done("weigh_lane", Gone::refused));
}

Reply<Reassigned> Queue::reassign(JobId id, LaneId lane) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const keyspace::KeyText destination = keys.lane(lane);
  return state_->core->eval<Reassigned>(
      state_->scripts.greassign,
      views(row, destination, keys.ring(), keys.paused(), keys.glimit(), keys.gactive(), keys.wake()),
      views(id.text(), lane.text(), keys.base()), settings(Repeat::safe),
      [](const wire::Answer& answer) -> Result<Reassigned> {
        switch (answer.view.as_integer().value_or(-100)) {
          case 1: return Reassigned::moved;
          // After a lost answer the first attempt has moved it.
          case 0: return answer.resent ? Reassigned::moved : Reassigned::already_there;
          case -1: return job_gone("reassign");
          case -2: return Reassigned::not_waiting;
          default: return unexpected_reply("reassign", answer.view);
        }
      });
}

Reply<void> Queue::remove(JobId id, std::optional<DedupId> dedup) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const keyspace::KeyText holder =
      keyspace::KeyText::of(keys.base(), "de:", dedup ? dedup->text() : std::string_view());
  return state_->core->eval<void>(state_->scripts.remove_job,
                                  views(row, keys.pending(), keys.active(), keys.schedule(), keys.dead(), holder),
                                  views(id.text(), dedup ? dedup->text() : std::string_view()), settings(Repeat::safe),
                                  decode_done("remove", Gone::done_when_resent));
}

Reply<void> Queue::reprocess(JobId id) const {
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  // Not safe to repeat: "not dead" would be the answer both to a job that never was and to one just given back.
  return state_->core->eval<void>(state_->scripts.reprocess, views(row, keys.dead(), keys.pending()), views(id.text()),
                                  settings(Repeat::unsafe), decode_done("reprocess", Gone::refused));
}

Reply<void> Queue::update_data(JobId id, std::string_view payload) const {
  ECHOMQ_CHECK(check_text("payload", payload));
  const keyspace::KeyText row = state_->keys.job(id);
  return state_->core->eval<void>(state_->scripts.update_data, views(row), views(payload), settings(Repeat::safe),
                                  decode_done("update_data", Gone::refused));
}

Reply<void> queue::update_progress(const Queue& queue, JobId id, std::string_view progress, Announced announced) {
  ECHOMQ_CHECK(check_text("progress", progress));
  const Queue::State& state = queue.internal();
  const keyspace::KeyText row = state.keys.job(id);
  // The script's own event is neither cut nor JSON when the text is no UTF-8.
  std::string event;
  if (announced == Announced::yes)
    events::append_event(event, "progress", id, std::array{events::Extra{"progress", events::cut_text(progress)}});
  return state.core->eval<void>(state.scripts.update_progress, views(row),
                                views(progress, id.text(), state.keys.base(), event), settings(Repeat::safe),
                                decode_done("update_progress", Gone::refused));
}

Reply<void> Queue::update_progress(JobId id, std::string_view progress) const {
  return queue::update_progress(*this, id, progress, Announced::yes);
}

Reply<std::int64_t> Queue::add_log(JobId id, std::string_view line, std::uint32_t keep) const {
  ECHOMQ_CHECK(check_text("line", line));
  const keyspace::QueueKeys& keys = state_->keys;
  const keyspace::KeyText row = keys.job(id);
  const keyspace::KeyText logs = keys.job_sub(id, keyspace::Subkey::logs);
  const Decimal keep_text(keep);
  return state_->core->eval<std::int64_t>(
      state_->scripts.add_log, views(row, logs), views(line, keep == 0 ? std::string_view() : keep_text),
      settings(Repeat::unsafe), [](const wire::Answer& answer) -> Result<std::int64_t> {
        const auto lines = answer.view.as_integer();
        if (!lines)
          return unexpected_reply("add_log", answer.view);
        if (*lines < 0)
          return job_gone("add_log");
        return *lines;
      });
}

}  // namespace v1
}  // namespace echomq
