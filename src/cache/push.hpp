// What a coherence connection says, and to whom.
#pragma once

#include <string_view>

#include "echomq/cache.hpp"
#include "resp/view.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

/// What is told to the table, on the thread that reads the connection.
class CoherenceSink {
 public:
  /// The subscription is confirmed.
  virtual void armed() noexcept = 0;
  /// The connection is gone, or the server took the subscription back.
  virtual void lost() noexcept = 0;
  /// The server has refused the subscription, or not answered in time; it is asked again.
  virtual void refused() noexcept {}
  virtual void heard(const CoherenceMessage& message) noexcept = 0;
  /// Tracking: that row has changed, nobody knows how.
  virtual void changed(const BrandedId& id) noexcept = 0;
  /// Tracking: the database was flushed.
  virtual void all_changed() noexcept = 0;
  /// Something on the channel that is no message of this table.
  virtual void ignored() noexcept = 0;

 protected:
  ~CoherenceSink() = default;
};

/// Reads one push: `message` of the channel, or `invalidate` of keys below the prefix. Anything else is passed over.
void read_push(const resp::View& frame, std::string_view prefix, std::string_view channel, CoherenceSink& sink);

}  // namespace cache
}  // namespace v1
}  // namespace echomq
