// Records of `flow:outbox`.
#include "queue/flow_record.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {
namespace {

/// Cuts the next field off, up to its NUL; nothing when there is none.
[[nodiscard]] std::optional<std::string_view> cut(std::string_view& rest) {
  const std::size_t end = rest.find('\0');
  if (end == std::string_view::npos)
    return std::nullopt;
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return field;
}

}  // namespace

std::optional<FlowRecord> parse_flow_record(std::string_view bytes) {
  std::string_view rest = bytes;
  auto parent_queue = cut(rest);
  const bool failed = parent_queue && parent_queue->empty();
  if (failed) {
    if (cut(rest) != "fail")
      return std::nullopt;
    parent_queue = cut(rest);
  }
  const auto parent = cut(rest);
  const auto child = cut(rest);
  const auto policy = failed ? cut(rest) : std::string_view();
  if (!parent_queue || !parent || !child || !policy)
    return std::nullopt;
  const auto name = QueueName::parse(*parent_queue);
  const auto id = JobId::parse(*parent);
  if (!name || !id)
    return std::nullopt;
  return FlowRecord{
      .parent_queue = *name, .parent = *id, .child = *child, .failed = failed, .policy = *policy, .text = rest};
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
