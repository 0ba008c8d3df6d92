// The scripts that this room calls, found once.
#pragma once

#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// References into the registry, which lives as long as the program.
struct Scripts {
  using Source = script::ScriptSource;

  const Source& enqueue;
  const Source& schedule;
  const Source& genqueue;
  const Source& admit;
  const Source& ended;
  const Source& claim;
  const Source& bclaim;
  const Source& gclaim;
  const Source& gwclaim;
  const Source& gbclaim;
  const Source& complete;
  const Source& retry;
  const Source& delay;
  const Source& hand_back;
  const Source& settle;
  const Source& take;
  const Source& settle_and_take;
  const Source& extend_lock;
  const Source& extend_locks;
  const Source& promote;
  const Source& reap;
  const Source& greap_group;
  const Source& sweep_stalled;
  const Source& sweep_lapsed;
  const Source& queue_pause;
  const Source& queue_resume;
  const Source& drain;
  const Source& obliterate;
  const Source& repeat_register;
  const Source& repeat_cancel;
  const Source& repeat_advance;
  const Source& repeat_due;
  const Source& repeat_fire;
  const Source& lock_mark;
  const Source& lock_clear;
  const Source& lock_beat;
  const Source& gpause;
  const Source& gresume;
  const Source& glimit;
  const Source& gweight;
  const Source& greassign;
  const Source& gdrain;
  const Source& remove_job;
  const Source& cancel;
  const Source& marks;
  const Source& reprocess;
  const Source& update_data;
  const Source& update_progress;
  const Source& add_log;
  const Source& counts;
  const Source& state_lookup;
  const Source& is_maxed;
  const Source& rate_ttl;
  const Source& lane_counts;
  const Source& enqueue_flow;
  const Source& hold_parent;
  const Source& enqueue_flow_child;
  const Source& flow_deliver;
  const Source& flow_fail_deliver;
  const Source& flow_death_deliver;

  [[nodiscard]] static const Scripts& get() noexcept;
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
