// Appending to a stream and consuming it by a group, beside a socket that sends XADD, XREADGROUP and XACK.
#pragma once

#include <vector>

#include "cases.hpp"
#include "measure.hpp"

namespace echomq_bench {

/// `append` one by one without waiting, `append_many`, and `group`: a `GroupConsumer` that reads and acknowledges in hundreds.
[[nodiscard]] std::vector<Case> make_bus_cases(Bed& bed, double scale);

}  // namespace echomq_bench
