// NOSCRIPT repair.
#include "script/executor.hpp"

#include <array>
#include <string>
#include <string_view>

#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace script {
namespace {

// A script cache that is flushed more often than this between two answers of one call is being fought over.
constexpr std::uint8_t kMostLoads = 100;

[[nodiscard]] detail::CallOf<void>* make_load(const ScriptSource& script) {
  const std::array<std::string_view, 3> parts = {"SCRIPT", "LOAD", script.source};
  auto decode = [sha1 = script.sha1](const wire::Answer& answer) -> Result<void> {
    if (answer.view.is_error())
      return std::unexpected(wire::to_error(answer.view.error_text()));
    const auto text = answer.view.as_text();
    if (text && *text == sha1)
      return {};
    return fail(Errc::script_mismatch,
                "SCRIPT LOAD answered '" + std::string(text ? *text : "(not text)") + "' for " + std::string(sha1));
  };
  detail::CallOf<void>* load = wire::BoundCall<void, decltype(decode), true>::make(parts, decode);
  load->internal = true;
  return load;
}

}  // namespace

Executor::~Executor() { forget(); }

void Executor::forget() {
  for (auto& [script, load] : loads_)
    load->release();
  loads_.clear();
}

void Executor::connection_lost() { forget(); }

bool Executor::refuses(const detail::Call& call, const resp::View& reply) const noexcept {
  return call.script != nullptr && reply.is_error() && reply.error_text().starts_with("NOSCRIPT");
}

void Executor::repair(wire::CallQueue& refused, wire::CallQueue& again, wire::CallQueue& given_up, Error& why) {
  wire::CallQueue resent;
  while (detail::Call* call = refused.pop()) {
    Load*& load = loads_[call->script];
    // A load that was refused (no permission, a busy server) speaks for the calls that waited for it; later ones try again.
    if (load != nullptr && load->done() && (call->script_loads > 0 || load->stream_offset > call->stream_offset)) {
      if (const Result<void>& outcome = load->peek(); !outcome) {
        why = outcome.error();
        given_up.push(call);
        continue;
      }
    }
    if (++call->script_loads > kMostLoads) {
      why =
          Error(Errc::server_error, "NOSCRIPT again and again: the script cache is flushed all the time", Repeat::safe);
      given_up.push(call);
      continue;
    }
    // Written before the newest load, which may still wait: that load cures it, for what is sent again goes out behind
    // it. Written after: the cache was flushed since.
    const bool cured = load != nullptr && (!load->written() || load->stream_offset > call->stream_offset);
    if (!cured) {
      if (load != nullptr)
        load->release();
      load = make_load(*call->script);
      load->retain();
      again.push(load);
      counters_.script_loads.fetch_add(1, std::memory_order_relaxed);
    }
    counters_.scripts_resent.fetch_add(1, std::memory_order_relaxed);
    resent.push(call);
  }
  again.append(std::move(resent));
}

}  // namespace script
}  // namespace v1
}  // namespace echomq
