// Commands of a consumer's loop that `StreamGroup` does not have: waiting for new entries, and claims that do not count as handing
// out.
#pragma once

#include <cstddef>
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
struct HandedOut {
  std::optional<Delivery> delivery;  ///< absent: removed from the stream, acknowledged, or `lost`
  bool lost = false;                 ///< another consumer has it
};
/// The script stream_group_hand_out: hands one entry of the consumer's out once more, which counts.
[[nodiscard]] Reply<HandedOut> hand_out(const StreamGroup& group, std::string_view consumer, std::string_view entry);
/// Entries a call of `keep_entries`.
inline constexpr std::size_t kKept = 100;
struct KeptEntries {
  std::vector<std::string> lost;  ///< another consumer has them, or has acknowledged them
  std::vector<std::string> gone;  ///< not in the stream any more
};
/// The longest idle time that `keep_entries` gives.
inline constexpr Milliseconds kLongestIdle{999'999'999'999};
/// The script stream_group_keep: claims again, with that idle time, what is still the consumer's, and nothing else, however late it gets
/// there. Any number of entries, by as many calls as are needed, which are on their way together.
[[nodiscard]] Result<KeptEntries> keep_entries(const StreamGroup& group, std::string_view consumer,
                                               std::span<const std::string_view> entries,
                                               Milliseconds idle = Milliseconds(0));
/// XREADGROUP ... BLOCK over a connection that may wait.
[[nodiscard]] Reply<std::vector<Delivery>> wait_new(client::Line& line, const StreamGroup& group,
                                                    std::string_view consumer, Milliseconds block, std::uint32_t count);

}  // namespace bus
}  // namespace v1
}  // namespace echomq
