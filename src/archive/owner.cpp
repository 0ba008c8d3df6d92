// Whose archive it is.
#include "archive/owner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "archive/errors.hpp"
#include "archive/line.hpp"
#include "identity/quoted.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {
namespace {

using std::string_view;

/// More than two names of 255 bytes can need.
constexpr std::uint64_t kMostBytes = 8192;

[[nodiscard]] Result<void> compare(SegmentStore& store, string_view owner) {
  ECHOMQ_TRY(const std::string text, store.get(kOwnerName, 0, kMostBytes));
  if (text == owner)
    return {};
  return archive::failed(
      ArchiveErrc::broken,
      fmt::format("the archive is that of another stream: its {} says {}, where {} was expected", kOwnerName,
                  identity::quoted(text.substr(0, text.find('\n'))), owner.substr(0, owner.find('\n'))));
}

}  // namespace

std::string owner_text(string_view queue, string_view stream) {
  std::string text = R"({"queue":)";
  append_text(text, queue);
  text += R"(,"stream":)";
  append_text(text, stream);
  text += "}\n";
  return text;
}

Result<bool> check_owner(SegmentStore& store, std::span<const SegmentStore::Object> objects, string_view owner) {
  if (std::ranges::find(objects, kOwnerName, &SegmentStore::Object::name) == objects.end())
    return false;
  ECHOMQ_CHECK(compare(store, owner));
  return true;
}

Result<void> claim(SegmentStore& store, string_view owner) {
  ECHOMQ_TRY(const bool made, store.put(kOwnerName, owner, SegmentStore::Put::if_absent));
  return made ? Result<void>() : compare(store, owner);
}

Result<void> check_top(const Stream& stream, bus::EntryNumber newest) {
  ECHOMQ_TRY(const StreamInfo info, stream.info().get());
  const auto top = bus::parse_entry(info.top);
  if (info.length == 0 || !top || *top >= newest)
    return {};
  return archive::failed(
      ArchiveErrc::broken,
      fmt::format("{} is archived up to {}-{}, and ends at {} now: it was deleted and begun anew, or its server has "
                  "lost records. What "
                  "has come since is in no archive: go on in another one, with the watermark cleared",
                  identity::quoted(stream.name()), newest.milliseconds, newest.tail, info.top));
}

}  // namespace archive
}  // namespace v1
}  // namespace echomq
