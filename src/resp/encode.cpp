// The command writer.
#include "resp/encode.hpp"

namespace echomq {
inline namespace v1 {
namespace resp {
namespace {

/// Appends `size` bytes that `write(char*)` fills.
template <typename Write>
void append(std::string& out, std::size_t size, Write write) {
  const std::size_t before = out.size();
  out.resize(before + size);
  write(out.data() + before);
}

}  // namespace

CommandWriter& CommandWriter::begin(std::size_t parts) {
  append(out_, count_size(parts), [&](char* out) { write_count(out, parts); });
  return *this;
}

CommandWriter& CommandWriter::part(std::string_view text) {
  append(out_, bulk_size(text), [&](char* out) { write_bulk(out, text); });
  return *this;
}

CommandWriter& CommandWriter::command(std::span<const std::string_view> parts) {
  append(out_, encoded_size(parts), [&](char* out) { encode_to(out, parts); });
  return *this;
}

}  // namespace resp
}  // namespace v1
}  // namespace echomq
