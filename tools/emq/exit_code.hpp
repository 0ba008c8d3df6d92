// How `emq` ends: a small, stable set of exit codes, and the names of errors as scripts see them.
#pragma once

#include <string_view>

#include "echomq/error.hpp"

namespace emq {

/// The exit codes of every subcommand; documented in docs/tool.md, never renumbered.
enum class Exit : int { ok = 0, failed = 1, usage = 2, not_found = 3, unreachable = 4, refused = 5, paused = 6 };

[[nodiscard]] Exit exit_for(const echomq::Error& error) noexcept;

/// The enumerator of the error's code ("job_gone"); "unknown" for one of another category.
[[nodiscard]] std::string_view name_of(const echomq::Error& error) noexcept;

}  // namespace emq
