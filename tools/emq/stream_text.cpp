// Records of streams as text and JSON; positions and instants of the command line.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "stream.hpp"
#include "text.hpp"
#include "time_argument.hpp"

namespace emq {

namespace json = boost::json;
using echomq::Errc;
using echomq::Instant;

json::object to_json(const echomq::Record& record) {
  json::object fields;
  for (const auto& [name, value] : record.fields) {
    const bool text = is_utf8(value);
    const std::string key = printable(name) + (text ? "" : "_base64");
    json::value shown = text ? json::value(value) : json::value(base64(value));
    json::value& place = fields[key];
    if (place.is_null()) {
      place = std::move(shown);
    } else if (place.is_array()) {
      place.as_array().push_back(std::move(shown));
    } else {
      place = json::array{std::move(place), std::move(shown)};
    }
  }
  json::object out;
  out["id"] = record.id ? json::value(record.id->text()) : json::value();
  out["entry"] = record.entry;
  if (const auto at = instant_of(record.entry)) {
    out["at"] = to_rfc3339(*at);
  }
  out["fields"] = std::move(fields);
  return out;
}

std::string to_line(const echomq::Record& record) {
  const auto at = instant_of(record.entry);
  std::string line = fmt::format("{} {}", at ? to_rfc3339(*at) : std::string("-"),
                                 record.id ? std::string(record.id->text()) : record.entry);
  for (const auto& [name, value] : record.fields) {
    line += fmt::format(" {}={}", printable(name), printable(value, 1000));
  }
  return line;
}

std::optional<Instant> instant_of(std::string_view entry) noexcept {
  std::int64_t ms = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), ms);
  // What a calendar of four digits can hold.
  if (error != std::errc() || ms < 0 || ms > 253'402'300'799'999) {
    return std::nullopt;
  }
  return Instant(std::chrono::milliseconds(ms));
}

echomq::Result<Instant> parse_when(std::string_view text) {
  const Instant now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  if (text == "now") {
    return now;
  }
  if (const auto ago = parse_duration(text)) {
    return std::max(now - *ago, Instant());
  }
  auto instant = parse_instant(text);
  if (!instant) {
    return echomq::fail(
        Errc::invalid_argument,
        fmt::format("neither an instant nor a duration: '{}' (such as 10m or 2d, counted back from now, "
                    "2026-07-02T09:30:00Z, or Unix milliseconds)",
                    text));
  }
  return instant;
}

echomq::Result<Position> parse_position(std::string_view text) {
  if (text == "head" || text == "latest") {
    return Position{.start = text == "head" ? echomq::GroupStart::head : echomq::GroupStart::latest, .behind = {}};
  }
  if (const auto id = echomq::EventId::parse(text)) {
    return Position{.start = std::nullopt, .behind = std::string(id->entry_id().text())};
  }
  const auto dash = text.find('-');
  const bool digits = dash != std::string_view::npos && dash > 0 && dash + 1 < text.size() &&
                      text.find_first_not_of("0123456789-") == std::string_view::npos &&
                      text.find('-', dash + 1) == std::string_view::npos;
  if (digits) {
    return Position{.start = std::nullopt, .behind = std::string(text)};
  }
  auto when = parse_when(text);
  if (!when) {
    return echomq::fail(
        Errc::invalid_argument,
        fmt::format("no position: '{}' (head, latest, a receipt or an entry id to begin behind, an instant, or "
                    "a duration counted back from now)",
                    text));
  }
  auto behind = echomq::position_before(*when);
  if (!behind) {
    return echomq::fail(std::move(behind).error());
  }
  return Position{.start = std::nullopt, .behind = *std::move(behind)};
}

echomq::Result<echomq::Stream> open_stream(const echomq::Client& client, const std::string& queue,
                                           const std::string& stream) {
  auto queue_name = echomq::QueueName::parse(queue);
  if (!queue_name) {
    return echomq::fail(std::move(queue_name).error());
  }
  auto stream_name = echomq::StreamName::parse(stream);
  if (!stream_name) {
    return echomq::fail(std::move(stream_name).error());
  }
  return client.stream(*queue_name, *stream_name);
}

Exit no_stream(const Session& session, const echomq::Stream& stream) {
  return session.report(Exit::not_found, "no_stream", fmt::format("there is no stream {}", stream.name()));
}

Exit find_stream(const Session& session, const echomq::Stream& stream) {
  const auto info = stream.info().get();
  if (!info) {
    return session.report(info.error());
  }
  return info->exists ? Exit::ok : no_stream(session, stream);
}

}  // namespace emq
