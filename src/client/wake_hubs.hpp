// The wake hubs of a client: one for all queues of a single server; in a cluster one for each slot, up to a bound.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/wake_hub.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// A BLPOP waits on keys of one slot, and a connection waits for one BLPOP: a cluster needs a parked connection a slot.
/// Beyond `kMostParked` of them a watch wakes nobody, and its worker looks by its beat.
class WakeHubs {
 public:
  static constexpr std::size_t kMostParked = 16;
  /// Makes the hub of a slot.
  using Make = std::function<std::shared_ptr<WakeHub>(std::uint32_t slot)>;

  /// `by_slot` false: all queues share the hub of slot 0.
  WakeHubs(bool by_slot, Make make) : by_slot_(by_slot), make_(std::move(make)) {}

  [[nodiscard]] std::unique_ptr<WakeWatch> watch(std::string wake_key, std::function<void()> on_wake);
  /// As `WakeHub::look_again`, of all.
  void look_again();
  void close(const Error& why);

 private:
  const bool by_slot_;
  const Make make_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::uint32_t, std::shared_ptr<WakeHub>> hubs_;
  std::optional<Error> closed_;  // why
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
