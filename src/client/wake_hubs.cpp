// The wake hubs of a client.
#include "client/wake_hubs.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "keyspace/slot.hpp"

namespace echomq {
inline namespace v1 {
namespace client {
namespace {

/// Wakes nobody.
class BeatOnly final : public WakeWatch {
 public:
  void park(bool) override { refuse(); }
  ~BeatOnly() override { refuse(); }
  void park_with(detail::Call* claim, std::chrono::milliseconds) override {
    refuse();
    claim_ = claim;
  }
  [[nodiscard]] std::uint64_t take_tokens() override { return 0; }

 private:
  void refuse() {
    if (claim_ != nullptr)
      end_claim(*std::exchange(claim_, nullptr), Error(Errc::cancelled, "nobody waits any more", Repeat::safe));
  }

  detail::Call* claim_ = nullptr;
};

}  // namespace

std::unique_ptr<WakeWatch> WakeHubs::watch(std::string wake_key, std::function<void()> on_wake) {
  const std::uint32_t slot = by_slot_ ? keyspace::slot(wake_key) : 0;
  const std::lock_guard lock(mutex_);
  auto found = hubs_.find(slot);
  if (found == hubs_.end()) {
    if (hubs_.size() >= kMostParked) {
      const auto unused = std::ranges::find_if(hubs_, [](const auto& entry) { return !entry.second->used(); });
      if (unused == hubs_.end())
        return std::make_unique<BeatOnly>();
      unused->second->close(Error(Errc::client_closed, "nobody watches its queue any more", Repeat::safe));
      hubs_.erase(unused);
    }
    found = hubs_.emplace(slot, make_(slot)).first;
    if (closed_)
      found->second->close(*closed_);  // a connection that is opened now would be closed by nobody
  }
  // Under the lock, so that an unused hub does not go meanwhile.
  return found->second->watch(std::move(wake_key), std::move(on_wake));
}

void WakeHubs::look_again() {
  std::vector<std::shared_ptr<WakeHub>> hubs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [slot, hub] : hubs_)
      hubs.push_back(hub);
  }
  for (const auto& hub : hubs)
    hub->look_again();
}

void WakeHubs::close(const Error& why) {
  const std::lock_guard lock(mutex_);
  closed_ = why;
  for (const auto& [slot, hub] : hubs_)
    hub->close(why);
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
