// Wakes that may come a moment late.
#include "result/late_wakes.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace detail {

bool LateWakes::keep(std::span<Word* const> words) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return false;
  try {
    kept_.insert(kept_.end(), words.begin(), words.end());
  } catch (const std::bad_alloc&) {
    return false;
  }
  count_.store(kept_.size(), std::memory_order_release);
  return true;
}

void LateWakes::wake(std::span<Word* const> words) noexcept {
  for (Word* const word : words) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(kept_, word);
      if (found == kept_.end())
        continue;  // the library's thread came before
      kept_.erase(found);
      count_.store(kept_.size(), std::memory_order_release);
    }
    futex_wake_all(*word);
  }
}

void LateWakes::ring() noexcept {
  while (count_.load(std::memory_order_acquire) > 0) {
    Word* word = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (kept_.empty())
        return;
      word = kept_.back();
      kept_.pop_back();
      count_.store(kept_.size(), std::memory_order_release);
    }
    futex_wake_all(*word);
  }
}

void LateWakes::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ring();
}

void HeldWakes::hold(WakeLater& gathered, std::shared_ptr<LateWakes> late) noexcept {
  const auto words = gathered.gathered();
  if (words.empty() || count_ > 0 || !late->keep(words)) {
    gathered.flush();
    return;
  }
  std::ranges::copy(words, words_.begin());
  count_ = words.size();
  late_ = std::move(late);
  gathered.forget();
}

void HeldWakes::wake() noexcept {
  if (count_ > 0)
    late_->wake(std::span(words_).first(count_));
  count_ = 0;
}

}  // namespace detail
}  // namespace v1
}  // namespace echomq
