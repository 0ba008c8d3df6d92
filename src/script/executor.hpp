// The script executor's repair of an empty script cache: NOSCRIPT never reaches a caller.
//
// A script call is an EVALSHA. One that the server refuses with NOSCRIPT had no effect, so it is sent again, behind one
// SCRIPT LOAD of its text; calls that were written before that load and are refused later share it. Calls that
// succeeded keep their places: only the refused ones travel twice.
#pragma once

#include <map>
#include <optional>

#include "script/registry.hpp"
#include "wire/link.hpp"

namespace echomq {
inline namespace v1 {
namespace script {

/// Repairs one connection. Its state is guarded by that connection's lock.
class Executor final : public wire::Repairer {
 public:
  explicit Executor(wire::Counters& counters) : counters_(counters) {}
  ~Executor();

  [[nodiscard]] bool refuses(const detail::Call& call, const resp::View& reply) const noexcept override;
  void repair(wire::CallQueue& refused, wire::CallQueue& again, wire::CallQueue& given_up, Error& why) override;
  void connection_lost() override;

 private:
  using Load = detail::CallOf<void>;

  void forget();

  wire::Counters& counters_;
  /// The newest SCRIPT LOAD of each script on this connection; each holds a reference.
  std::map<const ScriptSource*, Load*> loads_;
};

}  // namespace script
}  // namespace v1
}  // namespace echomq
