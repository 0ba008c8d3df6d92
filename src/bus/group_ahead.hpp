// Pages of new entries that a consumer has asked for before their turn. They are in hand like the one that is handled: they are kept from
// other consumers until it comes.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/detail/call.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// Thread-safe.
class GroupAhead {
 public:
  using TimePoint = detail::Clock::time_point;
  using Entries = Result<std::vector<Delivery>>;

  GroupAhead(const StreamGroup& group, std::string_view consumer, Milliseconds min_idle)
      : group_(group), consumer_(consumer), min_idle_(min_idle) {}

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] bool empty() const { return size() == 0; }
  /// A page is asked for.
  void ask(std::uint32_t count);
  struct Page {
    TimePoint touched;  ///< the earliest moment since which its entries may lie idle
    Entries entries;
  };
  /// The oldest, of one or more; waits for its answer.
  [[nodiscard]] Page take();
  /// Refreshes what has come and has lain for a third of `min_idle`; waits for the server. How many entries others have taken over: they
  /// are not in the pages any more.
  [[nodiscard]] std::size_t refresh();

 private:
  struct Asked {
    TimePoint touched;
    Reply<std::vector<Delivery>> reply;
    std::optional<Entries> entries;  ///< taken from the reply
    bool refreshes = false;
  };

  const StreamGroup group_;
  const std::string consumer_;
  const Milliseconds min_idle_;
  mutable std::mutex mutex_;
  std::deque<Asked> asked_;  // guarded by mutex_
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
