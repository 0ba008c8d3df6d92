// Replies: frames out of bytes, calls out of frames.
#include <utility>

#include "result/futex.hpp"
#include "wire/link.hpp"
#include "wire/request.hpp"

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
  if (redirector_ != nullptr && reply.is_error() && !call->settled()) {
    // A command that was refused within MULTI makes EXEC refuse all of them: the whole request goes elsewhere.
    if (redirector_->moved(*this, reply.error_text(), again.moves)) {
      call->moved = true;
      if (!is_last)
        return;
    }
    if (is_last && call->moved) {
      again.moved.push(call);
      return;
    }
  }
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

void Link::repair(CallQueue& refused) {
  CallQueue again;
  CallQueue given_up;
  Error why;
  {
    const std::lock_guard lock(mutex_);
    repairer_->repair(refused, again, given_up, why);
    again.for_each([&](detail::Call& call) {
      if (call.internal)
        call.source = this;
    });
    pipeline_.enqueue_again(std::move(again));
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
