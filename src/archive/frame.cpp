// Frames and their index.
#include "archive/frame.hpp"

#include <fmt/format.h>
#include <zstd.h>
#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): the library's switch
#include <xxhash.h>

#include <boost/json.hpp>
#include <charconv>
#include <memory>
#include <new>

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace archive {
namespace {

namespace json = boost::json;
using std::string_view;

/// What a frame may hold: whole lines, the last one as long as the longest record in base64 and more.
constexpr std::uint64_t kMostRaw = std::uint64_t{4} << 30;

[[nodiscard]] std::optional<std::uint64_t> number(const json::object& object, string_view name) {
  const json::value* const value = object.if_contains(name);
  if (value == nullptr || value->is_double())
    return std::nullopt;
  boost::system::error_code error;
  const auto out = value->to_number<std::uint64_t>(error);
  return error ? std::nullopt : std::optional(out);
}
[[nodiscard]] std::optional<std::uint64_t> hex(const json::object& object, string_view name) {
  const json::value* const value = object.if_contains(name);
  if (value == nullptr || !value->is_string() || value->get_string().size() != 16)
    return std::nullopt;
  std::uint64_t out = 0;
  const string_view text = value->get_string();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  return error != std::errc() || end != text.data() + text.size() ? std::nullopt : std::optional(out);
}
[[nodiscard]] std::optional<bus::EntryNumber> entry(const json::object& object, string_view name) {
  const json::value* const value = object.if_contains(name);
  return value == nullptr || !value->is_string() ? std::nullopt : bus::parse_entry(value->get_string());
}

}  // namespace

Digest::Digest() : state_(XXH64_createState()) {
  if (state_ == nullptr)
    throw std::bad_alloc();
  reset();
}
Digest::~Digest() { XXH64_freeState(static_cast<XXH64_state_t*>(state_)); }
void Digest::add(string_view bytes) {
  if (!bytes.empty())
    XXH64_update(static_cast<XXH64_state_t*>(state_), bytes.data(), bytes.size());
}
void Digest::reset() { XXH64_reset(static_cast<XXH64_state_t*>(state_), 0); }
std::uint64_t Digest::value() const { return XXH64_digest(static_cast<const XXH64_state_t*>(state_)); }

std::uint64_t digest_of(string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

std::string compress(string_view lines, int level) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  if (!context)
    throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(lines.size()), '\0');
  const std::size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), lines.data(), lines.size());
  if (ZSTD_isError(size) != 0)
    throw std::bad_alloc();  // the room is enough by the library's own word: only memory can have failed
  out.resize(size);
  return out;
}

std::optional<std::string> decompress(string_view bytes, std::size_t& size) {
  size = ZSTD_findFrameCompressedSize(bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0)
    return std::nullopt;
  const unsigned long long raw = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
  if (raw == ZSTD_CONTENTSIZE_ERROR || raw == ZSTD_CONTENTSIZE_UNKNOWN || raw > kMostRaw)
    return std::nullopt;
  // A damaged header may claim any size; zstd compresses no further than this.
  if (raw > (static_cast<unsigned long long>(size) + 64) * 40000)
    return std::nullopt;
  std::string out(raw, '\0');
  const std::size_t got = ZSTD_decompress(out.data(), out.size(), bytes.data(), size);
  if (ZSTD_isError(got) != 0 || got != raw)
    return std::nullopt;
  return out;
}

std::string index_line(const Frame& frame) {
  return fmt::format(R"({{"at":{},"size":{},"records":{},"first":"{}","last":"{}","raw":{},"xxh64":"{:016x}"}})"
                     "\n",
                     frame.at, frame.size, frame.records, bus::entry_text(frame.first), bus::entry_text(frame.last),
                     frame.raw, frame.xxh64);
}

std::string seal_line(const Seal& seal) {
  return fmt::format(R"({{"sealed":true,"size":{},"records":{},"xxh64":"{:016x}"}})"
                     "\n",
                     seal.size, seal.records, seal.xxh64);
}

Index read_index(string_view text, std::uint64_t segment_size) {
  Index out;
  for (std::size_t begin = 0; begin < text.size() && !out.seal;) {
    const std::size_t end = text.find('\n', begin);
    if (end == string_view::npos)
      break;
    boost::system::error_code error;
    const json::value value = json::parse(text.substr(begin, end - begin), error);
    const json::object* const object = error ? nullptr : value.if_object();
    if (object == nullptr)
      break;
    const std::uint64_t expected = out.frames.empty() ? 0 : out.frames.back().end();
    if (object->contains("sealed")) {
      const auto size = number(*object, "size");
      const auto records = number(*object, "records");
      const auto sum = hex(*object, "xxh64");
      if (!size || !records || !sum || *size != expected)
        break;
      out.seal = Seal{.size = *size, .records = *records, .xxh64 = *sum};
    } else {
      const auto at = number(*object, "at");
      const auto size = number(*object, "size");
      const auto records = number(*object, "records");
      const auto raw = number(*object, "raw");
      const auto first = entry(*object, "first");
      const auto last = entry(*object, "last");
      const auto sum = hex(*object, "xxh64");
      if (!at || !size || !records || !raw || !first || !last || !sum || *at != expected || *size == 0 ||
          *size > segment_size || *at > segment_size - *size || *last < *first ||
          (!out.frames.empty() && *first <= out.frames.back().last)) {
        break;
      }
      out.frames.push_back({*at, *size, *raw, *records, *first, *last, *sum});
    }
    begin = end + 1;
    out.sound = begin;
  }
  return out;
}

Result<std::vector<std::pair<bus::EntryNumber, Record>>> read_lines(string_view lines) {
  std::vector<std::pair<bus::EntryNumber, Record>> out;
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    if (end == string_view::npos)
      return archive::failed(ArchiveErrc::broken, "a line of a frame has no end");
    ECHOMQ_TRY(auto record, read_line(lines.substr(0, end)));
    out.push_back(std::move(record));
    lines.remove_prefix(end + 1);
  }
  return out;
}

Result<Frame> describe(string_view lines) {
  ECHOMQ_TRY(const auto records, read_lines(lines));
  if (records.empty())
    return archive::failed(ArchiveErrc::broken, "a frame without a record");
  Frame frame;
  frame.raw = lines.size();
  frame.records = records.size();
  frame.first = records.front().first;
  frame.last = records.back().first;
  for (std::size_t i = 1; i < records.size(); ++i) {
    if (records[i].first <= records[i - 1].first)
      return archive::failed(ArchiveErrc::broken, "records of a frame are out of order");
  }
  return frame;
}

}  // namespace archive
}  // namespace v1
}  // namespace echomq
