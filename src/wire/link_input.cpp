// Replies: frames out of bytes, calls out of frames.
#include <utility>

#include "result/futex.hpp"
#include "wire/link.hpp"
#include "wire/request.hpp"
#include "wire/request_keys.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

/// Answers of one read that a sleeper waits for at most before it is woken for the first.
constexpr std::size_t kAnswersAWake = 16;

/// On a connection that subscribes, everything but a message answers the oldest request: confirmations come as pushes
/// on RESP3 and as arrays on RESP2.
[[nodiscard]] bool is_message(const resp::View& frame) {
  const auto kind = frame.at(0).as_text();
  return kind && (*kind == "message" || *kind == "pmessage" || *kind == "smessage");
}

using Refusal = detail::Call::Refusal;

/// What two commands of one request were told.
[[nodiscard]] Refusal of_both(Refusal one, Refusal other) noexcept {
  if (one == Refusal::none || one == other)
    return other;
  return one == Refusal::moved || other == Refusal::moved ? Refusal::moved : Refusal::try_again;
}

}  // namespace

bool Link::process_input() {
  bool booting = false;
  {
    const std::lock_guard lock(mutex_);
    last_input_ = detail::Clock::now();
    booting = state_ == State::booting;
  }
  Again again;
  bool sound = true;
  for (;;) {
    // 1. Find the frames that are complete.
    frames_.clear();
    std::size_t consumed = 0;
    while (consumed < input_.size() && frames_.size() < 512) {
      const auto step = scanner_.scan(input_.data() + consumed, input_.size() - consumed);
      if (step == resp::Step::need_more)
        break;
      if (step == resp::Step::error) {
        protocol_error(std::string(scanner_.error()));
        sound = false;
        break;
      }
      bool is_push = scanner_.is_push();
      if (settings_.subscribes && !booting) {
        is_push = is_message(resp::View(std::string_view(input_.data() + consumed, scanner_.frame_size())));
      }
      frames_.push_back({consumed, scanner_.frame_size(), nullptr, true, is_push});
      consumed += scanner_.frame_size();
      if (booting)
        break;  // the state may change with each
    }
    if (frames_.empty())
      break;

    // 2. Match them with the calls they answer.
    if (!booting) {
      const std::lock_guard lock(mutex_);
      for (Frame& frame : frames_) {
        if (frame.is_push)
          continue;
        frame.call = pipeline_.next_in_flight(frame.is_last);
      }
      make_room_locked();
    }

    // 3. Complete the calls, without the lock. Whoever gets several answers is woken once, but not late.
    detail::WakeLater wakes;
    std::size_t done = 0;
    for (const Frame& frame : frames_) {
      if (++done % kAnswersAWake == 0)
        wakes.flush();
      const resp::View reply(std::string_view(input_.data() + frame.offset, frame.size));
      if (frame.is_push) {
        counters_.pushes.fetch_add(1, std::memory_order_relaxed);
        if (observer_ != nullptr)
          observer_->link_push(reply);
      } else if (booting) {
        take_boot_reply(reply);
      } else if (frame.call == nullptr) {
        protocol_error("a reply that nobody awaits");
        sound = false;
      } else {
        counters_.replies.fetch_add(1, std::memory_order_relaxed);
        dispatch(frame.call, reply, frame.is_last, again);
      }
    }
    counters_.bytes_in.fetch_add(consumed, std::memory_order_relaxed);
    if (booting) {
      const std::lock_guard lock(mutex_);
      if (state_ != State::booting && state_ != State::live)
        return false;  // refused: the socket is closed
      booting = state_ == State::booting;
    }
    input_.consume(consumed);
    if (!sound)
      break;
  }
  if (!again.refused.empty())
    repair(again.refused);
  if (!again.moved.empty())
    redirector_->redirect(*this, again.moved, again.moves);
  return sound;
}

void Link::dispatch(detail::Call* call, const resp::View& reply, bool is_last, Again& again) {
  if (call->awaits_asking) {  // the answer to ASKING: when that was refused, so is what stands behind it
    call->awaits_asking = false;
    return;
  }
  if (redirector_ != nullptr && refused(call, reply, is_last, again))
    return;
  if (!is_last) {
    call->part(reply);
    return;
  }
  if (call->script != nullptr && repairer_ != nullptr && !call->settled() && repairer_->refuses(*call, reply)) {
    again.refused.push(call);
    return;
  }
  if (call->internal) {
    const std::lock_guard lock(mutex_);
    ping_in_flight_ = false;
  }
  if (call->win())
    call->accept(reply);
  call->release();
}

/// Whether this reply says that the call has to go elsewhere, or to come back later; it then goes no further.
bool Link::refused(detail::Call* call, const resp::View& reply, bool is_last, Again& again) {
  if (is_last && !reply.is_error() && call->refused_commands == 0)
    return false;
  const std::string_view request(call->request, call->request_size);
  const bool transaction = is_transaction(request);
  if (!is_last && call->asking && !transaction)
    call->awaits_asking = true;
  if (call->settled())
    return false;
  const Refusal how = reply.is_error() ? redirector_->refusal(*this, reply.error_text(), again.moves) : Refusal::none;
  if (transaction) {
    if (how != Refusal::none) {
      call->refusal = is_last ? how : of_both(call->refusal, how);
    } else if (!is_last && reply.as_text() != "OK") {
      ++call->answered_commands;
    }
    if (!is_last || call->refusal == Refusal::none)
      return how != Refusal::none;
    // EXEC has refused all of it, because a command was. Whatever was queued has its keys here still.
    if (how == Refusal::none && call->refusal == Refusal::ask && call->answered_commands > 0)
      call->refusal = Refusal::try_again;
    again.moved.push(call);
    return true;
  }
  if (how == Refusal::none) {
    // Of several commands one in the middle was refused: that stays as it is, or answers would change places.
    for (; call->refused_commands > 0; --call->refused_commands, ++call->answered_commands)
      call->part(resp::View("-TRYAGAIN the keys of one request are on two nodes\r\n"));
    call->answered_commands += is_last ? 0 : 1;
    return false;
  }
  call->refusal = call->refused_commands == 0 ? how : of_both(call->refusal, how);
  ++call->refused_commands;
  if (!is_last)
    return true;
  if (call->answered_commands > 0) {
    // What was carried out stays behind. A lost connection cannot be told from the answers any more, and whatever the rest
    // comes to, the request is not one that nobody has seen.
    const std::string_view rest = request_behind(request, call->answered_commands);
    call->request = rest.data();
    call->request_size = static_cast<std::uint32_t>(rest.size());
    call->repeat = Repeat::unsafe;
    call->resent = true;
  }
  again.moved.push(call);
  return true;
}

void Link::repair(CallQueue& refused) {
  CallQueue again;
  CallQueue given_up;
  Error why;
  {
    const std::lock_guard lock(mutex_);
    repairer_->repair(refused, again, given_up, why);
    again.for_each([&](detail::Call& call) {
      // The loads, which are new. Of a call that somebody waits for the waiter reads it meanwhile.
      if (call.source == nullptr)
        call.source = this;
    });
    pipeline_.enqueue_again(std::move(again));
    next_deadline_ = TimePoint::min();  // it may have been reckoned while these were on nobody's list
    signal_library_locked();
  }
  fail_all(given_up, why, false);
}

void Link::protocol_error(const std::string& why) {
  counters_.protocol_errors.fetch_add(1, std::memory_order_relaxed);
  log_(LogLevel::error, "protocol_error", why);
  const std::lock_guard lock(mutex_);
  break_locked("protocol error: " + why);
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
