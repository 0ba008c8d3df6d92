// Records that wait, and their answers.
#include "bus/waiting_record.hpp"

#include <new>
#include <utility>

#include "resp/encode.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

void ManyAppends::set(std::size_t index, Result<EventId> result) {
  results_[index] = std::move(result);
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1 && win()) {
    store(std::move(results_));
    publish();
  }
}

WaitingRecord* WaitingRecord::make(std::span<const Field> fields, Milliseconds max_skew,
                                   detail::Clock::time_point deadline) {
  std::size_t size = 0;
  for (const auto& [name, value] : fields)
    size += resp::bulk_size(name) + resp::bulk_size(value);
  void* memory = ::operator new(sizeof(WaitingRecord) + size);
  auto* record = ::new (memory) WaitingRecord;
  char* out = reinterpret_cast<char*>(record + 1);
  record->request = out;
  record->request_size = static_cast<std::uint32_t>(size);
  for (const auto& [name, value] : fields) {
    out = resp::write_bulk(out, name);
    out = resp::write_bulk(out, value);
  }
  record->fields_ = static_cast<std::uint32_t>(fields.size());
  record->max_skew = max_skew;
  record->deadline = deadline;
  return record;
}

void WaitingRecord::destroy() noexcept {
  if (many_ != nullptr)
    many_->release();
  this->~WaitingRecord();
  ::operator delete(static_cast<void*>(this));
}

void WaitingRecord::answer_to(ManyAppends& many, std::size_t index) noexcept {
  many.retain();
  many_ = &many;
  index_ = index;
}

void WaitingRecord::answer_appended() {
  if (many_ != nullptr) {
    many_->set(index_, EventId(*id));
  } else if (win()) {
    store(EventId(*id));
    answered_ = true;
  }
}

void WaitingRecord::tell() {
  if (answered_)
    publish();
  release();
}

void WaitingRecord::settle(Result<EventId> result) {
  if (many_ != nullptr) {
    many_->set(index_, std::move(result));
  } else if (win()) {
    store(std::move(result));
    publish();
  }
  release();
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
