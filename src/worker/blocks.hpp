// Memory of jobs, used again: a job costs no allocation but its payload once as many have been in hand at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace echomq {
inline namespace v1 {
namespace worker {

/// Blocks of one size, the first that is asked for; other sizes come from the heap. Thread-safe: a handler's thread may
/// be the last to let a job go.
class Blocks {
 public:
  Blocks() = default;
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() {
    for (void* block : free_)
      ::operator delete(block);
  }

  [[nodiscard]] void* take(std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      if (size_ == 0)
        size_ = size;
      if (size == size_ && !free_.empty()) {
        void* block = free_.back();
        free_.pop_back();
        return block;
      }
      // Room for it is made here, so that giving back never allocates.
      if (size == size_ && free_.capacity() < ++made_)
        free_.reserve(2 * made_);
    }
    return ::operator new(size);
  }

  void give(void* block, std::size_t size) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (size == size_ && free_.size() < kMostFree && free_.size() < free_.capacity()) {
        free_.push_back(block);
        return;
      }
    }
    ::operator delete(block);
  }

 private:
  static constexpr std::size_t kMostFree = 4096;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::size_t size_ = 0;
  std::size_t made_ = 0;
  std::vector<void*> free_;
};

/// For `std::allocate_shared`. Keeps the blocks alive as long as one of them is in use.
template <typename T>
struct BlockAllocator {
  using value_type = T;

  explicit BlockAllocator(std::shared_ptr<Blocks> its_blocks) noexcept : blocks(std::move(its_blocks)) {}
  template <typename U>
  BlockAllocator(const BlockAllocator<U>& other) noexcept  // NOLINT(google-explicit-constructor)
      : blocks(other.blocks) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(blocks->take(count * sizeof(T)));
  }
  void deallocate(T* block, std::size_t count) noexcept { blocks->give(block, count * sizeof(T)); }

  template <typename U>
  bool operator==(const BlockAllocator<U>& other) const noexcept {
    return blocks == other.blocks;
  }

  std::shared_ptr<Blocks> blocks;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
