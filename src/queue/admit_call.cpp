// One admission, and what may follow it.
#include "queue/admit_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "queue/arguments.hpp"
#include "queue/scripts.hpp"
#include "queue/start.hpp"
#include "resp/encode.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

Error too_many_collisions(const JobId& last) {
  return {Errc::minter_exhausted,
          fmt::format("{} freshly minted ids in a row were taken, the last {}: does another client mint under the "
                      "same node id?",
                      kMostCollisions, last.text())};
}

Error broken_row(const JobId& id) {
  return {Errc::broken_state,
          fmt::format("job {} has a row, but is in no set: it will never run, and no job of that id can be admitted "
                      "until it is repaired or removed",
                      id.text())};
}

/// The second request of an admission. Holds its admission alive; nobody waits for it itself.
class AdmitCall::FollowUp final : public detail::Call {
 public:
  static FollowUp* make(AdmitCall& admission, std::span<const std::string_view> parts, bool look, Admitted verdict) {
    const std::size_t size = resp::encoded_size(parts);
    void* memory = ::operator new(sizeof(FollowUp) + size);
    auto* call = ::new (memory) FollowUp(admission, look, verdict);
    char* const bytes = reinterpret_cast<char*>(call + 1);
    resp::encode_to(bytes, parts);
    call->request = bytes;
    call->request_size = static_cast<std::uint32_t>(size);
    return call;
  }

  void accept(const resp::View& reply) noexcept override {
    if (look_) {
      admission_->take_state(reply, verdict_);
    } else {
      admission_->take(reply, resent);
    }
    publish();
  }
  void fail(Error error) noexcept override {
    // The duplicate itself is certain; only the look at it failed.
    admission_->finish(look_ ? Result<Admission>(Admission{admission_->id_, verdict_})
                             : Result<Admission>(std::unexpected<Error>(std::move(error))));
    publish();
  }

 private:
  FollowUp(AdmitCall& admission, bool look, Admitted verdict) noexcept
      : admission_((admission.retain(), &admission)), look_(look), verdict_(verdict) {}
  ~FollowUp() override = default;
  void destroy() noexcept override {
    this->~FollowUp();
    ::operator delete(static_cast<void*>(this));
  }

  detail::CallPointer<AdmitCall> admission_;
  bool look_;
  Admitted verdict_;
};

AdmitCall* AdmitCall::make(client::Core& core, std::span<const std::string_view> parts, std::uint8_t id_part, JobId id,
                           IdOrigin origin) {
  const std::size_t size = resp::encoded_size(parts);
  void* memory = ::operator new(sizeof(AdmitCall) + size);
  auto* call = ::new (memory) AdmitCall(core, id_part, id, origin);
  char* const bytes = reinterpret_cast<char*>(call + 1);
  resp::encode_to(bytes, parts);
  call->request = bytes;
  call->request_size = static_cast<std::uint32_t>(size);
  return call;
}

void AdmitCall::destroy() noexcept {
  this->~AdmitCall();
  ::operator delete(static_cast<void*>(this));
}

void AdmitCall::accept(const resp::View& reply) noexcept { take(reply, resent); }

void AdmitCall::finish(Result<Admission> result) noexcept {
  store(std::move(result));
  publish();
}

void AdmitCall::take(const resp::View& reply, bool was_resent) {
  if (reply.is_error())
    return finish(std::unexpected<Error>(wire::to_error(reply.error_text())));
  // `admit` answers with a list of one.
  std::optional<std::int64_t> answer;
  if (!reply.is_aggregate()) {
    answer = reply.as_integer();
  } else {
    answer = reply.at(0).as_integer();
  }
  if (answer == 1)
    return finish(Admission{id_, Admitted::enqueued});
  if (answer == -2) {
    return finish(echomq::fail(Errc::wrong_kind, fmt::format("job id must be JOB-namespaced, got {}", id_.text())));
  }
  if (answer == -3)
    return finish(std::unexpected<Error>(broken_row(id_)));
  if (answer != 0)
    return finish(unexpected_reply("enqueue", reply));

  if (origin_ == IdOrigin::minted) {
    // Nobody else has this id: after a lost answer the row is the first attempt's own.
    if (was_resent)
      return finish(Admission{id_, Admitted::enqueued});
    return mint_again();
  }
  const Admitted verdict = was_resent ? Admitted::present : Admitted::duplicate;
  if (reply.is_aggregate())
    return finish(Admission{id_, verdict});  // `admit` has looked by itself
  look_at_duplicate(verdict);
}

void AdmitCall::mint_again() {
  core_.count_id_collision();
  if (++collisions_ >= kMostCollisions)
    return finish(std::unexpected<Error>(too_many_collisions(id_)));
  auto fresh = core_.mint("JOB");
  if (!fresh)
    return finish(std::unexpected<Error>(std::move(fresh).error()));

  const std::string_view bytes = request_bytes();
  std::vector<std::string_view> parts;
  std::size_t count = 0;
  std::from_chars(bytes.data() + 1, bytes.data() + bytes.size(), count);
  for (std::size_t i = 0; i < count; ++i)
    parts.push_back(request_part(bytes, i));
  std::string row(parts[ScriptParts::kFirstKey]);
  if (row.ends_with(id_.text())) {
    row.replace(row.size() - BrandedId::kSize, BrandedId::kSize, fresh->text());
    parts[ScriptParts::kFirstKey] = row;
  }
  id_ = JobId(*fresh);
  parts[id_part_] = id_.text();
  follow_up(parts, *script, false, Admitted::enqueued);
}

void AdmitCall::look_at_duplicate(Admitted verdict) {
  const std::string_view row = request_part(request_bytes(), ScriptParts::kFirstKey);
  const std::string base(row.substr(0, row.size() - BrandedId::kSize - std::string_view("job:").size()));
  const std::string pending = base + "pending";
  const std::string active = base + "active";
  const std::string schedule = base + "schedule";
  const std::string dead = base + "dead";
  const script::ScriptSource& state_lookup = Scripts::get().state_lookup;
  const ScriptParts parts(state_lookup, views(pending, active, schedule, dead, row), views(id_.text()));
  follow_up(parts.parts(), state_lookup, true, verdict);
}

void AdmitCall::take_state(const resp::View& reply, Admitted verdict) {
  if (reply.as_text() == "unknown")
    return finish(std::unexpected<Error>(broken_row(id_)));
  finish(Admission{id_, verdict});
}

void AdmitCall::follow_up(std::span<const std::string_view> parts, const script::ScriptSource& with, bool look,
                          Admitted verdict) {
  FollowUp* next_call = FollowUp::make(*this, parts, look, verdict);
  next_call->script = &with;
  // Whoever brings the answer that this follows from may be the only one who reads: it must not wait for room.
  wire::CallSettings how{.repeat = Repeat::safe, .never_refused = true};
  if (deadline != detail::Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - detail::Clock::now());
    how.deadline = std::max(left, std::chrono::milliseconds{1});
  }
  core_.submit(next_call, how);
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
