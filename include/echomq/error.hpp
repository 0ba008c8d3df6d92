// What a fallible call gives back: `Result<T>`, and the `Error` inside it.
//
// Use it for every call of this library; nothing here throws. A refusal of the protocol is a value like any other
// failure: look at `error().code`, not at the text.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace echomq {
inline namespace v1 {

/// One code for each refusal of the protocol and for each way in which talking to a server fails.
/// The numbers are stable: they may be logged and compared between versions.
enum class Errc : int {
  // The caller's input. Nothing was sent, nothing was written.
  invalid_argument = 1,
  invalid_id = 2,          ///< not a branded id at all (any of the four below, where the caller need not know which)
  id_length = 3,           ///< not exactly 14 bytes
  id_namespace = 4,        ///< the first three bytes are not [A-Z]
  id_charset = 5,          ///< a payload byte outside the base62 alphabet
  id_range = 6,            ///< a value outside [0, 2^63)
  invalid_queue_name = 7,  ///< not ^[A-Za-z0-9._-]{1,128}$, or `emq`
  invalid_dedup_id = 8,    ///< not ^[A-Za-z0-9._-]{1,255}$
  invalid_url = 9,
  unknown_state = 10,  ///< a state or metric name outside the closed list
  empty_pipeline = 11,
  flow_too_deep = 12,  ///< a flow of more than eight levels
  flow_cycle = 13,     ///< an id that occurs twice in a flow

  // Refusals of the protocol (document 1 section 6).
  wrong_kind = 20,           ///< EMQKIND: the id is not JOB-namespaced
  stale_token = 21,          ///< EMQSTALE: the token is not the job's current one
  job_gone = 22,             ///< the row does not exist (any more)
  job_locked = 23,           ///< EMQLOCK
  not_dead = 24,             ///< EMQSTATE not dead
  not_paused = 25,           ///< EMQSTATE not paused
  active_jobs_present = 26,  ///< EMQSTATE active jobs present
  concurrency_ceiling = 27,  ///< EMQRATE
  broken_state = 28,         ///< a row that exists but is in no set: admission cannot repair it by itself
  id_taken = 29,             ///< a node of a flow has the id of a job that is no part of it
  nonmonotonic = 30,         ///< a stream's newest record is not older than the one to append: nothing was written
  no_group = 31,             ///< NOGROUP: the stream or its consumer group does not exist

  // Identity.
  node_held = 40,        ///< the asked node id is leased by another process
  node_lease_lost = 41,  ///< minting stopped: the lease of the node id may have lapsed
  minter_exhausted = 42,

  // Transport.
  unreachable = 60,      ///< no connection could be made
  disconnected = 61,     ///< the link was lost before the call was written; a repeat is safe
  outcome_unknown = 62,  ///< the call was written and its answer is lost
  timeout = 63,          ///< the deadline passed before the call was written
  overloaded = 64,       ///< the in-flight bound is reached
  client_closed = 65,
  cancelled = 66,
  protocol_error = 67,  ///< bytes that are not RESP, or a reply of an unexpected shape
  would_deadlock = 68,  ///< a blocking call on a thread of the library
  forked = 69,          ///< the client was made by the parent of this process

  // Boot.
  version_mismatch = 80,  ///< `{emq}:version` holds another wire version
  auth_refused = 81,
  boot_refused = 82,  ///< SELECT or CLIENT SETNAME was refused
  requires_resp3 = 83,

  // Error replies of the server that are not refusals of a script.
  server_error = 100,
  out_of_memory = 101,    ///< OOM: the server is at its `maxmemory`
  read_only = 102,        ///< READONLY: a replica
  loading = 103,          ///< LOADING or MASTERDOWN: try later
  no_permission = 104,    ///< NOPERM
  script_mismatch = 105,  ///< SCRIPT LOAD answered another digest
  moved = 106,            ///< MOVED, ASK, TRYAGAIN: this node does not serve the key (now)
  cross_slot = 107,    ///< the keys of one call are in different cluster slots; by us before it is sent, or CROSSSLOT
  cluster_down = 108,  ///< CLUSTERDOWN: nobody serves the slot, or the cluster has no quorum

  // The user's own code.
  codec_failed = 120,
  handler_failed = 121,
};

/// The category of `Errc`; its name is `echomq`.
[[nodiscard]] const std::error_category& error_category() noexcept;

[[nodiscard]] inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), error_category()};
}

/// Whether the same call may be made again without a risk of doing it twice.
enum class Repeat : std::uint8_t { unsafe, safe };

/// Why a call failed.
///
/// `text` is the server's own text, or a sentence that names the offending value; it never holds a payload or a
/// password. Copyable; equality is not offered: compare `code`.
struct Error {
  std::error_code code;
  std::string text;
  Repeat repeat = Repeat::unsafe;

  Error() = default;
  Error(Errc errc, std::string why, Repeat again = Repeat::unsafe)
      : code(make_error_code(errc)), text(std::move(why)), repeat(again) {}

  [[nodiscard]] bool is(Errc errc) const noexcept { return code == make_error_code(errc); }
  /// "<message of the code>: <text>".
  [[nodiscard]] std::string message() const;
};

/// The value, or why there is none. `std::expected` without its monadic members (g++ 12 has none).
template <typename T>
using Result = std::expected<T, Error>;

/// `return fail(Errc::invalid_argument, "lease must be positive, got 0ms");`
[[nodiscard]] inline std::unexpected<Error> fail(Errc errc, std::string why, Repeat again = Repeat::unsafe) {
  return std::unexpected<Error>(Error(errc, std::move(why), again));
}
[[nodiscard]] inline std::unexpected<Error> fail(Error error) { return std::unexpected<Error>(std::move(error)); }

}  // namespace v1
}  // namespace echomq

template <>
struct std::is_error_code_enum<echomq::Errc> : std::true_type {};
