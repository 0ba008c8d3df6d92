// The vocabulary that histories and scenarios share, spoken through the public API.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "conformance/values.hpp"
#include "echomq/client.hpp"
#include "echomq/lock_plane.hpp"

namespace echomq::conformance {

/// What a call came to, in the words of the vocabulary: `"ok"`, `{"ok": x}`, `{"error": x}`, `{"raises": ...}`.
struct Outcome {
  json::value result;
  /// The text of the error, when it was one.
  std::string error_text;
};

/// Verbs of the vocabulary that this library does not have yet. A history that needs one is skipped, naming it.
[[nodiscard]] bool is_missing(std::string_view call);

/// Makes the call. Throws on a verb that is neither known nor missing.
[[nodiscard]] Outcome make_call(const Client& client, std::string_view call, std::string_view queue,
                                const json::object& args);

/// The calls that concern flows; nothing when `call` is not one of them.
[[nodiscard]] std::optional<Outcome> make_flow_call(const Client& client, std::string_view call, std::string_view queue,
                                                    const json::object& args);

/// The calls that end jobs from outside; nothing when `call` is not one of them.
[[nodiscard]] std::optional<Outcome> make_cancel_call(const Client& client, std::string_view call,
                                                      std::string_view queue, const json::object& args);

/// The calls of event streams; nothing when `call` is not one of them.
[[nodiscard]] std::optional<Outcome> make_bus_call(const Client& client, std::string_view call, std::string_view queue,
                                                   const json::object& args);

/// The verbs of the cache; nothing when `call` is not one of them.
[[nodiscard]] std::optional<Outcome> make_cache_call(const Client& client, std::string_view call,
                                                     const json::object& args);

/// `take` and `settle`: many jobs in one call; nothing when `call` is neither.
[[nodiscard]] std::optional<Outcome> make_exchange_call(const Client& client, std::string_view call,
                                                        std::string_view queue, const json::object& args);

/// `consumer_run`: what the handler of a worker was given, once it has settled all of it.
[[nodiscard]] json::value run_consumer(const Client& client, std::string_view queue, const json::object& args);

/// The calls of batches, weighted lanes, bulk deletion, repeats and the pump; nothing when `call` is not one of them.
[[nodiscard]] std::optional<Outcome> make_lane_call(const Client& client, std::string_view call, std::string_view queue,
                                                    const json::object& args);

/// `lock_plane`, `track`, `untrack`, `lock_beat`: the markers of one holder, kept from call to call.
class LockHand {
 public:
  [[nodiscard]] static bool knows(std::string_view call);
  [[nodiscard]] Outcome make_call(const Client& client, std::string_view call, std::string_view queue,
                                  const json::object& args);

 private:
  std::optional<LockPlane> plane_;
};

/// The calls of identity and keys, which need no server; nothing when `call` is not one of them.
[[nodiscard]] std::optional<json::value> make_pure_call(std::string_view call, const json::object& args);

}  // namespace echomq::conformance
