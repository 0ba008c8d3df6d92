// Which queues a server has, found by its keys.
#pragma once

#include <set>
#include <string>

#include "echomq/client.hpp"

namespace emq {

/// Names of the queues that have a key, on all nodes. By SCAN, a step at a time: a server with millions of rows goes on
/// serving others.
[[nodiscard]] echomq::Result<std::set<std::string>> discover(const echomq::Client& client);

}  // namespace emq
