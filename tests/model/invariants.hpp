// What must hold of a queue's keys whatever has happened, judged from the keys alone: the model is not asked.
#pragma once

#include <optional>
#include <string>

#include "model/state.hpp"

namespace echomq::model {

/// The first broken law, in words; nothing when all hold. `before` are the keys one step earlier. Of `state` only what keys cannot
/// tell is used: which members are ghosts, how many children a held parent was given,
/// and which registrations were spoilt from outside.
///
/// - A job is in exactly the place that its row's state names; ready sets have score 0; a member has a row.
/// - gactive counts the jobs of each lane that are in active, and has no other fields.
/// - The ring holds exactly the lanes that have members, are not paused and are below their ceiling, each once.
/// - A parent that awaits children has as many outstanding as were given and are in neither :processed nor :unsuccessful, and
///   more than none.
/// - attempts never falls, and is never less than stalled, handbacks and delays; metrics never fall but by obliterate.
/// - A registration of a repeat that nobody has spoilt is in the registry and has its record; a run has a whole number of ms.
/// - A lock marker has its row.
/// - meta holds nothing but the pause and the ceiling.
/// - wake holds at most 64 elements, all `1`.
[[nodiscard]] std::optional<std::string> broken_law(const Keyspace& keys, const Keyspace& before, const State& state);

}  // namespace echomq::model
