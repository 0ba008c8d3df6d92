// Error replies of scripts and servers as `Error`s.
#include <array>
#include <string>
#include <string_view>

#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

struct Prefix {
  std::string_view text;
  Errc code;
  Repeat repeat;
};

// The first match counts: longer texts of one class stand before the class.
constexpr std::array kPrefixes = {
    Prefix{"EMQKIND", Errc::wrong_kind, Repeat::unsafe},
    Prefix{"EMQSTALE job gone", Errc::job_gone, Repeat::unsafe},
    Prefix{"EMQSTALE", Errc::stale_token, Repeat::unsafe},
    Prefix{"EMQLOCK", Errc::job_locked, Repeat::unsafe},
    Prefix{"EMQSTATE not dead", Errc::not_dead, Repeat::unsafe},
    Prefix{"EMQSTATE not paused", Errc::not_paused, Repeat::unsafe},
    Prefix{"EMQSTATE active", Errc::active_jobs_present, Repeat::unsafe},
    Prefix{"EMQNODE lost", Errc::node_lease_lost, Repeat::unsafe},
    Prefix{"EMQNODE", Errc::node_held, Repeat::unsafe},
    Prefix{"EMQRATE", Errc::concurrency_ceiling, Repeat::unsafe},
    Prefix{"ERR The ID specified in XADD is equal or smaller", Errc::nonmonotonic, Repeat::unsafe},
    Prefix{"NOGROUP", Errc::no_group, Repeat::safe},
    Prefix{"OOM", Errc::out_of_memory, Repeat::safe},
    Prefix{"READONLY", Errc::read_only, Repeat::safe},
    Prefix{"LOADING", Errc::loading, Repeat::safe},
    Prefix{"MASTERDOWN", Errc::loading, Repeat::safe},
    Prefix{"NOPERM", Errc::no_permission, Repeat::safe},
    // Of a script, which may have written before.
    Prefix{"ERR ACL failure in script", Errc::no_permission, Repeat::unsafe},
    Prefix{"NOAUTH", Errc::auth_refused, Repeat::safe},
    Prefix{"WRONGPASS", Errc::auth_refused, Repeat::safe},
    Prefix{"MOVED", Errc::moved, Repeat::safe},
    Prefix{"ASK ", Errc::moved, Repeat::safe},
    Prefix{"CLUSTERDOWN", Errc::cluster_down, Repeat::safe},
    Prefix{"CROSSSLOT", Errc::cross_slot, Repeat::safe},
    Prefix{"TRYAGAIN", Errc::moved, Repeat::safe},
};

}  // namespace

Error to_error(std::string_view server_text) {
  for (const Prefix& prefix : kPrefixes) {
    if (server_text.starts_with(prefix.text))
      return {prefix.code, std::string(server_text), prefix.repeat};
  }
  return {Errc::server_error, std::string(server_text), Repeat::unsafe};
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
