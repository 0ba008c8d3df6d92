#include "conformance/host_state.hpp"

namespace echomq::conformance {
namespace {

[[nodiscard]] json::value cancelled(const std::string& reason) {
  return json::object{{"error", json::array{"cancelled", json::string(reason)}}};
}

}  // namespace

std::optional<json::value> HostState::call(std::string_view call, const json::object& args) {
  const auto text = [&](std::string_view name) { return text_of(args.at(name)); };
  if (call == "cancel_new") {
    tokens_.insert_or_assign(text("as"), CancelToken());
    return "ok";
  }
  if (call == "cancel") {
    tokens_.at(text("token")).cancel(text("reason"));
    return "ok";
  }
  if (call == "cancel_check") {
    const auto reason = tokens_.at(text("token")).take();
    return reason ? cancelled(*reason) : json::value("ok");
  }
  if (call == "cancel_raise") {
    try {
      tokens_.at(text("token")).throw_if_cancelled();
      return "ok";
    } catch (const Cancelled& raised) {
      return json::object{{"raises", json::string(raised.reason())}};
    }
  }
  if (call == "meter_attach") {
    json::array& heard = heard_[text("as")];
    attachments_.push_back(meter_.attach(text("event"), [&heard](const Measured& measured) {
      json::object one;
      for (const auto& [name, value] : measured.values)
        one[name] = value;
      for (const auto& [name, value] : measured.labels)
        one[name] = json::string(value);
      heard.push_back(std::move(one));
    }));
    return "ok";
  }
  if (call == "meter_emit") {
    std::vector<std::pair<std::string_view, std::int64_t>> values;
    std::vector<std::pair<std::string_view, std::string_view>> labels;
    for (const auto& [name, value] : args.at("values").as_object())
      values.emplace_back(name, integer_of(value));
    for (const auto& [name, value] : args.at("labels").as_object())
      labels.emplace_back(name, std::string_view(value.as_string()));
    meter_.emit({text("event"), values, labels});
    return "ok";
  }
  if (call == "meter_heard")
    return json::object{{"ok", heard_.at(text("as"))}};
  return std::nullopt;
}

}  // namespace echomq::conformance
