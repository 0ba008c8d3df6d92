// What the host verbs of a scenario share between its steps: cancel tokens, and a meter with what it has heard.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/values.hpp"
#include "echomq/cancel.hpp"
#include "echomq/meter.hpp"

namespace echomq::conformance {

class HostState {
 public:
  /// Makes the call when it is one of `cancel_new`, `cancel`, `cancel_check`, `cancel_raise`, `meter_attach`, `meter_emit`,
  /// `meter_heard`; nothing otherwise.
  [[nodiscard]] std::optional<json::value> call(std::string_view call, const json::object& args);

 private:
  std::map<std::string, CancelToken> tokens_;
  std::map<std::string, json::array> heard_;
  Meter meter_;
  std::vector<Meter::Attachment> attachments_;
};

}  // namespace echomq::conformance
