// Names checked at run time.
#include "echomq/names.hpp"

#include <charconv>

#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {

Result<QueueName> QueueName::parse(std::string_view text) {
  if (!is_valid(text)) {
    std::string why = identity::quoted(text);
    why += text == "emq" ? " is reserved for the deployment's own keys" : ": 1 to 128 of A-Z a-z 0-9 . _ -";
    return fail(Errc::invalid_queue_name, std::move(why));
  }
  return QueueName(text);
}

Result<DedupId> DedupId::parse(std::string_view text) {
  if (!is_valid(text)) {
    return fail(Errc::invalid_dedup_id, identity::quoted(text) + ": 1 to 255 of A-Z a-z 0-9 . _ -");
  }
  return DedupId(text);
}

Result<Token> Token::parse(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const bool padded = text.size() > 1 && text.front() == '0';
  if (error != std::errc() || stopped != end || padded) {
    return fail(Errc::invalid_argument, "not a token: " + identity::quoted(text));
  }
  return Token(value);
}

}  // namespace v1
}  // namespace echomq
