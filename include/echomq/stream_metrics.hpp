// What streams and their groups are like now, for whoever scrapes: lengths, lag, pending.
#pragma once

#include <span>
#include <string>

#include "echomq/error.hpp"
#include "echomq/stream.hpp"

namespace echomq {
inline namespace v1 {

/// Asks the server for all of the streams at once (XINFO STREAM and GROUPS of each) and waits for it. Prometheus' text format
/// 0.0.4, labelled with `queue` and `stream`: gauge `echomq_stream_records`, counter `echomq_stream_appended_total`; and with `group`:
/// gauges `echomq_group_lag` (missing where the server cannot tell it), `echomq_group_pending`, `echomq_group_consumers`.
/// Streams that do not exist are left out. Errors: those of `Stream::info`; would_deadlock on a thread of the library.
[[nodiscard]] Result<std::string> stream_prometheus(std::span<const Stream> streams);

}  // namespace v1
}  // namespace echomq
