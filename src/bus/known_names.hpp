// What is known about the names that were used of late: bounded, however many names there are.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace bus {

/// Two generations: when the young one is full it becomes the old one, and what was the old one is forgotten. A name that is
/// asked for is young. Of one thread.
template <typename T>
class KnownNames {
 public:
  /// So many names and fewer are never forgotten; twice as many are never kept. >= 1.
  explicit KnownNames(std::size_t least) : least_(least) {}

  /// Null when it is not known. Valid until the next name is added or found.
  [[nodiscard]] T* find(std::string_view name) {
    if (const auto young = young_.find(name); young != young_.end())
      return &young->second;
    const auto old = old_.find(name);
    if (old == old_.end())
      return nullptr;
    auto node = old_.extract(old);
    make_room();
    return &young_.insert(std::move(node)).position->second;
  }
  /// A name that is not known.
  T& add(std::string_view name, T value) {
    make_room();
    return young_.emplace(std::string(name), std::move(value)).first->second;
  }
  [[nodiscard]] std::size_t size() const noexcept { return young_.size() + old_.size(); }

 private:
  using Names = std::map<std::string, T, std::less<>>;

  void make_room() {
    if (young_.size() < least_)
      return;
    old_ = std::move(young_);
    young_ = Names();
  }

  const std::size_t least_;
  Names young_;
  Names old_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
