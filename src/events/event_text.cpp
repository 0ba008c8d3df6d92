// One event as it is published.
#include "events/event_text.hpp"

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "events/json_text.hpp"

namespace echomq {
inline namespace v1 {
namespace events {

std::string_view cut_text(std::string_view text) noexcept {
  if (text.size() <= kMostText)
    return text;
  std::size_t end = kMostText;
  for (int back = 0; back < 3 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U; ++back)
    --end;
  return text.substr(0, end);
}

void append_event(std::string& out, std::string_view name, const JobId& job, std::span<const Extra> extra) {
  out.reserve(out.size() + 64 + name.size());
  out += "{\"event\":";
  append_json_string(out, name);
  out += ",\"job\":\"";
  out += job.text();
  out += '"';
  for (const auto& [field, value] : extra) {
    out += ',';
    append_json_string(out, field);
    out += ':';
    append_json_string(out, value);
  }
  out += '}';
}

bool read_event(std::string_view payload, EventText& into) {
  namespace json = boost::json;
  json::parse_options options;
  options.allow_invalid_utf8 = true;
  unsigned char buffer[4096];
  json::monotonic_resource memory(buffer);
  boost::system::error_code error;
  const json::value document = json::parse(json::string_view(payload.data(), payload.size()), error, &memory, options);
  const json::object* const object = error ? nullptr : document.if_object();
  if (object == nullptr)
    return false;
  const json::value* const name = object->if_contains("event");
  const json::value* const job = object->if_contains("job");
  if (name == nullptr || !name->is_string() || name->get_string().empty() || job == nullptr || !job->is_string())
    return false;
  Result<JobId> id = JobId::parse(job->get_string());
  if (!id)
    return false;
  into.name = name->get_string();
  into.job = *id;
  into.extra.clear();
  for (const auto& field : *object) {
    if (field.key() == "event" || field.key() == "job")
      continue;
    const json::value& value = field.value();
    into.extra.emplace_back(field.key(), value.is_string() ? std::string(value.get_string()) : json::serialize(value));
  }
  return true;
}

}  // namespace events
}  // namespace v1
}  // namespace echomq
