// Something that is awaited, and whose connection a thread with nothing else to do may read by itself.
#pragma once

#include <functional>

namespace echomq {
inline namespace v1 {
namespace client {

/// What a `WakeWatch` can be besides.
class Attended {
 public:
  /// Reads the connection on which this watch's claim waits, in the library's place: so that a thread hears of its job from
  /// nobody but the server. The function returns when something has come or when the eventfd `bell` is readable. Empty
  /// where no claim waits.
  [[nodiscard]] virtual std::function<void(int bell)> attendant() = 0;

 protected:
  ~Attended() = default;
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
