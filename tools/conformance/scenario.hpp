// Runs the conformance scenarios of `protocol/conformance` through the public API (its README says how).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/values.hpp"

namespace echomq::conformance {

/// One scenario as the build embedded it.
struct ScenarioSource {
  std::string_view path;  ///< below `protocol/conformance`: "01-fence.json", "own/late_settle.json"
  std::string_view text;

  [[nodiscard]] bool own() const noexcept { return path.starts_with("own/"); }
};

/// All of them, by path.
[[nodiscard]] std::span<const ScenarioSource> embedded_scenarios() noexcept;

struct RunOptions {
  /// Begins the names of all queues that a run uses. Two runs at a time on one server need two.
  std::string base = "conf";
  /// The server is nobody else's: scenarios may change its settings.
  bool private_server = false;
};

/// What keeps the scenario from being run on the server at `url`: a verb that this library lacks, or something that the
/// server or the run cannot give. Nothing when it can be run. Throws when the server cannot be reached.
[[nodiscard]] std::optional<std::string> obstacle(const std::string& url, const json::value& scenario,
                                                  const RunOptions& options = {});

/// Runs the steps on the server at `url`, on queues of the scenario's own, whose keys are removed afterwards; gives the
/// first mismatch, or nothing. Throws on what no scenario should do.
[[nodiscard]] std::string run_scenario(const std::string& url, const json::value& scenario,
                                       const RunOptions& options = {});

/// File names of the canonical scenarios, sorted.
[[nodiscard]] std::vector<std::string> scenario_files();

}  // namespace echomq::conformance
