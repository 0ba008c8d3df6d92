// Replays golden histories: short conversations recorded from the canonical runtime. After the same calls the database
// must hold the same, and the caller must have been told the same.
//
// The folder of histories is no part of the repository. It is the value of ECHOMQ_GOLDEN_DIR, or a folder `golden` in a
// folder beside the repository.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conformance/values.hpp"

namespace echomq::conformance {

/// The folder of histories; empty when there is none.
[[nodiscard]] std::string golden_folder();

/// `<area>/<name>` of every history of these areas, sorted.
[[nodiscard]] std::vector<std::string> golden_histories(const std::vector<std::string>& areas);

/// The first verb of a history that this library does not have yet.
[[nodiscard]] std::optional<std::string> missing_verb(const json::value& history);

/// What a history needs of its server and the one of that URL is not.
[[nodiscard]] std::optional<std::string> unmet_need(const std::string& url, const json::value& history);

/// Replays a history on the server or cluster of that URL, emptied before; gives every difference, one line each.
[[nodiscard]] std::vector<std::string> replay(const std::string& url, const json::value& history);

}  // namespace echomq::conformance
