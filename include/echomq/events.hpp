// `EventListener`: what becomes of the jobs of one or many queues, as it is announced on their events channels.
//
// The channel `emq:{q}:events` carries one JSON object of texts an event, at most once: whoever does not listen at that
// moment has missed it, and a lost connection is a gap, which is reported. For a log that can be read again see `Stream`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"

namespace echomq {
inline namespace v1 {

/// What happened to a job.
enum class EventKind : std::uint8_t {
  progress,   ///< its handler reported progress: extra `progress`
  completed,  ///< it is done
  failed,     ///< a run failed: extra `error`; `retry` = `1` when it will run again. Other runtimes do not say which
  delayed,    ///< its handler put it off
  dead,       ///< it has failed for good
  stalled,    ///< its worker was lost
  cancelled,  ///< it was ended by a request
  other,      ///< a name that this library does not know
};
/// The name on the wire; `other` for the last.
[[nodiscard]] std::string_view to_string(EventKind kind) noexcept;
/// `other` for a name that is none of the above.
[[nodiscard]] EventKind event_kind(std::string_view name) noexcept;

/// One event. All of it is valid during the call of the handler only.
struct JobEvent {
  const QueueName& queue;
  EventKind kind;
  std::string_view name;  ///< as on the wire
  JobId job;
  /// Fields beside `event` and `job`, in their order. Values that are no texts are given as their JSON text.
  std::span<const std::pair<std::string_view, std::string_view>> extra;
  std::string_view text;  ///< the message as it came

  /// The value of a field beside `event` and `job`.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view field) const noexcept;
  /// `failed`, and it says that the job will run again.
  [[nodiscard]] bool will_retry() const noexcept;
};

/// Events of a queue may be missing. Valid during the call of the handler only.
struct EventGap {
  enum class Cause : std::uint8_t {
    connection,  ///< it was lost, and is restored
    overflow,    ///< handlers were too slow: `dropped` messages were thrown away
  };
  const QueueName& queue;
  Cause cause;
  /// By this machine's clock. What was published before `from` or after `until` was heard. A loss is often noticed late, so
  /// `from` may lie some heartbeats before it.
  UnixMillis from;
  UnixMillis until;
  std::uint64_t dropped = 0;
};

using EventHandler = std::function<void(const JobEvent&)>;
using EventGapHandler = std::function<void(const EventGap&)>;

/// Which events a handler wants. An empty list or an absent queue asks for all.
struct EventFilter {
  std::vector<EventKind> kinds{};
  std::vector<JobId> jobs{};
  std::optional<QueueName> queue{};
};

struct EventListenerOptions {
  EventHandler on_event{};  ///< every event, from the first one on
  EventGapHandler on_gap{};
  /// Messages that wait for the handlers; one more is dropped, and that is a gap. >= 1
  std::size_t most_waiting = 65536;
};

struct EventListenerStats {
  std::uint64_t received = 0;        ///< messages
  std::uint64_t malformed = 0;       ///< of these no event: dropped
  std::uint64_t unknown_kinds = 0;   ///< of these with another name than those of `EventKind`
  std::uint64_t dropped = 0;         ///< of these thrown away because handlers were too slow
  std::uint64_t gaps = 0;            ///< reported, of either cause
  std::uint64_t handler_errors = 0;  ///< exceptions that left a handler
  std::size_t waiting = 0;           ///< now
};

/// Listens until it is stopped or destroyed. Move-only; thread-safe.
///
/// All queues of a client share one connection, however many listeners there are; in a cluster any node hears the
/// publications of all. Handlers run on the client's executor, one at a time and in the order of a queue's messages; they
/// must not wait for answers of the client there, and one that throws is counted. None runs once `stop`, the destructor,
/// or for its own handler the destructor of a `Watch`, has returned; those wait for one that is running, unless they are
/// called from it.
class EventListener {
  struct State;

 public:
  /// A handler that was added. It ends with this object.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept;
    Watch& operator=(Watch&& other) noexcept;
    ~Watch();

   private:
    friend class EventListener;
    Watch(std::weak_ptr<State> state, std::uint64_t number) : state_(std::move(state)), number_(number) {}
    std::weak_ptr<State> state_;
    std::uint64_t number_ = 0;
  };

  /// Subscribes to the channels of the queues, each once, and waits until the server has confirmed all of them.
  /// Errors: invalid_argument, no_permission, timeout, unreachable, client_closed, forked, would_deadlock.
  [[nodiscard]] static Result<EventListener> open(const Client& client, std::span<const QueueName> queues,
                                                  EventListenerOptions options = {});
  [[nodiscard]] static Result<EventListener> open(const Client& client, const QueueName& queue,
                                                  EventListenerOptions options = {});

  EventListener(EventListener&&) noexcept;
  EventListener& operator=(EventListener&&) noexcept;
  ~EventListener();

  /// Adds a handler for the events that pass the filter. Thousands of them, each for a job of its own, cost no more an
  /// event than one.
  [[nodiscard]] Watch on(EventFilter filter, EventHandler handler) const;
  [[nodiscard]] Watch on(EventKind kind, EventHandler handler) const;
  [[nodiscard]] Watch on(const JobId& job, EventHandler handler) const;
  /// Adds a handler for gaps.
  [[nodiscard]] Watch on_gap(EventGapHandler handler) const;

  /// Ends the subscriptions. Idempotent; also from a handler.
  void stop();
  /// Whether all channels are subscribed on a connection that is open now.
  [[nodiscard]] bool live() const;
  [[nodiscard]] EventListenerStats stats() const;

 private:
  explicit EventListener(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
