// The core that a client and all its handles share: topology, executor, minter, wake hub, log.
#pragma once

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/reply.hpp"
#include "result/late_wakes.hpp"
#include "script/registry.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

/// Watches a queue's wake list for a worker; made by `Core::watch`. Destroying it ends the watch; the callback does
/// not run after that (the destructor waits for one that is running, unless it is the caller).
class WakeWatch {
 public:
  WakeWatch() = default;
  WakeWatch(const WakeWatch&) = delete;
  WakeWatch& operator=(const WakeWatch&) = delete;
  virtual ~WakeWatch() = default;
  /// While parked, the wake key is part of the connection's BLPOP; otherwise its tokens are left alone.
  virtual void park(bool parked) = 0;
  /// Parks with a claim that is sent right behind the BLPOP, so that the server runs it in the moment a token comes: the
  /// job is on its way before anybody has been told. Takes over the reference; sets the deadline. Its answer comes when the
  /// BLPOP has ended, after `wait` at most, and with it the watch is parked no more; leaving ends the BLPOP. Where no
  /// claim can ride (the connection waits for several queues) the call is kept until the watch leaves, fails then as
  /// `cancelled`, and a token is told as without it.
  virtual void park_with(detail::Call* claim, std::chrono::milliseconds wait) = 0;
  /// Tokens taken by BLPOPs that had this watch's claim behind them, and not told otherwise; reading takes them.
  [[nodiscard]] virtual std::uint64_t take_tokens() = 0;
};

/// A connection of its own for commands that wait on the server (XREADGROUP ... BLOCK); made by `Core::line`. Destroying it
/// ends what waits with `client_closed`, as closing the client does.
class Line {
 public:
  Line() = default;
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  virtual ~Line() = default;
  /// As `Core::submit`; past the in-flight bound, and the call may park the connection until its deadline.
  virtual void submit(detail::Call* call, wire::CallSettings settings) = 0;
  /// Ends what waits, and refuses what comes.
  virtual void close() = 0;
};

/// What a subscriber inside the library is told, one call at a time and in order.
struct ChannelHandlers {
  std::function<void(std::string_view channel, std::string_view payload)> on_message;
  /// The subscription was lost and is restored. What was published between the two instants may be missing; `from` is one
  /// at which the connection was certainly heard.
  std::function<void(UnixMillis from, UnixMillis until)> on_gap;
  /// The client is closed: nothing is told any more. At once, on the thread that closes.
  std::function<void()> on_end = nullptr;
  /// False: on the client's executor. True: at once, on the thread that reads, where they must not block.
  bool at_once = false;
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  virtual ~Core() = default;

  /// Sends one command; `decode(wire::Answer) -> Result<T>`. Never blocks longer than the overflow policy says.
  template <typename T, typename Decode>
  [[nodiscard]] Reply<T> command(std::span<const std::string_view> parts, wire::CallSettings settings, Decode decode) {
    return start<T>(wire::BoundCall<T, Decode>::make(parts, std::move(decode)), settings, nullptr);
  }

  /// Runs a script: EVALSHA, repaired by one SCRIPT LOAD when the server does not know it.
  /// Keys first, then arguments, as the script's contract says.
  template <typename T, typename Decode>
  [[nodiscard]] Reply<T> eval(const script::ScriptSource& script, std::span<const std::string_view> keys,
                              std::span<const std::string_view> arguments, wire::CallSettings settings, Decode decode) {
    char count[8];
    const auto end = std::to_chars(count, count + sizeof count, keys.size()).ptr;
    const std::string_view head[3] = {"EVALSHA", script.sha1, std::string_view(count, end)};
    const std::size_t total = 3 + keys.size() + arguments.size();
    constexpr std::size_t kInline = 40;
    std::array<std::string_view, kInline> small;
    std::vector<std::string_view> large;
    std::string_view* parts = small.data();
    if (total > kInline) {
      large.resize(total);
      parts = large.data();
    }
    std::string_view* at = std::copy(std::begin(head), std::end(head), parts);
    at = std::copy(keys.begin(), keys.end(), at);
    std::copy(arguments.begin(), arguments.end(), at);
    return start<T>(wire::BoundCall<T, Decode>::make({parts, total}, std::move(decode)), settings, &script);
  }

  /// Starts a call made elsewhere; takes over its reference. On refusal the call fails at once.
  virtual void submit(detail::Call* call, wire::CallSettings settings) = 0;

  [[nodiscard]] virtual Result<BrandedId> mint(std::string_view brand) = 0;
  [[nodiscard]] virtual std::optional<std::uint16_t> node_id() const = 0;

  /// `on_wake` runs on a library thread, or on a thread that reads in its place, when a token was taken from `wake_key`, or when a token may have been lost
  /// (reconnect): it must not block.
  [[nodiscard]] virtual std::unique_ptr<WakeWatch> watch(std::string wake_key, std::function<void()> on_wake) = 0;

  /// To the server that has the slot, and it follows it. Null where there is none: without a server, and for a client that has
  /// `kMostLines` of them already; whoever has none asks again and again.
  static constexpr std::size_t kMostLines = 128;
  [[nodiscard]] virtual std::unique_ptr<Line> line(std::uint32_t slot) {
    (void)slot;
    return nullptr;
  }

  /// Subscribes on the client's connection for subscriptions, which all channels share; answers once the server has
  /// confirmed. Messages may be told before that.
  [[nodiscard]] virtual Reply<Subscription> listen(std::string_view channel, ChannelHandlers handlers) {  // NOLINT
    (void)channel;
    (void)handlers;
    return fail(Errc::unreachable, "there is no connection for subscriptions");
  }

  /// Makes all further ids later than `time`, for a place that refuses earlier ones. Ids run ahead of the clock then:
  /// the caller bounds by how much.
  virtual void mint_past(UnixMillis time) { (void)time; }
  /// For calls that are answered by others: what whoever waits for them may drive, and where they continue.
  [[nodiscard]] virtual detail::Source* source() noexcept { return nullptr; }
  [[nodiscard]] virtual detail::Target* continuations() noexcept { return nullptr; }

  /// Runs `function` after `wait` on the library's thread, on this one when the client is closed. It must not block.
  /// Closing waits for it, so `wait` is short.
  virtual void after(std::chrono::milliseconds wait, std::function<void()> function) {
    (void)wait;
    const auto now = std::move(function);
    now();
  }

  /// Keeps wakes for a moment; null where nobody does them in time.
  [[nodiscard]] virtual std::shared_ptr<detail::LateWakes> late_wakes() { return nullptr; }

  /// Runs a continuation on the client's executor.
  virtual void post(Continuation continuation) = 0;
  virtual void log(LogLevel level, std::string_view event, std::span<const LogField> fields) = 0;
  virtual void count_id_collision() = 0;
  [[nodiscard]] virtual const ClientOptions& options() const = 0;
  [[nodiscard]] virtual bool closed() const = 0;

 private:
  template <typename T, typename C>
  [[nodiscard]] Reply<T> start(C* call, wire::CallSettings settings, const script::ScriptSource* script) {
    call->script = script;
    call->retain();  // one reference for the reply, one for the wire
    detail::CallPointer<detail::CallOf<T>> mine(call);
    submit(call, settings);
    return Reply<T>(std::move(mine));
  }
};

}  // namespace client
}  // namespace v1
}  // namespace echomq
