// Sending acknowledgements.
#include "bus/group_acks.hpp"

#include <string_view>
#include <utility>

#include "bus/coarse_clock.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

/// On their way at most.
constexpr std::size_t kMostSent = 4;

}  // namespace

void GroupAcks::add(std::string entry, std::size_t most) {
  const auto now = coarse_now();
  const std::lock_guard lock(mutex_);
  if (entries_.empty())
    oldest_ = now;
  entries_.push_back(std::move(entry));
  if (entries_.size() >= most || now - oldest_ >= kAckDelay)
    send();
}

bool GroupAcks::empty() {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void GroupAcks::flush() {
  const std::lock_guard lock(mutex_);
  send();
}

void GroupAcks::flush_old() {
  const std::lock_guard lock(mutex_);
  if (!entries_.empty() && coarse_now() - oldest_ >= kAckDelay)
    send();
}

void GroupAcks::await(std::size_t most) {
  const std::lock_guard lock(mutex_);
  while (sent_.size() > most)
    await_oldest();
}

void GroupAcks::send() {
  if (entries_.empty())
    return;
  const std::vector<std::string_view> entries(entries_.begin(), entries_.end());
  sent_.push_back(group_.acknowledge(entries));
  entries_.clear();
  while (sent_.size() > kMostSent)
    await_oldest();
}

void GroupAcks::await_oldest() {
  Reply<std::uint64_t> sent = std::move(sent_.front());
  sent_.pop_front();
  answered_(sent.get());
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
