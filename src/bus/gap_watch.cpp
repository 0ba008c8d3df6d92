// Counting what a reader has missed.
#include "bus/gap_watch.hpp"

#include <algorithm>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace bus {

std::optional<MissedRecords> GapWatch::compare(EntryNumber at, std::uint64_t added) {
  const std::uint64_t passed = passed_.value_or(added);
  passed_ = added;
  const EntryNumber from = std::exchange(clean_, std::max(clean_, at));
  if (added <= passed)
    return std::nullopt;
  return MissedRecords{.missed = added - passed, .from = from, .until = at};
}

std::optional<MissedRecords> GapWatch::read(const std::vector<EntryNumber>& records) {
  if (records.empty())
    return std::nullopt;
  cursor_ = records.back();
  const bool arrived = ahead_ && cursor_ >= ahead_->at;
  const auto beyond =
      arrived ? static_cast<std::uint64_t>(records.end() - std::upper_bound(records.begin(), records.end(), ahead_->at))
              : 0;
  if (passed_)
    *passed_ += records.size() - beyond;
  if (!arrived) {
    if (!passed_)
      last_ = records;
    return std::nullopt;
  }
  auto found = compare(ahead_->at, ahead_->added);
  *passed_ += beyond;
  ahead_.reset();
  last_.clear();
  return found;
}

std::optional<MissedRecords> GapWatch::looked(const StreamLook& look) {
  if (look.length > look.added)
    return std::nullopt;  // a server that does not count
  const std::uint64_t removed = look.added - look.length;
  const bool at_end = look.top <= cursor_;
  const bool nothing_left = !look.first || *look.first > cursor_;
  if (at_end || nothing_left)
    ahead_.reset();
  if (!passed_)
    return find_place(look, removed, at_end, nothing_left);
  if (look.added < *passed_) {
    // Another stream under the same key.
    ahead_.reset();
    passed_.reset();
    if (at_end || nothing_left)
      passed_ = at_end ? look.added : removed;
    const EntryNumber from = std::exchange(clean_, cursor_);
    return MissedRecords{.missed = std::nullopt, .from = from, .until = cursor_, .begun_anew = true};
  }
  if (at_end)
    return compare(cursor_, look.added);
  // All that was added before what is there now has gone: what of it was not read is missing.
  if (nothing_left)
    return removed > *passed_ ? compare(look.first.value_or(look.top), removed) : std::nullopt;
  if (!ahead_)
    ahead_ = Ahead{.at = look.top, .added = look.added};
  return std::nullopt;
}

std::optional<MissedRecords> GapWatch::find_place(const StreamLook& look, std::uint64_t removed, bool at_end,
                                                  bool nothing_left) {
  // Nothing can be missing where nothing was ever removed, while something older is there, and behind the newest entry.
  const bool clean =
      removed == 0 || clean_ == EntryNumber{} || (look.first && *look.first <= clean_) || (at_end && cursor_ == clean_);
  const EntryNumber from = std::exchange(clean_, cursor_);
  if (at_end) {
    passed_ = look.added;
  } else if (nothing_left) {
    passed_ = removed;
  } else if (!last_.empty() && *look.first >= last_.front()) {
    // What is there begins within the last read.
    const auto there = std::lower_bound(last_.begin(), last_.end(), *look.first);
    passed_ = removed + static_cast<std::uint64_t>(last_.end() - there);
  } else if (!ahead_) {
    ahead_ = Ahead{.at = look.top, .added = look.added};
  }
  last_.clear();
  if (clean)
    return std::nullopt;
  return MissedRecords{.missed = std::nullopt, .from = from, .until = cursor_};
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
