// What is not as the protocol has it, in one queue: looked for in small steps, nothing is changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/names.hpp"

namespace emq {

struct Finding {
  std::string kind;  ///< a word for scripts: `row_in_no_set`; docs/tool.md has all of them
  std::string what;  ///< `job`, `lane` or `key`
  std::string name;  ///< of that job, lane or key
  std::string says;
};

struct Findings {
  std::uint64_t rows = 0;                       ///< looked at
  std::uint64_t members = 0;                    ///< of sets, looked at
  std::uint64_t lanes = 0;                      ///< looked at
  std::map<std::string, std::uint64_t> counts;  ///< of each kind that was found
  std::vector<Finding> kept;                    ///< the first `most` of each kind
};

/// Reads the whole queue by SCAN, ZSCAN and pipelines of at most 500 reads. What looks wrong is looked at a second time,
/// all of it at one moment (MULTI), so that a queue at work is not blamed for having moved; a lane's count of jobs in
/// flight is compared three times. Memory grows with the lanes and the findings, not with the jobs.
[[nodiscard]] echomq::Result<Findings> examine(const echomq::Client& client, const echomq::QueueName& queue,
                                               std::size_t most);

}  // namespace emq
