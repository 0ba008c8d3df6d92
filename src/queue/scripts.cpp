// The scripts that this room calls, found once.
#include "queue/scripts.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

/// The build embeds every script, so one that is missing means a broken build: nothing can go on from there.
[[nodiscard]] const script::ScriptSource& need(std::string_view name) noexcept {
  const script::ScriptSource* found = script::find_script(name);
  if (found == nullptr) {
    std::fprintf(stderr, "echomq: the script %.*s is not part of this build\n", static_cast<int>(name.size()),
                 name.data());
    std::abort();
  }
  return *found;
}

}  // namespace

const Scripts& Scripts::get() noexcept {
  static const Scripts scripts{
      .enqueue = need("enqueue"),
      .schedule = need("schedule"),
      .genqueue = need("genqueue"),
      .admit = need("admit"),
      .ended = need("ended"),
      .claim = need("claim"),
      .bclaim = need("bclaim"),
      .gclaim = need("gclaim"),
      .gwclaim = need("gwclaim"),
      .gbclaim = need("gbclaim"),
      .complete = need("complete"),
      .retry = need("retry"),
      .delay = need("delay"),
      .hand_back = need("hand_back"),
      .settle = need("settle"),
      .take = need("take"),
      .settle_and_take = need("settle_and_take"),
      .extend_lock = need("extend_lock"),
      .extend_locks = need("extend_locks"),
      .promote = need("promote"),
      .reap = need("reap"),
      .greap_group = need("greap_group"),
      .sweep_stalled = need("sweep_stalled"),
      .sweep_lapsed = need("sweep_lapsed"),
      .queue_pause = need("queue_pause"),
      .queue_resume = need("queue_resume"),
      .drain = need("drain"),
      .obliterate = need("obliterate"),
      .repeat_register = need("repeat_register"),
      .repeat_cancel = need("repeat_cancel"),
      .repeat_advance = need("repeat_advance"),
      .repeat_due = need("repeat_due"),
      .repeat_fire = need("repeat_fire"),
      .lock_mark = need("lock_mark"),
      .lock_clear = need("lock_clear"),
      .lock_beat = need("lock_beat"),
      .gpause = need("gpause"),
      .gresume = need("gresume"),
      .glimit = need("glimit"),
      .gweight = need("gweight"),
      .greassign = need("greassign"),
      .gdrain = need("gdrain"),
      .remove_job = need("remove_job"),
      .cancel = need("cancel"),
      .marks = need("marks"),
      .reprocess = need("reprocess"),
      .update_data = need("update_data"),
      .update_progress = need("update_progress"),
      .add_log = need("add_log"),
      .counts = need("counts"),
      .state_lookup = need("state_lookup"),
      .is_maxed = need("is_maxed"),
      .rate_ttl = need("rate_ttl"),
      .lane_counts = need("lane_counts"),
      .enqueue_flow = need("enqueue_flow"),
      .hold_parent = need("hold_parent"),
      .enqueue_flow_child = need("enqueue_flow_child"),
      .flow_deliver = need("flow_deliver"),
      .flow_fail_deliver = need("flow_fail_deliver"),
      .flow_death_deliver = need("flow_death_deliver"),
  };
  return scripts;
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
