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
      .claim = need("claim"),
      .gclaim = need("gclaim"),
      .complete = need("complete"),
      .retry = need("retry"),
      .delay = need("delay"),
      .hand_back = need("hand_back"),
      .extend_lock = need("extend_lock"),
      .extend_locks = need("extend_locks"),
      .promote = need("promote"),
      .reap = need("reap"),
      .sweep_stalled = need("sweep_stalled"),
      .queue_pause = need("queue_pause"),
      .queue_resume = need("queue_resume"),
      .gpause = need("gpause"),
      .gresume = need("gresume"),
      .glimit = need("glimit"),
      .greassign = need("greassign"),
      .remove_job = need("remove_job"),
      .reprocess = need("reprocess"),
      .update_data = need("update_data"),
      .update_progress = need("update_progress"),
      .add_log = need("add_log"),
      .counts = need("counts"),
      .state_lookup = need("state_lookup"),
      .is_maxed = need("is_maxed"),
      .rate_ttl = need("rate_ttl"),
      .lane_counts = need("lane_counts"),
  };
  return scripts;
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
