// Pages that are read ahead.
#include "bus/group_ahead.hpp"

#include <set>
#include <utility>

#include "bus/group_claims.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

std::size_t GroupAhead::size() const {
  const std::lock_guard lock(mutex_);
  return asked_.size();
}

void GroupAhead::ask(std::uint32_t count) {
  const auto now = detail::Clock::now();
  auto reply = group_.read_new(consumer_, {.count = count});
  const std::lock_guard lock(mutex_);
  asked_.push_back({.touched = now, .reply = std::move(reply), .entries = std::nullopt});
}

GroupAhead::Page GroupAhead::take() {
  std::unique_lock lock(mutex_);
  Asked oldest = std::move(asked_.front());
  asked_.pop_front();
  lock.unlock();
  return {oldest.touched, oldest.entries ? *std::move(oldest.entries) : oldest.reply.get()};
}

std::size_t GroupAhead::refresh() {
  const auto now = detail::Clock::now();
  std::vector<std::string> stale;
  {
    const std::lock_guard lock(mutex_);
    for (Asked& page : asked_) {
      if (!page.entries && page.reply.ready())
        page.entries = page.reply.get();
      page.refreshes = page.entries && *page.entries && now - page.touched >= min_idle_ / 3;
      if (!page.refreshes)
        continue;
      for (const Delivery& delivery : **page.entries)
        stale.push_back(delivery.entry);
    }
  }
  if (stale.empty())
    return 0;
  const std::vector<std::string_view> entries(stale.begin(), stale.end());
  const auto kept = keep_entries(group_, consumer_, entries);
  if (!kept)
    return 0;  // again at the next look
  const std::set<std::string, std::less<>> lost(kept->lost.begin(), kept->lost.end());
  std::size_t count = 0;
  const std::lock_guard lock(mutex_);
  // One that was taken meanwhile is looked at when its entries' turn comes.
  for (Asked& page : asked_) {
    if (!std::exchange(page.refreshes, false))
      continue;
    page.touched = now;
    count += std::erase_if(**page.entries, [&](const Delivery& delivery) { return lost.contains(delivery.entry); });
  }
  return count;
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
