// What the subcommands of `emq stream` share: records as text and JSON, and instants as people type them.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "commands.hpp"
#include "echomq/client.hpp"
#include "echomq/stream.hpp"
#include "session.hpp"

namespace emq {

/// `id`, `entry`, `at` (RFC 3339, of the minting), `fields`: name to value, or to an array of values when the name stands more than once.
/// Values that are no UTF-8 stand base64-encoded under their name with `_base64` behind it.
[[nodiscard]] boost::json::object to_json(const echomq::Record& record);
/// One line: instant, receipt (else entry id), fields.
[[nodiscard]] std::string to_line(const echomq::Record& record);
/// Milliseconds of an entry id; nothing when it has none that an instant can hold.
[[nodiscard]] std::optional<echomq::Instant> instant_of(std::string_view entry) noexcept;

/// `--since` and `--until`: an instant, or a duration counted back from now ("10m"), or `now`. Errors: invalid_argument.
[[nodiscard]] echomq::Result<echomq::Instant> parse_when(std::string_view text);

/// Where a reader or a group begins: `latest`, `head`, or behind an entry.
struct Position {
  std::optional<echomq::GroupStart> start;
  std::string behind;
};
/// `head`, `latest`, a receipt or an entry id (behind it), or what `parse_when` takes (from there on).
[[nodiscard]] echomq::Result<Position> parse_position(std::string_view text);

/// A stream by the names on the command line.
[[nodiscard]] echomq::Result<echomq::Stream> open_stream(const echomq::Client& client, const std::string& queue,
                                                         const std::string& stream);

/// Says that there is none, for exit code 3.
Exit no_stream(const Session& session, const echomq::Stream& stream);
/// Where nothing was found: whether there is such a stream at all.
[[nodiscard]] Exit find_stream(const Session& session, const echomq::Stream& stream);

// Parts of `emq stream` in files of their own; `group` is that subcommand.
void add_stream_tail(CLI::App& group, Session& session, Action& chosen);
void add_stream_groups(CLI::App& group, Session& session, Action& chosen);

}  // namespace emq
