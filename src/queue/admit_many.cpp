// Admission of many jobs.
#include "queue/admit_many.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <new>
#include <utility>

#include "queue/admit_call.hpp"
#include "queue/arguments.hpp"
#include "queue/scripts.hpp"
#include "queue/start.hpp"
#include "resp/encode.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// One script of a batch, or the repetition of those of its jobs whose fresh ids were taken.
class AdmitMany::Chunk final : public detail::Call {
 public:
  /// Jobs of the batch at `first` and on; `places` names them one by one instead when it is not empty.
  static Chunk* make(AdmitMany& batch, AdmitFrame frame, std::span<const AdmitItem> items,
                     std::span<const AdmitTail> tails, std::size_t first, std::vector<std::uint32_t> places,
                     std::uint8_t collisions) {
    std::size_t parts = frame.size() + 2 * items.size();
    for (const AdmitTail& tail : tails)
      parts += tail.size();
    std::size_t size = resp::count_size(parts);
    for (const std::string_view part : frame)
      size += resp::bulk_size(part);
    for (const AdmitItem& item : items)
      size += resp::bulk_size(item.id.text()) + resp::bulk_size(item.payload);
    for (const AdmitTail& tail : tails) {
      for (const std::string_view part : tail)
        size += resp::bulk_size(part);
    }

    void* memory = ::operator new(sizeof(Chunk) + size);
    auto* call =
        ::new (memory) Chunk(batch, frame.size(), items.size(), !tails.empty(), first, std::move(places), collisions);
    char* const bytes = reinterpret_cast<char*>(call + 1);
    char* out = resp::write_count(bytes, parts);
    for (const std::string_view part : frame)
      out = resp::write_bulk(out, part);
    for (std::size_t i = 0; i < items.size(); ++i) {
      out = resp::write_bulk(out, items[i].id.text());
      out = resp::write_bulk(out, items[i].payload);
      if (tails.empty())
        continue;
      for (const std::string_view part : tails[i])
        out = resp::write_bulk(out, part);
    }
    call->request = bytes;
    call->request_size = static_cast<std::uint32_t>(size);
    call->script = &Scripts::get().admit;
    return call;
  }

  void accept(const resp::View& reply) noexcept override {
    if (reply.is_error()) {
      fill(wire::to_error(reply.error_text()));
    } else if (reply.size() != count_) {
      fill(unexpected_reply("enqueue_many", reply).error());
    } else {
      take(reply);
    }
    publish();
    batch_->part_done();
  }

  void fail(Error error) noexcept override {
    fill(error);
    publish();
    batch_->part_done();
  }

 private:
  Chunk(AdmitMany& batch, std::size_t frame, std::size_t count, bool tailed, std::size_t first,
        std::vector<std::uint32_t> places, std::uint8_t collisions)
      : batch_((batch.retain(), &batch)),
        frame_(frame),
        count_(count),
        tailed_(tailed),
        first_(first),
        places_(std::move(places)),
        collisions_(collisions) {
    batch.left_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Chunk() override = default;
  void destroy() noexcept override {
    this->~Chunk();
    ::operator delete(static_cast<void*>(this));
  }

  [[nodiscard]] std::size_t place(std::size_t index) const { return places_.empty() ? first_ + index : places_[index]; }
  [[nodiscard]] Result<Admission>& result(std::size_t index) const { return batch_->results_[place(index)]; }
  void fill(const Error& error) {
    for (std::size_t i = 0; i < count_; ++i)
      result(i) = std::unexpected<Error>(error);
  }

  void take(const resp::View& reply) {
    std::vector<std::uint32_t> taken;
    std::size_t index = 0;
    for (const resp::View& verdict : reply.elements()) {
      Result<Admission>& result = this->result(index);
      const JobId id = result->id;
      const bool minted = result->verdict == Admitted::enqueued;
      switch (verdict.as_integer().value_or(-100)) {
        case 1: result->verdict = Admitted::enqueued; break;
        case 0:
          if (resent)
            break;  // the place says already what a duplicate means now
          if (minted) {
            batch_->core_.count_id_collision();
            taken.push_back(static_cast<std::uint32_t>(index));
          } else {
            result->verdict = Admitted::duplicate;
          }
          break;
        case -2:
          result = echomq::fail(Errc::wrong_kind, fmt::format("job id must be JOB-namespaced, got {}", id.text()));
          break;
        case -3: result = std::unexpected<Error>(broken_row(id)); break;
        default: result = unexpected_reply("enqueue_many", verdict); break;
      }
      ++index;
    }
    if (!taken.empty())
      mint_again(taken);
  }

  /// All parts of the request from the first id on.
  [[nodiscard]] std::vector<std::string_view> record_parts() const {
    std::string_view bytes(request, request_size);
    std::size_t total = 0;
    std::from_chars(bytes.data() + 1, bytes.data() + bytes.size(), total);
    std::vector<std::string_view> parts;
    parts.reserve(total - frame_);
    for (std::size_t at = bytes.find('\n') + 1, part = 0; part < total; ++part) {
      std::size_t size = 0;
      const char* const end = std::from_chars(bytes.data() + at + 1, bytes.data() + bytes.size(), size).ptr;
      const std::size_t text = static_cast<std::size_t>(end - bytes.data()) + 2;
      if (part >= frame_)
        parts.push_back(bytes.substr(text, size));
      at = text + size + 2;
    }
    return parts;
  }
  /// Where the records of a request with tails begin in its `record_parts`: id, payload, group, mode, value, n, fields.
  [[nodiscard]] static std::vector<std::size_t> record_starts(std::span<const std::string_view> parts) {
    constexpr std::size_t kHead = 6;
    std::vector<std::size_t> starts;
    for (std::size_t at = 0; at < parts.size();) {
      starts.push_back(at);
      const std::string_view number = parts[at + kHead - 1];
      std::size_t fields = 0;
      std::from_chars(number.data(), number.data() + number.size(), fields);
      at += kHead + 2 * fields;
    }
    starts.push_back(parts.size());
    return starts;
  }

  /// `taken` are indexes of this chunk.
  void mint_again(const std::vector<std::uint32_t>& taken) {
    const std::string_view bytes(request, request_size);
    std::vector<std::string_view> frame;
    for (std::size_t i = 0; i < frame_; ++i)
      frame.push_back(request_part(bytes, i));
    const std::vector<std::string_view> parts = record_parts();
    const std::vector<std::size_t> starts = tailed_ ? record_starts(parts) : std::vector<std::size_t>();
    std::vector<AdmitItem> items;
    std::vector<AdmitTail> tails;
    std::vector<std::uint32_t> places;
    for (const std::uint32_t index : taken) {
      Result<Admission>& result = this->result(index);
      if (collisions_ + 1 >= kMostCollisions) {
        result = std::unexpected<Error>(too_many_collisions(result->id));
        continue;
      }
      auto fresh = batch_->core_.mint("JOB");
      if (!fresh) {
        result = std::unexpected<Error>(std::move(fresh).error());
        continue;
      }
      result->id = JobId(*fresh);
      const std::size_t start = tailed_ ? starts[index] : 2 * std::size_t{index};
      items.push_back({result->id, parts[start + 1], true});
      if (tailed_)
        tails.push_back(AdmitTail(parts).subspan(start + 2, starts[index + 1] - start - 2));
      places.push_back(static_cast<std::uint32_t>(place(index)));
    }
    if (items.empty())
      return;
    Chunk* again =
        make(*batch_.get(), frame, items, tails, 0, std::move(places), static_cast<std::uint8_t>(collisions_ + 1));
    // Whoever brings the answer that this follows from may be the only one who reads: it must not wait for room.
    wire::CallSettings how{.repeat = Repeat::safe, .never_refused = true};
    if (deadline != detail::Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - detail::Clock::now());
      how.deadline = std::max(left, std::chrono::milliseconds{1});
    }
    batch_->core_.submit(again, how);
  }

  detail::CallPointer<AdmitMany> batch_;
  std::size_t frame_;
  std::size_t count_;
  bool tailed_;
  std::size_t first_;
  std::vector<std::uint32_t> places_;
  std::uint8_t collisions_;
};

AdmitMany::AdmitMany(client::Core& core, std::size_t jobs) : core_(core) { results_.reserve(jobs); }

void AdmitMany::part_done() noexcept {
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  if (!win())
    return;  // cancelled meanwhile
  store(std::move(results_));
  publish();
}

Reply<std::vector<Result<Admission>>> AdmitMany::start(client::Core& core, AdmitFrame frame,
                                                       std::span<const AdmitItem> items,
                                                       std::span<const AdmitTail> tails, wire::CallSettings settings) {
  auto* batch = new AdmitMany(core, items.size());
  detail::CallPointer<detail::CallOf<std::vector<Result<Admission>>>> mine(batch);
  for (const AdmitItem& item : items) {
    batch->results_.emplace_back(Admission{item.id, item.minted ? Admitted::enqueued : Admitted::present});
  }
  for (std::size_t first = 0; first < items.size();) {
    std::size_t last = first;
    std::size_t bytes = 0;
    while (last < items.size() && last - first < kChunkJobs) {
      bytes += BrandedId::kSize + items[last].payload.size();
      if (bytes > kChunkBytes && last > first)
        break;
      ++last;
    }
    Chunk* chunk = Chunk::make(*batch, frame, items.subspan(first, last - first),
                               tails.empty() ? tails : tails.subspan(first, last - first), first, {}, 0);
    detail::CallPointer<detail::Call> kept((chunk->retain(), chunk));
    core.submit(chunk, settings);
    // Whoever waits for the batch drives the connection and continues where its chunks do.
    batch->source = kept->source;
    batch->default_target = kept->default_target;
    first = last;
  }
  batch->part_done();
  return Reply<std::vector<Result<Admission>>>(std::move(mine));
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
