// Tells the server every now and then what a table has counted, for `emq cache stats`: one key a table and process, which
// expires when nobody renews it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "echomq/cache.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

class Report {
 public:
  /// `stats` is called on a thread of its own until the end of the object.
  Report(std::shared_ptr<client::Core> core, const CacheName& table, const BrandedId& process,
         std::chrono::milliseconds every, std::function<CacheStats()> stats);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  /// Where reports of a table begin.
  [[nodiscard]] static std::string prefix(const CacheName& table);

 private:
  void run();
  void send();

  const std::shared_ptr<client::Core> core_;
  const std::string key_;
  const std::chrono::milliseconds every_;
  const std::function<CacheStats()> stats_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
