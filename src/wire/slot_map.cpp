// Parsers of a cluster's answers about its slots.
#include "wire/slot_map.hpp"

#include <charconv>
#include <string>

#include "keyspace/slot.hpp"
#include "result/try.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

template <typename Number>
[[nodiscard]] bool parse_whole(std::string_view text, Number& out) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

[[nodiscard]] std::unexpected<Error> unreadable() {
  return fail(Errc::protocol_error, "CLUSTER SLOTS answered something else than ranges of slots");
}

/// The node of `[host, port, ...]`; nothing when its address is not known to who answered.
[[nodiscard]] Result<std::optional<Endpoint>> parse_node(const resp::View& node, const Endpoint& from) {
  auto elements = node.elements();
  const resp::View host = elements.next();
  const auto port = elements.next().as_integer();
  if (!node.is_aggregate() || !port || *port < 0 || *port > 65535)
    return unreadable();
  const std::string_view name = host.as_text().value_or(std::string_view());
  if (name == "?" || *port == 0)
    return std::optional<Endpoint>();
  Endpoint endpoint;
  endpoint.host = name.empty() ? from.host : std::string(name);
  endpoint.port = static_cast<std::uint16_t>(*port);
  return std::optional<Endpoint>(std::move(endpoint));
}

/// `<word><slot> <host>:<port>`.
[[nodiscard]] std::optional<SlotMove> parse_move(std::string_view word, std::string_view text, const Endpoint& from) {
  if (!text.starts_with(word))
    return std::nullopt;
  text.remove_prefix(word.size());
  const std::size_t blank = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (blank == std::string_view::npos || colon == std::string_view::npos || colon < blank)
    return std::nullopt;
  SlotMove move;
  if (!parse_whole(text.substr(0, blank), move.slot) || move.slot >= keyspace::kSlots ||
      !parse_whole(text.substr(colon + 1), move.to.port) || move.to.port == 0)
    return std::nullopt;
  const std::string_view host = text.substr(blank + 1, colon - blank - 1);
  move.to.host = host.empty() || host == "?" ? from.host : std::string(host);
  return move;
}

}  // namespace

std::optional<SlotMove> parse_moved(std::string_view text, const Endpoint& from) {
  return parse_move("MOVED ", text, from);
}

std::optional<SlotMove> parse_ask(std::string_view text, const Endpoint& from) {
  std::optional<SlotMove> move = parse_move("ASK ", text, from);
  if (move)
    move->ask = true;
  return move;
}

Result<std::vector<SlotRange>> parse_cluster_slots(const resp::View& reply, const Endpoint& from) {
  if (reply.is_error()) {
    if (reply.error_text().find("cluster support disabled") != std::string_view::npos)
      return fail(Errc::boot_refused, from.to_string() + " is not part of a cluster");
    return std::unexpected(to_error(reply.error_text()));
  }
  if (!reply.is_aggregate())
    return unreadable();
  std::vector<SlotRange> ranges;
  for (const resp::View& entry : reply.elements()) {
    auto elements = entry.elements();
    const auto first = elements.next().as_integer();
    const auto last = elements.next().as_integer();
    if (!first || !last || *first < 0 || *last < *first || *last >= static_cast<std::int64_t>(keyspace::kSlots))
      return unreadable();
    ECHOMQ_TRY(std::optional<Endpoint> owner, parse_node(elements.next(), from));
    if (owner)
      ranges.push_back({static_cast<std::uint32_t>(*first), static_cast<std::uint32_t>(*last), *std::move(owner)});
  }
  return ranges;
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
