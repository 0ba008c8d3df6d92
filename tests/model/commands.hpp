// One step of a history, as drawn at random: small numbers that mean something in every state, so that whatever shrinking
// leaves of a history can still be played.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <iosfwd>
#include <vector>

namespace echomq::model {

enum class Verb : std::uint8_t {
  enqueue,
  genqueue,
  schedule,
  admit,
  claim,
  gclaim,
  gwclaim,
  gbclaim,
  bclaim,
  complete,
  retry,
  delay,
  hand_back,
  extend_lock,
  extend_locks,
  crash,
  advance,
  promote,
  reap,
  sweep_stalled,
  greap_group,
  gpause,
  gresume,
  glimit,
  gweight,
  greassign,
  gdrain,
  queue_pause,
  queue_resume,
  remove_job,
  reprocess,
  update_data,
  update_progress,
  add_log,
  drain,
  obliterate,
  park,
  unpark,
  mark_lock,
  ghost,
  look,
  enqueue_flow,
  hold_parent,
  enqueue_flow_child,
  deliver,
  deliver_again,
  repeat_register,
  repeat_advance,
  repeat_cancel,
  repeat_due,
  repeat_fire,
  spoil_repeat,
  set_concurrency,
  is_maxed,
  lock_mark,
  lock_beat,
  lock_clear,
};

struct Command {
  Verb verb = Verb::enqueue;
  std::uint8_t queue = 0;
  std::uint8_t job = 0;     // which of the candidates
  std::uint8_t group = 0;   // which lane
  std::uint8_t holder = 0;  // which worker
  std::uint8_t aim = 0;     // 0: any job; else one for which the verb does its work
  std::uint8_t token = 0;   // 0 to 6: the one held; 7: an older; 8: 0; 9: a later
  std::uint8_t amount = 0;  // lease, delay, limit, size, time
  std::uint8_t flags = 0;   // alternatives of a verb
};

[[nodiscard]] const char* name_of(Verb verb);
std::ostream& operator<<(std::ostream& out, const Command& command);
/// For RapidCheck's report.
void showValue(const Command& command, std::ostream& out);

using History = std::vector<Command>;
/// Histories of up to `length` steps.
[[nodiscard]] rc::Gen<History> histories(int length);

}  // namespace echomq::model
