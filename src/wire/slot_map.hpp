// What a cluster says about who serves which slot: the answer of CLUSTER SLOTS, and MOVED. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "echomq/error.hpp"
#include "resp/view.hpp"
#include "wire/url.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// "Slot so-and-so is served there", or, with `ask`, "what is not here any more of that slot is there".
struct SlotMove {
  std::uint32_t slot = 0;
  Endpoint to;
  bool ask = false;
};

/// A range of slots, both ends included, and its primary.
struct SlotRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  Endpoint owner;
};

/// Reads `MOVED <slot> <host>:<port>`; nothing for any other text. A node that does not know its own host leaves it
/// empty: it is then that of `from`, who said it.
[[nodiscard]] std::optional<SlotMove> parse_moved(std::string_view error_text, const Endpoint& from);
/// The same of `ASK <slot> <host>:<port>`.
[[nodiscard]] std::optional<SlotMove> parse_ask(std::string_view error_text, const Endpoint& from);

/// Reads the answer of CLUSTER SLOTS. Ranges whose primary has no known address are left out.
/// Errors: protocol_error; the server's, among them `boot_refused` for one that is not part of a cluster.
[[nodiscard]] Result<std::vector<SlotRange>> parse_cluster_slots(const resp::View& reply, const Endpoint& from);

}  // namespace wire
}  // namespace v1
}  // namespace echomq
