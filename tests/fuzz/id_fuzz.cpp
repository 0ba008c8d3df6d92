// Texts that are taken for ids, names, tokens and keys: judged without a crash, and what is accepted comes back as it
// was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "keyspace/keys.hpp"

namespace {

using namespace echomq;

void require(bool condition) {
  if (!condition)
    std::abort();
}
/// An error text never carries raw bytes of what it refuses.
void require_printable(const Error& error) {
  require(std::ranges::all_of(error.text, [](char byte) { return byte >= 0x20 && byte <= 0x7E; }));
  require(error.text.size() < 600);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> block(data, data + size);
  const std::string_view text(block.data(), block.size());

  if (const auto id = BrandedId::parse(text)) {
    require(id->text() == text);
    require(id->value() <= kMaxIdValue);
    require(BrandedId::encode(id->brand(), id->value()).value() == *id);
    require(base62_decode(text.substr(3)).value() == id->value());
    require(BrandedId::smallest_for(id->brand(), id->minted_at()).value() <= *id);
    const auto event = EventId::parse(text);
    require(event.has_value() == (id->brand() == "EVT"));
    if (event)
      require(EventId::from_entry_id(event->entry_id()).value() == *event);
  } else {
    require_printable(id.error());
  }
  if (const auto event = EventId::from_entry_id(text))
    require(!event->entry_id().text().empty());
  if (const auto token = Token::parse(text))
    require(token->text() == text);
  if (const auto name = DedupId::parse(text))
    require(name->text() == text);
  if (const auto name = QueueName::parse(text)) {
    require(name->text() == text);
    const keyspace::QueueKeys keys(*name);
    for (const keyspace::KeySpec& row : keyspace::key_table().first(keyspace::kFixedKeys)) {
      const auto info = keyspace::classify(keys.fixed(row.type));
      require(info.type == row.type && info.queue == text);
      require(keyspace::slot(keys.fixed(row.type)) == keys.slot());
    }
  } else {
    require_printable(name.error());
  }
  const auto info = keyspace::classify(text);
  if (info.type != keyspace::KeyType::unclassified && !info.queue.empty()) {
    require(keyspace::slot(text) == keyspace::slot("{" + std::string(info.queue) + "}"));
  }
  return 0;
}
