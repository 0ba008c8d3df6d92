// Records of `flow:outbox`: what a child tells a parent in another queue (protocol document 3, section 10).
#pragma once

#include <optional>
#include <string_view>

#include "echomq/id.hpp"
#include "echomq/names.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// One record. Views point into its bytes. Names and ids in it are data that somebody wrote: what becomes part of a key
/// is checked, `child` and `policy` are handed on as they are.
struct FlowRecord {
  QueueName parent_queue;
  JobId parent;
  std::string_view child;
  bool failed = false;      ///< the child, or the node of a tree, is dead
  std::string_view policy;  ///< of a failed one: `fp` or `id`
  std::string_view text;    ///< the result or the error; the only field that may hold NUL bytes
};

/// Nothing when the bytes are no record: too few fields, an unknown tag, a parent that cannot be.
[[nodiscard]] std::optional<FlowRecord> parse_flow_record(std::string_view bytes);

}  // namespace queue
}  // namespace v1
}  // namespace echomq
