// The wake hub: one parked connection that waits on the wake lists of all queues whose workers are parked.
//
// Tokens are hints and are never owed to anybody, but one that is taken and not used would leave a parked worker of
// another process asleep: a token for a queue whose worker has left its parking place meanwhile is pushed back.
//
// Where all watches are of one queue, a parked worker's claim rides behind the BLPOP: the server runs it in the moment the
// token comes, which saves a round trip and two thread switches.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/core.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// Ends a call that was never sent, with its reference.
void end_claim(detail::Call& claim, const Error& why);

class WakeHub final : public wire::LinkObserver, public std::enable_shared_from_this<WakeHub> {
 public:
  /// The hub's ways to the server that has its wake lists.
  struct Ways {
    /// A connection to park on.
    std::function<std::shared_ptr<wire::Link>(const std::shared_ptr<WakeHub>&)> park;
    /// The pipelined connection to the same server: for CLIENT UNBLOCK.
    std::function<std::shared_ptr<wire::Link>(const wire::Link& parked)> beside;
    /// Runs a function on the library's thread after a short wait.
    std::function<void(std::chrono::milliseconds wait, std::function<void()> function)> later;
    /// Sends a token back to its list.
    std::function<void(detail::Call*)> push_back;
    /// Whether the lists are somewhere else by now. Absent where there is one server only.
    std::function<bool(const wire::Link& parked)> misplaced;
    /// Asks where they are; `look_again` is called when that is known.
    std::function<void()> find;
  };
  WakeHub(Ways ways, wire::Counters& counters, detail::Target* target);

  [[nodiscard]] std::unique_ptr<WakeWatch> watch(std::string wake_key, std::function<void()> on_wake);
  void close(const Error& why);
  /// Parks where the lists are now. On the library's thread.
  void look_again();
  /// Whether anybody watches.
  [[nodiscard]] bool used() const;

  void link_live(std::int64_t connection_id) override;
  void link_lost(const Error& why) override;
  void link_push(const resp::View&) override {}

 private:
  class Watch;
  friend class Watch;

  void set_parked(Watch& watch, bool parked, detail::Call* claim, detail::Clock::time_point until);
  void remove(Watch& watch);
  [[nodiscard]] std::function<void(int bell)> attendant(const Watch& watch) const;
  void ask_locked();
  void unblock_locked();
  void unpark_locked(Watch& watch);
  /// Whether a claim may ride behind the BLPOP that asks for `asked_`.
  [[nodiscard]] bool may_ride_locked() const;
  [[nodiscard]] Watch* next_rider_locked();
  /// Sends the next claim in line home whose time is over or nearly so: its worker, if it still sleeps, comes with a new one.
  void renew_next_locked();
  /// The BLPOP in flight has ended: whose claim was behind it waits in line no more. Null when there was none.
  Watch* dismount_locked();
  /// The rider's claim when it is not written yet: then it is taken off the connection.
  [[nodiscard]] detail::Call* withdraw_locked();
  /// Gives up the connection, and what waits on it; parks anew when somebody is parked. Gives it to be closed without the lock.
  [[nodiscard]] std::shared_ptr<wire::Link> leave_connection_locked();
  void unblock_again(std::uint64_t generation);
  void unblock_refused(std::uint64_t generation);
  void answered(std::uint64_t generation, const std::string& key, bool got_token);
  /// The server has answered BLPOP with an error.
  void refused(std::uint64_t generation, const Error& why);
  void failed(std::uint64_t generation, const Error& why);
  void notify(const std::string& key, bool all);
  void send(std::vector<std::string> parts);

  const Ways ways_;
  wire::Counters& counters_;
  detail::Target* const target_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<wire::Link> link_;
  std::multimap<std::string, Watch*> watches_;
  std::map<std::string, std::uint32_t> parked_;  // key -> watches parked on it
  std::vector<std::string> asked_;               // keys of the BLPOP in flight
  bool asking_ = false;
  std::uint64_t generation_ = 0;  // of the BLPOP in flight
  bool unblocking_ = false;
  unsigned unblocks_ = 0;                 // of the BLPOP in flight that did not find it
  bool can_unblock_ = true;               // the server has not forbidden it
  bool refused_ = false;                  // BLPOP was, not long ago
  Watch* rider_ = nullptr;                // whose claim is behind the BLPOP in flight
  const detail::Call* ridden_ = nullptr;  // that claim, known by its address only
  bool lived_ = false;                    // there was a connection
  bool closed_ = false;
  // Held while callbacks run, so that a watch can wait for its own to end.
  std::recursive_mutex callbacks_;
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
