// The bytes of the cache.
#include "cache/frame.hpp"

#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {

Result<CacheName> CacheName::parse(std::string_view text) {
  if (!is_valid(text))
    return fail(Errc::invalid_argument, identity::quoted(text) + " is no cache name: 1 to 120 of A-Z a-z 0-9 . _ -");
  return CacheName(text);
}

std::string_view to_string(CacheFrom from) noexcept {
  switch (from) {
    case CacheFrom::hit: return "hit";
    case CacheFrom::l2: return "l2";
    case CacheFrom::stale: return "stale";
    case CacheFrom::fill: break;
  }
  return "fill";
}

std::string CoherenceMessage::text() const {
  std::string out;
  out.reserve(kSize);
  out += id.text();
  out += ':';
  out += version.text();
  return out;
}

Result<CoherenceMessage> CoherenceMessage::parse(std::string_view text) {
  if (text.size() == kSize && text[BrandedId::kSize] == ':') {
    const auto id = BrandedId::parse(text.substr(0, BrandedId::kSize));
    const auto version = BrandedId::parse(text.substr(BrandedId::kSize + 1));
    if (id && version)
      return CoherenceMessage{*id, *version};
  }
  return fail(Errc::invalid_argument, "not a coherence message of 29 bytes, <id>:<version>");
}

QueueName coherence_queue(const CacheName& table) {
  // Every cache name makes a queue name: that is what its bound is for.
  return *QueueName::parse(cache::TableKeys(table).queue);
}

bool is_newer(const BrandedId& a, const BrandedId& b) noexcept { return a.text().substr(3) > b.text().substr(3); }

namespace cache {

std::optional<Frame> read_frame(std::string_view bytes) noexcept {
  std::uint64_t ignored = 0;
  const std::string_view version = bytes.substr(0, BrandedId::kSize);
  if (detail::check_id(version, ignored) != detail::IdFault::none)
    return std::nullopt;
  return Frame{*BrandedId::parse(version), bytes.substr(BrandedId::kSize)};
}

std::string make_frame(const BrandedId& version, std::string_view value) {
  std::string frame;
  frame.reserve(BrandedId::kSize + value.size());
  frame += version.text();
  frame += value;
  return frame;
}

BrandedId just_newer(const BrandedId& version) noexcept {
  const std::uint64_t value = version.value();
  if (value == kMaxIdValue)
    return version;
  return *BrandedId::encode(version.brand(), value + 1);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
