// Entries of a stream as records.
#pragma once

#include <string_view>
#include <vector>

#include "bus/checks.hpp"
#include "echomq/stream.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// An entry `[entry id, [field, value, ...]]`. The first field named `id` is the receipt when it is an EVT id; what it
/// hides is left out. Errors: protocol_error.
[[nodiscard]] Result<Record> read_record(std::string_view verb, const resp::View& entry);
/// An entry as a group hands it out: its fields are null when it was removed.
[[nodiscard]] Result<Delivery> read_delivery(std::string_view verb, const resp::View& entry);
/// The only stream's entries of an XREADGROUP reply, which is a map, a list of pairs, or null when there are none.
[[nodiscard]] Result<std::vector<Delivery>> read_stream_reply(std::string_view verb, const resp::View& reply);

}  // namespace bus
}  // namespace v1
}  // namespace echomq
