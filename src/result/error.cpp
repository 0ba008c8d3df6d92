// The category and texts of `Errc`.
#include "echomq/error.hpp"

namespace echomq {
inline namespace v1 {
namespace {

std::string_view describe(Errc code) noexcept {
  switch (code) {
    case Errc::invalid_argument: return "invalid argument";
    case Errc::invalid_id: return "not a branded id";
    case Errc::id_length: return "a branded id has exactly 14 bytes";
    case Errc::id_namespace: return "the namespace of a branded id is three letters A to Z";
    case Errc::id_charset: return "the payload of a branded id is base62";
    case Errc::id_range: return "the value of a branded id is below 2^63";
    case Errc::invalid_queue_name: return "not a queue name";
    case Errc::invalid_dedup_id: return "not a deduplication id";
    case Errc::invalid_url: return "not a server URL";
    case Errc::unknown_state: return "unknown state";
    case Errc::empty_pipeline: return "empty pipeline";
    case Errc::flow_too_deep: return "a flow has at most eight levels";
    case Errc::flow_cycle: return "an id occurs twice in a flow";
    case Errc::wrong_kind: return "the id is of another kind";
    case Errc::stale_token: return "stale token";
    case Errc::job_gone: return "no such job";
    case Errc::job_locked: return "job is locked";
    case Errc::not_dead: return "job is not dead";
    case Errc::not_paused: return "queue is not paused";
    case Errc::active_jobs_present: return "active jobs present";
    case Errc::concurrency_ceiling: return "at concurrency ceiling";
    case Errc::broken_state: return "the row exists but is in no set";
    case Errc::id_taken: return "the id belongs to another job";
    case Errc::nonmonotonic: return "the record is not newer than the stream's newest";
    case Errc::no_group: return "no such stream or consumer group";
    case Errc::node_held: return "node id is held by another process";
    case Errc::node_lease_lost: return "the lease of the node id is lost";
    case Errc::minter_exhausted: return "no more ids in the representable time";
    case Errc::unreachable: return "server unreachable";
    case Errc::disconnected: return "disconnected";
    case Errc::outcome_unknown: return "outcome unknown";
    case Errc::timeout: return "deadline passed";
    case Errc::overloaded: return "too many calls in flight";
    case Errc::client_closed: return "client closed";
    case Errc::cancelled: return "cancelled";
    case Errc::protocol_error: return "protocol error";
    case Errc::would_deadlock: return "a blocking call on a library thread would deadlock";
    case Errc::forked: return "the client belongs to the parent process";
    case Errc::version_mismatch: return "wire version mismatch";
    case Errc::auth_refused: return "authentication refused";
    case Errc::boot_refused: return "connection refused at boot";
    case Errc::requires_resp3: return "RESP3 required";
    case Errc::server_error: return "server error";
    case Errc::out_of_memory: return "server out of memory";
    case Errc::read_only: return "server is read-only";
    case Errc::loading: return "server is loading";
    case Errc::no_permission: return "no permission";
    case Errc::script_mismatch: return "script digest mismatch";
    case Errc::moved: return "this node does not serve the key";
    case Errc::cross_slot: return "keys in different cluster slots";
    case Errc::cluster_down: return "cluster down";
    case Errc::codec_failed: return "codec failed";
    case Errc::handler_failed: return "handler failed";
  }
  return "unknown error";
}

class Category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "echomq"; }
  [[nodiscard]] std::string message(int value) const override {
    return std::string(describe(static_cast<Errc>(value)));
  }
};

}  // namespace

const std::error_category& error_category() noexcept {
  static const Category category;
  return category;
}

std::string Error::message() const {
  std::string out = code.message();
  if (!text.empty()) {
    out += ": ";
    out += text;
  }
  return out;
}

}  // namespace v1
}  // namespace echomq
