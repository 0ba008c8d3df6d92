// Commands of a consumer's loop that `StreamGroup` does not have: waiting for new entries, and claims that do not count as handing
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

struct IdleEntries {
  std::string next;
  std::vector<std::string> entries;
  std::vector<std::string> deleted;
};
/// XAUTOCLAIM ... JUSTID: makes entries this consumer's, and does not count that as handing them out.
[[nodiscard]] Reply<IdleEntries> claim_idle(const StreamGroup& group, std::string_view consumer, Milliseconds min_idle,
                                            std::string_view cursor, std::uint32_t count);
/// XCLAIM of one entry: hands it out, which counts. Empty when it was removed from the stream, or acknowledged by others.
[[nodiscard]] Reply<std::optional<Delivery>> hand_out(const StreamGroup& group, std::string_view consumer,
                                                      std::string_view entry);
/// As `StreamGroup::refresh`, but not written once `within` is over: others may have them by then.
[[nodiscard]] Reply<void> refresh_within(const StreamGroup& group, std::string_view consumer,
                                         std::span<const std::string_view> entries, Milliseconds within);
/// XCLAIM ... IDLE ... JUSTID: whoever looks next may take them over.
[[nodiscard]] Reply<void> make_idle(const StreamGroup& group, std::string_view consumer,
                                    std::span<const std::string_view> entries, Milliseconds min_idle);
/// XREADGROUP ... BLOCK over a connection that may wait.
[[nodiscard]] Reply<std::vector<Delivery>> wait_new(client::Line& line, const StreamGroup& group,
                                                    std::string_view consumer, Milliseconds block, std::uint32_t count);

}  // namespace bus
}  // namespace v1
}  // namespace echomq
