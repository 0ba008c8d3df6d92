// Runs a conformance scenario of `protocol/conformance` through the public API (its README says how).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conformance/values.hpp"

namespace echomq::conformance {

/// Runs the steps on the server at `url`, on a queue of the scenario's own; gives the first mismatch, or nothing.
[[nodiscard]] std::string run_scenario(const std::string& url, const json::value& scenario);

/// What the scenario needs of a server and the one at `url` lacks.
[[nodiscard]] std::optional<std::string> unmet_need(const std::string& url, const json::value& scenario);

/// Every verb that its steps call, also within blocks.
[[nodiscard]] std::vector<std::string> calls_of(const json::value& scenario);

/// File names of all scenarios, sorted.
[[nodiscard]] std::vector<std::string> scenario_files();

}  // namespace echomq::conformance
