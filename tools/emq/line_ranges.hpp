// Numbers of lines, as they come, kept and told as ranges.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace emq {

class LineRanges {
 public:
  /// Above all that were added before.
  void add(std::uint64_t line) {
    if (!ranges_.empty() && ranges_.back().second + 1 == line) {
      ranges_.back().second = line;
    } else {
      ranges_.emplace_back(line, line);
    }
    ++count_;
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// "3, 7-9", after some ranges "and more".
  [[nodiscard]] std::string text() const {
    constexpr std::size_t kMostRanges = 20;
    std::string out;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const auto& [first, last] = ranges_[i];
      if (i == kMostRanges) {
        return out + " and more";
      }
      out += (i == 0 ? "" : ", ") + std::to_string(first);
      if (last > first) {
        out += "-" + std::to_string(last);
      }
    }
    return out;
  }
  /// `[[3,3],[7,9]]`, all of them.
  [[nodiscard]] boost::json::array json() const {
    boost::json::array out;
    for (const auto& [first, last] : ranges_) {
      out.push_back(boost::json::array{first, last});
    }
    return out;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;
  std::uint64_t count_ = 0;
};

}  // namespace emq
