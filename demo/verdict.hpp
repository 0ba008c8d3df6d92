// What the demo claims, decided from the book, the effects and the system's digests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ledger.hpp"

namespace demo {

/// What the workers left behind: job id and token to digest, one line a run.
class Effects {
 public:
  [[nodiscard]] static Effects read(const std::filesystem::path& file);
  /// Empty when that run left none.
  [[nodiscard]] std::string_view of(std::string_view id, std::string_view token) const;
  [[nodiscard]] std::uint64_t lines() const noexcept { return lines_; }
  /// Lines that are none: two runs that wrote into each other would show here.
  [[nodiscard]] std::uint64_t broken() const noexcept { return broken_; }

 private:
  std::unordered_map<std::string, std::string> digests_;
  std::uint64_t lines_ = 0;
  std::uint64_t broken_ = 0;
};

struct Verdicts {
  std::uint64_t jobs = 0;
  std::uint64_t redelivered = 0;      ///< claims beyond a job's first
  std::uint64_t lost = 0;             ///< jobs without an accepted completion, or without the effect of that run
  std::uint64_t accepted_twice = 0;   ///< two accepted completions, or one of a token that was superseded
  std::uint64_t settled_unheard = 0;  ///< completions whose answer died with the server, shown by their repeat
  std::uint64_t discarded = 0;        ///< effects of runs whose completion was not the accepted one
  std::uint64_t equal = 0;            ///< digests that are the system's
  std::vector<std::string> complaints;

  [[nodiscard]] bool clean() const noexcept {
    return lost == 0 && accepted_twice == 0 && equal == jobs && complaints.empty();
  }
};

/// `ids`, `files` and `digests` are in one order.
[[nodiscard]] Verdicts judge(const std::vector<std::string>& ids, const std::vector<std::string>& files,
                             const std::vector<std::string>& digests, const std::vector<Entry>& book,
                             const Effects& effects);

}  // namespace demo
