// Plays histories on a server and on the model, step by step, and says where they part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/commands.hpp"
#include "model/server.hpp"

namespace echomq::model {

/// Steps that meant something, and so were sent to the server.
struct Count {
  std::uint64_t histories = 0;
  std::uint64_t steps = 0;
};

/// Plays one history from an empty server on. Gives what was wrong first, with all calls up to there; nothing when server and model
/// agreed on every reply and every key and no law was broken.
[[nodiscard]] std::optional<std::string> play_history(Server& server, const History& history, Count& count);

struct Plan {
  std::uint64_t steps;  // at least that many, unless one fails
  int length = 200;     // of the longest history
  bool shrink = true;
};

/// Draws and plays histories until the plan's steps are done or one fails; that one is made as short as it gets. Gives the report
/// of the failure with what is needed to play it again.
///
/// `ECHOMQ_MODEL_SEED` (decimal) replaces the seed, which otherwise comes from the clock and is printed when a history fails.
/// `ECHOMQ_MODEL_STEPS` replaces the number of steps.
[[nodiscard]] std::optional<std::string> play_many(Server& server, const Plan& plan, Count& count);

}  // namespace echomq::model
