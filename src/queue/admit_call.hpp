// One admission, and what may follow it: a fresh id that turns out to be taken is minted again, a duplicate of a chosen
// id is looked at once more, because a row that is in no set would otherwise be refused for ever without a word.
//
// The usual case is one request and one allocation. What follows is a second request made from the bytes of the first,
// sent by whichever thread took the first answer; it never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "client/core.hpp"
#include "echomq/detail/call.hpp"
#include "echomq/queue.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// How often a fresh id may turn out to be taken before the minter is blamed.
inline constexpr std::uint8_t kMostCollisions = 4;

/// The error of an id that was taken again and again: somebody else mints under the same node id.
[[nodiscard]] Error too_many_collisions(const JobId& last);
/// The error of a row that exists but is in no set.
[[nodiscard]] Error broken_row(const JobId& id);

enum class IdOrigin : std::uint8_t { chosen, minted };

class AdmitCall final : public detail::CallOf<Admission> {
 public:
  /// `parts` is a script call whose part `id_part` is the id; a row among the keys comes first.
  /// `core` outlives the call: it owns the connection that answers it.
  static AdmitCall* make(client::Core& core, std::span<const std::string_view> parts, std::uint8_t id_part, JobId id,
                         IdOrigin origin);

  void accept(const resp::View& reply) noexcept override;

 private:
  class FollowUp;

  AdmitCall(client::Core& core, std::uint8_t id_part, JobId id, IdOrigin origin) noexcept
      : core_(core), id_(id), id_part_(id_part), origin_(origin) {}
  ~AdmitCall() override = default;
  void destroy() noexcept override;

  /// An answer of the admission script.
  void take(const resp::View& reply, bool was_resent);
  /// The answer of the look at a duplicate.
  void take_state(const resp::View& reply, Admitted verdict);
  void mint_again();
  void look_at_duplicate(Admitted verdict);
  void finish(Result<Admission> result) noexcept;
  void follow_up(std::span<const std::string_view> parts, const script::ScriptSource& with, bool look,
                 Admitted verdict);
  [[nodiscard]] std::string_view request_bytes() const noexcept { return {request, request_size}; }

  client::Core& core_;
  JobId id_;
  std::uint8_t id_part_;
  IdOrigin origin_;
  std::uint8_t collisions_ = 0;
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
