// Entries of a stream as records.
#include "bus/records.hpp"

#include <utility>

namespace echomq {
inline namespace v1 {

const std::string* Record::find(std::string_view name) const noexcept {
  for (const auto& [field, value] : fields) {
    if (field == name)
      return &value;
  }
  return nullptr;
}

namespace bus {

Result<Record> read_record(std::string_view verb, const resp::View& entry) {
  auto entry_id = entry.at(0).copy_text();
  const resp::View fields = entry.at(1);
  if (!entry_id || !fields.is_aggregate())
    return unexpected_reply(verb, entry);
  Record record;
  record.entry = *std::move(entry_id);
  record.fields.reserve(fields.size() / 2);
  resp::Elements texts = fields.elements();
  while (!texts.done()) {
    auto name = texts.next().copy_text();
    auto value = texts.done() ? std::nullopt : texts.next().copy_text();
    if (!name || !value)
      return unexpected_reply(verb, entry);
    if (*name == "id") {
      if (record.id)
        continue;
      if (const auto id = EventId::parse(*value)) {
        record.id = *id;
        continue;
      }
    }
    record.fields.emplace_back(*std::move(name), *std::move(value));
  }
  return record;
}

Result<Delivery> read_delivery(std::string_view verb, const resp::View& entry) {
  Delivery delivery;
  if (!entry.at(1).is_null()) {
    ECHOMQ_TRY(Record record, read_record(verb, entry));
    delivery.entry = record.entry;
    delivery.record = std::move(record);
    return delivery;
  }
  auto id = entry.at(0).copy_text();
  if (!id)
    return unexpected_reply(verb, entry);
  delivery.entry = *std::move(id);
  return delivery;
}

Result<std::vector<Delivery>> read_stream_reply(std::string_view verb, const resp::View& reply) {
  std::vector<Delivery> out;
  if (reply.is_null())
    return out;
  if (!reply.is_aggregate() || reply.size() == 0)
    return unexpected_reply(verb, reply);
  for (const auto& [stream, entries] : reply.pairs()) {
    if (!entries.is_aggregate())
      return unexpected_reply(verb, reply);
    out.reserve(out.size() + entries.size());
    for (const resp::View& entry : entries.elements()) {
      ECHOMQ_TRY(Delivery delivery, read_delivery(verb, entry));
      out.push_back(std::move(delivery));
    }
  }
  return out;
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
