// The pipeline of one connection, without I/O and without locks: what waits to be written, what awaits its reply.
//
// Bytes come out of `gather`, replies are matched by `next_in_flight` in the order of writing. Whoever owns the
// connection guards it; no call is completed in here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "echomq/detail/call.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// An intrusive queue of calls; owns one reference of each.
class CallQueue {
 public:
  CallQueue() = default;
  CallQueue(CallQueue&& other) noexcept { swap(other); }
  CallQueue& operator=(CallQueue&& other) noexcept {
    swap(other);
    return *this;
  }
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;
  ~CallQueue() {
    while (detail::Call* call = pop())
      call->release();
  }

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] detail::Call* front() const noexcept { return head_; }

  void push(detail::Call* call) noexcept {
    call->next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = call;
    tail_ = call;
    ++size_;
  }
  [[nodiscard]] detail::Call* pop() noexcept {
    detail::Call* call = head_;
    if (call == nullptr)
      return nullptr;
    head_ = call->next;
    if (head_ == nullptr)
      tail_ = nullptr;
    call->next = nullptr;
    --size_;
    return call;
  }
  /// Appends all of `other`.
  void append(CallQueue&& other) noexcept {
    if (other.head_ == nullptr)
      return;
    (tail_ != nullptr ? tail_->next : head_) = other.head_;
    tail_ = other.tail_;
    size_ += other.size_;
    other.head_ = other.tail_ = nullptr;
    other.size_ = 0;
  }
  /// Puts all of `other` before what is here.
  void prepend(CallQueue&& other) noexcept {
    other.append(std::move(*this));
    swap(other);
  }
  /// Moves every call for which `takes(call)` says so into `into`, keeping both orders.
  template <typename Takes>
  void extract(Takes takes, CallQueue& into) {
    CallQueue kept;
    while (detail::Call* call = pop())
      (takes(*call) ? into : kept).push(call);
    swap(kept);
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (detail::Call* call = head_; call != nullptr; call = call->next)
      visit(*call);
  }
  void swap(CallQueue& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
    std::swap(size_, other.size_);
  }

 private:
  detail::Call* head_ = nullptr;
  detail::Call* tail_ = nullptr;
  std::size_t size_ = 0;
};

/// How a call ends that gets no answer: with `why`, unless the server may have carried it out, now or before it was to
/// be sent again.
[[nodiscard]] inline Error unanswered(const detail::Call& call, bool written, const Error& why) {
  return written || call.resent ? Error(Errc::outcome_unknown, why.message(), call.repeat) : why;
}

class Pipeline {
 public:
  using TimePoint = detail::Clock::time_point;

  /// Queues a call behind all others.
  void enqueue(detail::Call* call) noexcept;
  /// Queues calls before all those of `enqueue`, behind earlier ones of this kind: what is sent again.
  void enqueue_again(CallQueue&& calls) noexcept;

  [[nodiscard]] bool has_waiting() const noexcept { return waiting() > 0; }
  [[nodiscard]] std::size_t waiting() const noexcept { return again_.size() + waiting_.size(); }
  [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_.size(); }
  /// Calls and request bytes not answered yet.
  [[nodiscard]] std::size_t pending() const noexcept { return waiting() + in_flight_.size(); }
  [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_bytes_; }

  /// Appends the bytes of waiting calls to `out`, up to about `limit` bytes (at least one call); they are in flight
  /// from then on. Calls that are settled already (cancelled, timed out) are moved to `dropped` instead.
  /// Gives the number of calls gathered.
  std::size_t gather(std::string& out, std::size_t limit, TimePoint now, CallQueue& dropped);

  /// The call that the next reply answers, null when none is awaited. The last reply of a call takes it off the
  /// pipeline, with its reference (`is_last` set); before that the pipeline keeps it.
  [[nodiscard]] detail::Call* next_in_flight(bool& is_last) noexcept;
  [[nodiscard]] detail::Call* oldest_in_flight() const noexcept { return in_flight_.front(); }
  /// Since when a reply is awaited without a break: the oldest call in flight was written here then, or a reply has come
  /// since.
  [[nodiscard]] TimePoint awaits_since() const noexcept { return awaits_since_; }

  /// The connection is gone, after `bytes_sent` bytes of what `gather` gave reached the kernel. Calls not written are
  /// waiting again; written ones that are safe to repeat and younger than `window` too (marked `resent`); the rest is
  /// moved to `lost`. Gives the number of written calls that will be sent again.
  std::size_t connection_lost(std::uint64_t bytes_sent, TimePoint now, detail::Clock::duration window, CallQueue& lost);

  /// Moves waiting calls that are past their deadline to `late_waiting`, those too that were to be sent again (safe ones) and
  /// are older than `window`, and visits in-flight ones (they keep their place, their late reply is drained). Gives the
  /// earliest such moment of the rest.
  template <typename Visit>
  [[nodiscard]] TimePoint expire(TimePoint now, detail::Clock::duration window, CallQueue& late_waiting,
                                 Visit late_in_flight) {
    TimePoint earliest = TimePoint::max();
    const auto ends = [&](const detail::Call& call) {
      // Of an unsafe one part was carried out: the rest was not written where it waits.
      const bool again = call.resent && call.repeat == Repeat::safe;
      return again ? std::min(call.deadline, call.first_written + window) : call.deadline;
    };
    for (CallQueue* queue : {&again_, &waiting_}) {
      queue->extract([&](detail::Call& call) { return ends(call) <= now; }, late_waiting);
      queue->for_each([&](detail::Call& call) { earliest = std::min(earliest, ends(call)); });
    }
    late_waiting.for_each([&](detail::Call& call) { pending_bytes_ -= call.request_size; });
    in_flight_.for_each([&](detail::Call& call) {
      if (call.deadline <= now) {
        late_in_flight(call);
      } else {
        earliest = std::min(earliest, call.deadline);
      }
    });
    return earliest;
  }

  /// Moves waiting calls for which `takes(call)` says so into `into`, in order.
  template <typename Takes>
  void extract_waiting(Takes takes, CallQueue& into) {
    for (CallQueue* queue : {&again_, &waiting_}) {
      queue->extract(
          [&](detail::Call& call) {
            const bool taken = takes(call);
            pending_bytes_ -= taken ? call.request_size : 0;
            return taken;
          },
          into);
    }
  }
  /// Visits every call that is not answered yet.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const CallQueue* queue : {&in_flight_, &again_, &waiting_})
      queue->for_each(visit);
  }

  /// Takes a waiting call out (cancel); false when it is not waiting. Its reference goes to the caller.
  [[nodiscard]] bool withdraw(detail::Call& call);
  /// Everything, in order: closing.
  void take_all(CallQueue& all) noexcept;

 private:
  CallQueue again_;  ///< goes out before `waiting_`
  CallQueue waiting_;
  CallQueue in_flight_;
  std::size_t pending_bytes_ = 0;
  std::uint64_t gathered_ = 0;
  TimePoint awaits_since_{};
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
