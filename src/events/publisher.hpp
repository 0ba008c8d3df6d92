// Announces what became of jobs on a queue's events channel, many in one write, without ever holding up who says it.
//
// Where nobody listens publishing is a tenth of what a job costs the server. So when the last events reached nobody, the next
// ones, if they are many, wait for one question: is the channel subscribed to, or a pattern, or may there be a replica, or a
// node of a cluster, at which somebody listens? Whoever subscribed before a job ended is seen by a question asked after that. A cluster is not asked.
//
// Events are at most once by the protocol: what cannot be sent is counted and forgotten. Whoever calls `add` has the
// server's positive verdict in hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "client/core.hpp"
#include "echomq/events.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "events/event_text.hpp"

namespace echomq {
inline namespace v1 {
namespace events {

enum class Publishing : std::uint8_t {
  off,
  sampled,  ///< all events of some jobs: the same jobs in every process
  on,
};

struct PublisherOptions {
  Publishing mode = Publishing::on;
  /// Of `sampled`: the share of jobs, 0 to 1.
  double rate = 1.0;
  /// Events that wait or are on their way; one more is dropped. >= 1.
  std::size_t most_pending = 16384;
};

struct PublisherStats {
  std::uint64_t published = 0;    ///< the server took it, whether or not anybody listened
  std::uint64_t unheard = 0;      ///< not sent: nobody listened
  std::uint64_t sampled_out = 0;  ///< of a job that is not in the sample
  std::uint64_t failed = 0;       ///< refused, or sent on a connection that was lost
  std::uint64_t dropped = 0;      ///< too many were pending
};

/// Thread-safe.
class EventPublisher {
 public:
  EventPublisher(std::shared_ptr<client::Core> core, const QueueName& queue, PublisherOptions options = {});
  EventPublisher(const EventPublisher&) = delete;
  EventPublisher& operator=(const EventPublisher&) = delete;
  /// Sends what waits; does not wait for the answers.
  ~EventPublisher();

  /// Whether events of this job are published; what `add` counts as sampled out is not counted here.
  [[nodiscard]] bool wants(const JobId& job) const noexcept;
  /// Puts an event behind those that wait for `flush`; by itself it sends once they are many. `kind` is not `other`; texts are cut.
  void add(EventKind kind, const JobId& job, std::span<const Extra> extra = {});
  /// The event `failed`: with the error when there is one, and for a job that will run again with `retry` = `1`.
  void add_failed(const JobId& job, std::string_view error, bool will_retry);
  /// Sends what waits, as one request. Call it once a turn.
  void flush();
  /// Sends what waits without asking; from now on nothing is asked.
  void close();

  [[nodiscard]] PublisherStats stats() const noexcept;

 private:
  struct Counters;
  struct State;
  class Batch;
  class Question;

  const PublisherOptions options_;
  const std::uint64_t threshold_;  // of the sample
  const std::shared_ptr<Counters> counters_;
  const std::shared_ptr<State> state_;
};

}  // namespace events
}  // namespace v1
}  // namespace echomq
