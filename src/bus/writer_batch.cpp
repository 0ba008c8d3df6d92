// Requests of a writer.
#include "bus/writer_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "resp/encode.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

[[nodiscard]] const script::ScriptSource* append_script() noexcept {
  static const script::ScriptSource* const script = script::find_script("stream_append");
  return script;
}

[[nodiscard]] const script::ScriptSource* publish_script() noexcept {
  static const script::ScriptSource* const script = script::find_script("stream_publish");
  return script;
}

/// Entry ids of records, of which most have the millisecond of the one before.
class EntryText {
 public:
  /// Valid until the next one.
  [[nodiscard]] std::string_view of(std::uint64_t value) noexcept {
    if (const std::uint64_t milliseconds = value >> 22; milliseconds != milliseconds_) {
      milliseconds_ = milliseconds;
      const auto since = kIdEpoch.time_since_epoch().count() + static_cast<std::int64_t>(milliseconds);
      tail_ = std::to_chars(text_.data(), text_.data() + text_.size(), since).ptr;
      *tail_++ = '-';
    }
    char* const end = std::to_chars(tail_, text_.data() + text_.size(), value & 0x3FFFFF).ptr;
    return {text_.data(), static_cast<std::size_t>(end - text_.data())};
  }

 private:
  std::array<char, 40> text_{};
  char* tail_ = nullptr;
  std::uint64_t milliseconds_ = UINT64_MAX;
};

void write_bulk(std::string& out, std::string_view text) {
  const std::size_t at = out.size();
  out.resize(at + resp::bulk_size(text));
  resp::write_bulk(out.data() + at, text);
}

}  // namespace

Writer::Batch::Batch(std::shared_ptr<Writer> writer, Form form_of) : form(form_of), writer_(std::move(writer)) {
  slot = writer_->slot_;
  if (form == Form::script || form == Form::look)
    script = append_script();
  if (form == Form::keyed)
    script = publish_script();
}

void Writer::Batch::part(const resp::View& reply) noexcept {
  if (reply.is_error())
    refusals_.emplace_back(replies_, wire::to_error(reply.error_text()));
  ++replies_;
}

void Writer::Batch::accept(const resp::View& reply) noexcept {
  if (form == Form::run) {
    part(reply);
    writer_->run_answered(*this);
  } else {
    writer_->answered(*this, reply);
  }
  publish();
}

void Writer::Batch::fail(Error error) noexcept {
  writer_->failed(*this, error);
  publish();
}

void Writer::Batch::encode(std::string_view key) {
  switch (form) {
    case Form::run:
    case Form::plain: encode_adds(key); break;
    case Form::keyed: encode_keyed(key); break;
    case Form::script:
    case Form::look: encode_script(key); break;
  }
  request = bytes_.data();
  request_size = static_cast<std::uint32_t>(bytes_.size());
}

void Writer::Batch::encode_adds(std::string_view key) {
  std::string head = "$4\r\nXADD\r\n";
  write_bulk(head, key);
  constexpr std::string_view kId = "$2\r\nid\r\n";
  // What stands around the fields of a record: the count, the entry id, the receipt.
  const std::size_t around = head.size() + kId.size() + 100;
  std::size_t size = 0;
  for (const WaitingRecord* record : records)
    size += record->encoded().size() + around;
  bytes_.resize_and_overwrite(size, [&](char* const begin, std::size_t) {
    char* out = begin;
    EntryText entry;
    for (const WaitingRecord* record : records) {
      const std::string_view fields = record->encoded();
      out = resp::write_count(out, 3 + record->texts());
      out = std::copy(head.begin(), head.end(), out);
      out = resp::write_bulk(out, entry.of(record->value));
      out = std::copy(kId.begin(), kId.end(), out);
      out = resp::write_bulk(out, record->id->text());
      out = std::copy(fields.begin(), fields.end(), out);
    }
    return out - begin;
  });
  replies = static_cast<std::uint32_t>(records.size());
}

void Writer::Batch::encode_keyed(std::string_view key) {
  const OnceKey& of = *records.front()->once;
  std::size_t words = 8;
  for (const WaitingRecord* record : records)
    words += 3 + record->texts();
  begin(words);
  for (const std::string_view word : {std::string_view("EVALSHA"), script->sha1, std::string_view("3"), key,
                                      std::string_view(of.keys), std::string_view(of.ages)})
    write_bulk(bytes_, word);
  write_bulk(bytes_, Decimal(of.window.most));
  write_bulk(bytes_, Decimal(of.window.age.count()));
  for (const WaitingRecord* record : records) {
    write_bulk(bytes_, record->once->key);
    add(*record);
  }
}

void Writer::Batch::encode_script(std::string_view key) {
  std::size_t words = 6 + later.size();
  if (form == Form::script) {
    for (const WaitingRecord* record : records)
      words += 2 + record->texts();
  }
  begin(words);
  for (const std::string_view word : {std::string_view("EVALSHA"), script->sha1, std::string_view("1"), key})
    write_bulk(bytes_, word);
  write_bulk(bytes_, before ? fmt::format("{} {}", before->entry_id().text(), before->text()) : std::string());
  if (looks()) {
    write_bulk(bytes_, Decimal(later.size()));
    for (const auto& [number, id] : later)
      write_bulk(bytes_, fmt::format("{} {}", id.entry_id().text(), id.text()));
  } else {
    write_bulk(bytes_, "");
  }
  if (form == Form::script) {
    for (const WaitingRecord* record : records)
      add(*record);
  }
}

bool Writer::Batch::looks() const {
  return !later.empty() ||
         std::ranges::any_of(records, [](const WaitingRecord* record) { return record->maybe_there; });
}

std::vector<std::pair<std::size_t, Error>> Writer::Batch::refusals() {
  const std::size_t stale = replies_ - records.size();
  std::vector<std::pair<std::size_t, Error>> out;
  for (auto& [at, error] : refusals_) {
    if (at >= stale)
      out.emplace_back(at - stale, std::move(error));
  }
  return out;
}

void Writer::Batch::begin(std::size_t words) {
  std::size_t size = 256 + resp::count_size(words) + 60 * later.size();
  for (const WaitingRecord* record : records)
    size += record->encoded().size() + 120;
  bytes_.reserve(size);
  bytes_.resize(resp::count_size(words));
  resp::write_count(bytes_.data(), words);
}

void Writer::Batch::add(const WaitingRecord& record) {
  write_bulk(bytes_, record.id->entry_id().text());
  write_bulk(bytes_, Decimal(record.texts()));
  bytes_ += "$2\r\nid\r\n";
  write_bulk(bytes_, record.id->text());
  bytes_ += record.encoded();
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
