// Whose archive it is: the object that names queue and stream, so that nothing of another stream comes into it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "bus/checks.hpp"
#include "echomq/archive.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {

inline constexpr std::string_view kOwnerName = "archive.json";

/// What stands in it: a line of JSON.
[[nodiscard]] std::string owner_text(std::string_view queue, std::string_view stream);

/// Whether the archive, of whose store these are the objects, names a stream. Errors: broken when it is another one than `owner`.
[[nodiscard]] Result<bool> check_owner(SegmentStore& store, std::span<const SegmentStore::Object> objects,
                                       std::string_view owner);
/// Names the stream in an archive that names none. Errors: broken when somebody else was quicker, for another stream.
[[nodiscard]] Result<void> claim(SegmentStore& store, std::string_view owner);

/// Whether the stream's records can be those behind `newest`, a record that is archived. Errors: broken when the stream has records, and
/// its top is below that one: it was deleted and begun anew, or a server has lost its newest records; those of `Stream`.
[[nodiscard]] Result<void> check_top(const Stream& stream, bus::EntryNumber newest);

}  // namespace archive
}  // namespace v1
}  // namespace echomq
