// What a coherence connection says.
#include "cache/push.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

void read_push(const resp::View& frame, std::string_view prefix, std::string_view channel, CoherenceSink& sink) {
  auto elements = frame.elements();
  const resp::View kind_view = elements.next();
  const auto kind = kind_view.as_text();
  if (!kind)
    return;
  if (*kind == "message") {
    const resp::View channel_view = elements.next();
    const resp::View payload_view = elements.next();
    const auto payload = payload_view.as_text();
    if (channel_view.as_text() != channel || !payload)
      return sink.ignored();
    if (const auto message = CoherenceMessage::parse(*payload))
      return sink.heard(*message);
    return sink.ignored();
  }
  if (*kind != "invalidate")
    return;
  const resp::View keys = elements.next();
  if (keys.is_null())
    return sink.all_changed();
  for (const resp::View& key_view : keys.elements()) {
    const auto key = key_view.as_text();
    if (!key || !key->starts_with(prefix))
      continue;
    const auto id = BrandedId::parse(key->substr(prefix.size()));
    if (id) {
      sink.changed(*id);
    } else {
      sink.ignored();
    }
  }
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
