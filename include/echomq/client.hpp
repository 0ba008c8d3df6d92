// `Client`: the connection to one server or fleet, and the door to every handle.
//
// Open one client a process and share it: it is thread-safe, owns the I/O thread, pipelines what all threads send,
// and reconnects by itself. Handles (`Queue`, `Worker`, ...) share its core; after `close()` they answer
// `client_closed`.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/error.hpp"
#include "echomq/executor.hpp"
#include "echomq/id.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"
#include "echomq/value.hpp"

namespace echomq {
inline namespace v1 {

namespace client {
class Core;
}  // namespace client

class Queue;
class Stream;
class StreamName;

enum class LogLevel : std::uint8_t { debug, info, warning, error };

/// One name and value of a log line or a metric. Never a payload, never a password.
struct LogField {
  std::string_view name;
  std::string_view value;
};

/// Receives the library's log: level, event name, fields. Called on any thread; must not block and not throw.
using Log = std::function<void(LogLevel level, std::string_view event, std::span<const LogField> fields)>;

/// What happens to a call at the in-flight bound.
enum class Overflow : std::uint8_t {
  block,   ///< the caller waits for room (never on a library thread: there it is refused)
  refuse,  ///< the call answers `overloaded` at once
};

/// When a node id for minting is leased.
enum class NodeLease : std::uint8_t {
  at_open,  ///< by `open`, so that the first mint needs no round trip
  never,    ///< this client mints no ids: a call that needs one answers `node_lease_lost`
};

/// How a client connects and behaves. The URL wins over the fields it names.
struct ClientOptions {
  /// Shown by CLIENT LIST; `echomq` when empty.
  std::string name{};
  /// Credentials and database, when the URL does not name them. Empty: none, 0.
  std::string user{};
  std::string password{};
  std::uint32_t database = 0;

  /// Bound of one attempt to connect, boot included.
  std::chrono::milliseconds connect_timeout{3000};
  /// How long a call may take when its own options say nothing. A call that is not written by then ends with
  /// `timeout` (or `unreachable` while there is no connection), a written one with `outcome_unknown`.
  std::chrono::milliseconds deadline{10000};
  /// An idle connection is asked for a sign of life this often; the answer must come within the same time. 0: never.
  std::chrono::milliseconds heartbeat{5000};
  /// Reconnecting waits `backoff_initial`, doubled each time up to `backoff_max`, each plus up to half at random.
  std::chrono::milliseconds backoff_initial{50};
  std::chrono::milliseconds backoff_max{500};
  /// How long after it was first written a call that is safe to repeat may be sent again on a new connection.
  std::chrono::milliseconds resend_window{15000};

  /// The in-flight bound of one connection, by count and by request bytes.
  std::size_t max_in_flight = 65536;
  std::size_t max_in_flight_bytes = std::size_t{256} << 20;
  Overflow overflow = Overflow::block;

  /// Where `then` and coroutines continue. Default: one thread of the client.
  Post executor{};
  Log log{};

  /// A fixed node id 0..1023 for minting, leased as well; refused with `node_held` when another process has it.
  std::optional<std::uint16_t> node_id{};
  NodeLease node_lease = NodeLease::at_open;
  std::chrono::milliseconds node_lease_time{60000};

  /// The value this client claims for `{emq}:version` when none is stored, and the stored values it accepts.
  std::string wire_version = "echomq:3.0.0";
  std::vector<std::string> accepted_versions = {"echomq:3.0.0"};
};

/// What a client has done so far. Counters only grow.
struct ClientStats {
  std::uint64_t commands = 0;  ///< requests written, the library's own not counted
  std::uint64_t replies = 0;
  std::uint64_t pushes = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t writes = 0;  ///< system calls that wrote
  std::uint64_t reconnects = 0;
  std::uint64_t script_calls = 0;
  std::uint64_t script_loads = 0;    ///< SCRIPT LOADs after NOSCRIPT
  std::uint64_t scripts_resent = 0;  ///< calls repeated after NOSCRIPT
  std::uint64_t calls_resent = 0;    ///< calls repeated after a lost connection
  std::uint64_t redirects = 0;       ///< cluster: calls sent to another node after MOVED
  std::uint64_t map_refreshes = 0;   ///< cluster: times the slot map was asked for
  std::uint64_t outcomes_unknown = 0;
  std::uint64_t overloads = 0;
  std::uint64_t protocol_errors = 0;
  std::uint64_t unblocked_errors = 0;  ///< BLPOPs ended by CLIENT UNBLOCK ... ERROR or a role change
  std::uint64_t wakes = 0;             ///< wake tokens received
  std::uint64_t id_collisions = 0;     ///< freshly minted ids that were taken
  std::uint64_t in_flight = 0;         ///< now
  std::uint64_t connections = 0;       ///< open now
};

/// One command as a list of parts.
using CommandParts = std::span<const std::string_view>;

/// What a subscription tells. All are called on the client's executor, one at a time and in order.
struct SubscriptionHandlers {
  /// A message: channel and payload, valid during the call.
  std::function<void(std::string_view channel, std::string_view payload)> on_message{};
  /// The subscription was lost and is restored: messages in between may be missing.
  std::function<void()> on_gap{};
};

/// A confirmed subscription; ends when it is destroyed or `cancel()` is called. Move-only.
class Subscription {
 public:
  struct State;
  explicit Subscription(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  Subscription(Subscription&&) noexcept = default;
  Subscription& operator=(Subscription&&) noexcept;
  ~Subscription();

  /// Ends it. No handler runs after this returns, unless it is called from a handler.
  void cancel() noexcept;
  /// Whether the server has confirmed it on the connection that is open now.
  [[nodiscard]] bool live() const noexcept;
  /// Losses of the connection so far, each reported by `on_gap` once restored.
  [[nodiscard]] std::uint64_t gaps() const noexcept;
  /// The CLIENT ID of the connection that carries it, 0 while there is none.
  [[nodiscard]] std::int64_t connection_id() const noexcept;

 private:
  std::shared_ptr<State> state_;
};

/// A connection to a server. Move-only; thread-safe; the destructor closes it and is legal on any thread. One that was moved
/// from may only be destroyed or assigned to.
class Client {
 public:
  /// Connects, boots and, by option, leases a node id.
  ///
  /// URL: `valkey://[user[:password]@]host[:port][/database]` (also `redis://`), `unix:///path/to/socket[?db=n]`,
  /// `valkey+cluster://[user[:password]@]host[:port],host[:port]...` with any nodes of a cluster.
  /// Errors: invalid_url, invalid_argument, unreachable, auth_refused, boot_refused (also: not a cluster),
  /// cluster_down, version_mismatch, node_held, and the server's.
  [[nodiscard]] static Result<Client> open(std::string_view url, ClientOptions options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  /// The handle of one queue; costs no round trip.
  [[nodiscard]] Queue queue(const QueueName& name) const;
  /// The handle of one event stream of a queue; costs no round trip.
  [[nodiscard]] Stream stream(const QueueName& queue, const StreamName& name) const;

  /// Any command. An error reply of the server is an `Error` here.
  Reply<Value> command(CommandParts parts) const;
  /// The same from its parts: `client.command("SET", key, "1")`. (No braced list: g++ 12 cannot compile one inside a
  /// `co_await` expression.)
  template <std::convertible_to<std::string_view>... Parts>
    requires(sizeof...(Parts) > 0)
  Reply<Value> command(const Parts&... parts) const {
    const std::string_view all[] = {std::string_view(parts)...};
    return command(CommandParts(all));
  }
  /// Several commands in one write; one answer each, in order. An error reply stands in its place as an error value.
  /// In a cluster each node gets its own; what goes to different nodes runs in no particular order.
  /// Errors: empty_pipeline, invalid_argument, cross_slot (one command with keys of two slots; nothing is sent).
  Reply<std::vector<Value>> pipeline(std::span<const CommandParts> commands) const;
  /// MULTI ... EXEC; in a cluster all keys must share a slot, else `cross_slot`.
  /// EVALSHAs of the library's scripts that meet an empty script cache are repaired: they run in a
  /// second transaction, their answers stand at their positions.
  Reply<std::vector<Value>> transaction(std::span<const CommandParts> commands) const;
  /// A script of the library by its protocol name (`enqueue`, `claim`, ...): EVALSHA first, loaded when unknown.
  Reply<Value> eval(std::string_view script, std::span<const std::string_view> keys,
                    std::span<const std::string_view> arguments) const;

  /// Subscribes on the subscription connection; the answer comes when the server has confirmed.
  Reply<Subscription> subscribe(std::string_view channel, SubscriptionHandlers handlers) const;

  /// A fresh id of the namespace (three letters A to Z). No round trip. Errors: id_namespace, node_lease_lost,
  /// client_closed, forked.
  [[nodiscard]] Result<BrandedId> mint(std::string_view brand) const;
  [[nodiscard]] Result<JobId> mint_job() const;
  /// The leased node id; empty when none is held.
  [[nodiscard]] std::optional<std::uint16_t> node_id() const;

  /// Answers when there is room below the in-flight bound.
  Reply<void> ready() const;
  [[nodiscard]] ClientStats stats() const;
  /// What the connection is to: the URL without its password.
  [[nodiscard]] std::string endpoint() const;

  /// Ends every call in flight with `client_closed`, releases the node lease, joins the threads. Idempotent.
  void close();

  /// The shared core, for the other parts of the library.
  [[nodiscard]] const std::shared_ptr<client::Core>& core() const noexcept { return core_; }
  /// A door to a core that somebody else owns: destroying it closes nothing.
  [[nodiscard]] static Client from_core(std::shared_ptr<client::Core> core);

 private:
  explicit Client(std::shared_ptr<client::Core> core) noexcept;
  std::shared_ptr<client::Core> core_;
  bool borrowed_ = false;
};

}  // namespace v1
}  // namespace echomq
