// Who learns of new streams of a queue: one thread asks for all tails of patterns of a client.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "keyspace/keys.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// Thread-safe.
class SubjectHub {
 public:
  /// Told of each name until it says that it has taken it. Must not call the hub.
  using OnName = std::function<bool(const std::string& name)>;

  /// That of the core and queue; one as long as anybody holds it.
  [[nodiscard]] static std::shared_ptr<SubjectHub> of(const std::shared_ptr<client::Core>& core,
                                                      const QueueName& queue);
  ~SubjectHub();

  /// All names now: the list, and what SCAN finds. Errors: those of the server.
  [[nodiscard]] Result<std::set<std::string>> look();
  /// `on_name` is called for every name that is not in `known`, on the hub's thread, until `forget` has returned.
  [[nodiscard]] std::uint64_t watch(std::set<std::string> known, OnName on_name);
  void forget(std::uint64_t number);

 private:
  SubjectHub(std::shared_ptr<client::Core> core, const QueueName& queue);
  void run();
  [[nodiscard]] Result<std::set<std::string>> read_list(bool all);
  [[nodiscard]] Result<void> scan(std::set<std::string>& into);
  void tell(const std::set<std::string>& names);

  struct Watcher {
    std::set<std::string> known;
    OnName on_name;
  };

  const std::shared_ptr<client::Core> core_;
  const keyspace::QueueKeys keys_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                      // guarded by mutex_
  std::uint64_t last_number_ = 0;              // guarded by mutex_
  std::mutex telling_;                         // held while watchers are called
  std::map<std::uint64_t, Watcher> watchers_;  // guarded by telling_
  std::atomic<bool> all_again_{true};          ///< the next look is at the whole list
  // Of the thread.
  std::string last_score_ = "0";
  std::string last_name_;
  std::thread thread_;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
