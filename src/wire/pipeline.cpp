// The pipeline of one connection.
#include "wire/pipeline.hpp"

#include "wire/request_keys.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

/// ASKING holds for the next command alone, or for a transaction: it goes before each, and has a reply of its own.
void append_behind_asking(std::string& out, detail::Call& call) {
  constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n";
  const std::string_view request(call.request, call.request_size);
  const std::uint32_t commands = commands_of_request(request);
  call.awaits_asking = true;
  if (is_transaction(request)) {
    out.append(kAsking).append(request);
    call.replies = commands + 1;
    return;
  }
  for (std::string_view rest = request; !rest.empty();) {
    const std::string_view behind = request_behind(rest, 1);
    out.append(kAsking).append(rest.substr(0, rest.size() - behind.size()));
    rest = behind;
  }
  call.replies = 2 * commands;
}

}  // namespace

void Pipeline::enqueue(detail::Call* call) noexcept {
  pending_bytes_ += call->request_size;
  waiting_.push(call);
}

void Pipeline::enqueue_again(CallQueue&& calls) noexcept {
  calls.for_each([&](detail::Call& call) { pending_bytes_ += call.request_size; });
  again_.append(std::move(calls));
}

std::size_t Pipeline::gather(std::string& out, std::size_t limit, TimePoint now, CallQueue& dropped) {
  std::size_t count = 0;
  const std::size_t start = out.size();
  while (has_waiting()) {
    CallQueue& queue = again_.empty() ? waiting_ : again_;
    detail::Call* call = queue.front();
    if (count > 0 && out.size() - start + call->request_size > limit)
      break;
    (void)queue.pop();
    if (call->settled()) {
      pending_bytes_ -= call->request_size;
      dropped.push(call);
      continue;
    }
    call->stream_offset = gathered_;
    if (call->first_written == TimePoint{})
      call->first_written = now;
    call->answered_commands = call->refused_commands = 0;
    call->refusal = detail::Call::Refusal::none;
    const std::size_t before = out.size();
    if (call->asking) {
      append_behind_asking(out, *call);
    } else {
      if (call->awaits_asking) {  // written behind ASKING before, on a connection that was lost
        call->awaits_asking = false;
        call->replies = commands_of_request({call->request, call->request_size});
      }
      out.append(call->request, call->request_size);
    }
    gathered_ += out.size() - before;
    if (in_flight_.empty())
      awaits_since_ = now;
    in_flight_.push(call);
    ++count;
  }
  return count;
}

detail::Call* Pipeline::next_in_flight(bool& is_last) noexcept {
  detail::Call* call = in_flight_.front();
  if (call == nullptr)
    return nullptr;
  is_last = call->replies <= 1;
  if (is_last) {
    (void)in_flight_.pop();
    pending_bytes_ -= call->request_size;
  } else {
    --call->replies;
  }
  return call;
}

std::size_t Pipeline::connection_lost(std::uint64_t bytes_sent, TimePoint now, detail::Clock::duration window,
                                      CallQueue& lost) {
  std::size_t resent = 0;
  CallQueue again;
  while (detail::Call* call = in_flight_.pop()) {
    const bool untouched = call->stream_offset >= bytes_sent;
    const bool young = now - call->first_written <= window;
    if (!call->settled() && (untouched || (call->repeat == Repeat::safe && young))) {
      if (untouched && !call->resent)
        call->first_written = TimePoint{};
      if (!untouched) {
        call->resent = true;
        ++resent;
        // All of its replies come again, also those that it has had.
        call->replies = commands_of_request({call->request, call->request_size});
      }
      again.push(call);
    } else {
      pending_bytes_ -= call->request_size;
      lost.push(call);
    }
  }
  again.append(std::move(again_));
  again_.swap(again);
  gathered_ = 0;
  return resent;
}

bool Pipeline::withdraw(detail::Call& call) {
  CallQueue found;
  for (CallQueue* queue : {&again_, &waiting_})
    queue->extract([&](detail::Call& other) { return &other == &call; }, found);
  if (found.empty())
    return false;
  pending_bytes_ -= call.request_size;
  (void)found.pop();
  return true;
}

void Pipeline::take_all(CallQueue& all) noexcept {
  all.append(std::move(in_flight_));
  all.append(std::move(again_));
  all.append(std::move(waiting_));
  pending_bytes_ = 0;
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
