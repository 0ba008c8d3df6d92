// One table: each error's name and the exit code that a script can act upon.
#include "exit_code.hpp"

#include <algorithm>
#include <array>

#include "echomq/archive.hpp"

namespace emq {
namespace {

using echomq::Errc;

struct Row {
  Errc code;
  std::string_view name;
  Exit exit;
};

constexpr auto kRows = std::to_array<Row>({
    {Errc::invalid_argument, "invalid_argument", Exit::usage},
    {Errc::invalid_id, "invalid_id", Exit::usage},
    {Errc::id_length, "id_length", Exit::usage},
    {Errc::id_namespace, "id_namespace", Exit::usage},
    {Errc::id_charset, "id_charset", Exit::usage},
    {Errc::id_range, "id_range", Exit::usage},
    {Errc::invalid_queue_name, "invalid_queue_name", Exit::usage},
    {Errc::invalid_dedup_id, "invalid_dedup_id", Exit::usage},
    {Errc::invalid_url, "invalid_url", Exit::usage},
    {Errc::unknown_state, "unknown_state", Exit::usage},
    {Errc::empty_pipeline, "empty_pipeline", Exit::usage},
    {Errc::flow_too_deep, "flow_too_deep", Exit::usage},
    {Errc::flow_cycle, "flow_cycle", Exit::usage},
    {Errc::wrong_kind, "wrong_kind", Exit::usage},
    {Errc::stale_token, "stale_token", Exit::refused},
    {Errc::job_gone, "job_gone", Exit::not_found},
    {Errc::job_locked, "job_locked", Exit::refused},
    {Errc::not_dead, "not_dead", Exit::refused},
    {Errc::not_paused, "not_paused", Exit::refused},
    {Errc::active_jobs_present, "active_jobs_present", Exit::refused},
    {Errc::concurrency_ceiling, "concurrency_ceiling", Exit::refused},
    {Errc::broken_state, "broken_state", Exit::refused},
    {Errc::id_taken, "id_taken", Exit::refused},
    {Errc::node_held, "node_held", Exit::refused},
    {Errc::nonmonotonic, "nonmonotonic", Exit::refused},
    {Errc::no_group, "no_group", Exit::not_found},
    {Errc::node_lease_lost, "node_lease_lost", Exit::refused},
    {Errc::minter_exhausted, "minter_exhausted", Exit::failed},
    {Errc::unreachable, "unreachable", Exit::unreachable},
    {Errc::disconnected, "disconnected", Exit::unreachable},
    {Errc::outcome_unknown, "outcome_unknown", Exit::unreachable},
    {Errc::timeout, "timeout", Exit::unreachable},
    {Errc::overloaded, "overloaded", Exit::failed},
    {Errc::client_closed, "client_closed", Exit::failed},
    {Errc::cancelled, "cancelled", Exit::failed},
    {Errc::protocol_error, "protocol_error", Exit::failed},
    {Errc::would_deadlock, "would_deadlock", Exit::failed},
    {Errc::forked, "forked", Exit::failed},
    {Errc::version_mismatch, "version_mismatch", Exit::refused},
    {Errc::auth_refused, "auth_refused", Exit::refused},
    {Errc::boot_refused, "boot_refused", Exit::refused},
    {Errc::requires_resp3, "requires_resp3", Exit::refused},
    {Errc::server_error, "server_error", Exit::failed},
    {Errc::out_of_memory, "out_of_memory", Exit::refused},
    {Errc::read_only, "read_only", Exit::refused},
    {Errc::loading, "loading", Exit::unreachable},
    {Errc::no_permission, "no_permission", Exit::refused},
    {Errc::script_mismatch, "script_mismatch", Exit::failed},
    {Errc::moved, "moved", Exit::refused},
    {Errc::cross_slot, "cross_slot", Exit::refused},
    {Errc::cluster_down, "cluster_down", Exit::unreachable},
    {Errc::codec_failed, "codec_failed", Exit::failed},
    {Errc::handler_failed, "handler_failed", Exit::failed},
});

const Row* find(const echomq::Error& error) noexcept {
  const auto it = std::ranges::find_if(kRows, [&](const Row& row) { return error.is(row.code); });
  return it == kRows.end() ? nullptr : &*it;
}

}  // namespace

Exit exit_for(const echomq::Error& error) noexcept {
  const Row* row = find(error);
  if (error.code == echomq::ArchiveErrc::held) {
    return Exit::refused;
  }
  return row == nullptr ? Exit::failed : row->exit;
}

std::string_view name_of(const echomq::Error& error) noexcept {
  if (error.code.category() == echomq::archive_error_category()) {
    switch (static_cast<echomq::ArchiveErrc>(error.code.value())) {
      case echomq::ArchiveErrc::held: return "archive_held";
      case echomq::ArchiveErrc::broken: return "archive_broken";
      case echomq::ArchiveErrc::storage_failed: return "storage_failed";
    }
  }
  const Row* row = find(error);
  return row == nullptr ? "unknown" : row->name;
}

}  // namespace emq
