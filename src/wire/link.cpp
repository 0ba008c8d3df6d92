// The pipeline's side of a link: submitting, writing, driving, closing.
#include "wire/link.hpp"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

constexpr std::size_t kWriteChunk = std::size_t{256} << 10;
/// A driving caller looks about itself so often; the receive time-out of the socket is the same.
constexpr std::chrono::milliseconds kDriveSlice{50};
/// In ms, between two looks whether a connection can be attended.
constexpr int kLongestLook = 64;

void ring(int event_fd) {
  const std::uint64_t one = 1;
  (void)!::write(event_fd, &one, sizeof one);
}

}  // namespace

Link::Link(boost::asio::io_context& io, LinkSettings settings, Counters& counters, LogFunction log, Repairer* repairer,
           LinkObserver* observer, Redirector* redirector)
    : io_(io),
      settings_(std::move(settings)),
      counters_(counters),
      log_(std::move(log)),
      repairer_(repairer),
      observer_(observer),
      redirector_(redirector),
      timer_(io),
      tick_timer_(io),
      resolver_(io),
      jitter_(std::random_device{}()) {}

Link::~Link() {
  // A caller that drove may still be leaving its lock.
  {
    const std::lock_guard lock(mutex_);
  }
  if (fd_ >= 0)
    ::close(fd_);
  if (gate_) {
    boost::system::error_code ignored;
    gate_->close(ignored);
  }
  if (event_fd_ >= 0)
    ::close(event_fd_);
}

std::int64_t Link::connection_id() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::live ? connection_id_ : 0;
}
int Link::protocol() const {
  const std::lock_guard lock(mutex_);
  return protocol_;
}
std::size_t Link::pending() const {
  const std::lock_guard lock(mutex_);
  return pipeline_.pending();
}
bool Link::live() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::live;
}
bool Link::closed() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::closed;
}

Result<void> Link::wait_live(TimePoint until) {
  Lock lock(mutex_);
  first_.wait_until(lock, until, [&] { return state_ == State::live || first_attempt_over_ || closing_; });
  if (state_ == State::live)
    return {};
  if (closing_)
    return fail(close_error_);
  if (first_attempt_over_)
    return fail(last_error_);
  return fail(Errc::unreachable, "no connection to " + settings_.endpoint.to_string() + " in time", Repeat::safe);
}

bool Link::over_bound_locked(std::size_t more_calls, std::size_t more_bytes) const {
  return pipeline_.pending() + more_calls >= settings_.max_in_flight ||
         pipeline_.pending_bytes() + more_bytes >= settings_.max_in_flight_bytes;
}

void Link::wait_for_room_locked(Lock& lock, TimePoint until) {
  ++waiting_for_room_;
  // What fills it may be one call that nobody waits for.
  if (state_ == State::live && !armed_ && reader_ == Reader::none)
    arm_locked();
  // Wakes at three quarters of the bound, so that a blocked producer comes back to a stretch of work.
  const auto has_room = [&] {
    return closing_ || (pipeline_.pending() < settings_.max_in_flight - settings_.max_in_flight / 4 &&
                        pipeline_.pending_bytes() < settings_.max_in_flight_bytes);
  };
  room_.wait_until(lock, until, has_room);
  --waiting_for_room_;
}

void Link::wait_for_room(TimePoint until) {
  Lock lock(mutex_);
  if (over_bound_locked() && !closing_)
    wait_for_room_locked(lock, until);
}

Link::Taken Link::try_submit(detail::Call* call) {
  Lock lock(mutex_);
  if (closing_)
    return Taken::closed;
  if (over_bound_locked())
    return settings_.overflow == Overflow::block ? Taken::full : Taken::overloaded;
  enqueue_locked(lock, call);
  return Taken::accepted;
}

Link::Taken Link::taken_beside(std::size_t calls, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (closing_)
    return Taken::closed;
  if (!over_bound_locked(calls, bytes))
    return Taken::accepted;
  return settings_.overflow == Overflow::block ? Taken::full : Taken::overloaded;
}

void Link::submit(detail::Call* call, bool may_block) {
  Lock lock(mutex_);
  if (over_bound_locked() && !closing_) {
    if (settings_.overflow == Overflow::block && may_block)
      wait_for_room_locked(lock, call->deadline);
    if (over_bound_locked() && !closing_) {
      counters_.overloads.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      if (call->win())
        call->fail(Error(Errc::overloaded, "too many calls in flight", Repeat::safe));
      call->release();
      return;
    }
  }
  if (closing_) {
    const Error why = close_error_;
    lock.unlock();
    if (call->win())
      call->fail(why);
    call->release();
    return;
  }
  enqueue_locked(lock, call);
}

void Link::enqueue_locked(Lock& lock, detail::Call* call) {
  const bool idle = pipeline_.pending() == 0;
  claim_locked(*call);
  pipeline_.enqueue(call);
  next_deadline_ = std::min(next_deadline_, call->deadline);
  counters_.commands.fetch_add(1, std::memory_order_relaxed);
  send_soon_locked(lock, idle);
}

void Link::submit(CallQueue&& calls) {
  Lock lock(mutex_);
  if (closing_) {
    const Error why = close_error_;
    lock.unlock();
    return fail_all(calls, why, false);
  }
  const bool idle = pipeline_.pending() == 0;
  while (detail::Call* call = calls.pop()) {
    next_deadline_ = std::min(next_deadline_, call->deadline);
    pipeline_.enqueue(call);
    counters_.commands.fetch_add(1, std::memory_order_relaxed);
  }
  send_soon_locked(lock, idle);
}

/// `idle`: nothing was pending before.
void Link::send_soon_locked(Lock& lock, bool idle) {
  if (state_ != State::live || broken_)
    return;  // sent once live
  if (idle && !writing_ && !want_write_) {
    flush(lock, false);
    // It may have been left unarmed by whoever attended it, and nobody drives it.
    if (!settings_.lasts && !armed_ && reader_ == Reader::none)
      arm_locked();
    if (!pipeline_.has_waiting())
      return;
  } else if (!armed_ && reader_ == Reader::none) {
    // A caller drove this connection before and nobody does now: the library's thread takes over.
    arm_locked();
  }
  if (writing_)
    return;  // whoever writes looks again, or tells the library's thread
  signal_library_locked();
}

void Link::submit_internal(detail::Call* call) {
  if (try_submit_internal(call))
    return;
  Lock lock(mutex_);
  const Error why = close_error_;
  lock.unlock();
  if (call->win())
    call->fail(why);
  call->release();
}

bool Link::try_submit_internal(detail::Call* call) {
  call->internal = true;
  const std::lock_guard lock(mutex_);
  if (closing_)
    return false;
  claim_locked(*call);
  pipeline_.enqueue(call);
  next_deadline_ = std::min(next_deadline_, call->deadline);
  if (state_ == State::live && !broken_) {
    // Nobody waits for it in particular: left unarmed, its answer would be read with the next tick.
    if (!armed_ && reader_ == Reader::none)
      arm_locked();
    signal_library_locked();
  }
  return true;
}

void Link::take_over(CallQueue&& calls) {
  Lock lock(mutex_);
  if (closing_) {
    const Error why = close_error_;
    lock.unlock();
    return fail_all(calls, why, false);
  }
  while (detail::Call* call = calls.pop()) {
    // What was written once has a window, too.
    next_deadline_ = call->resent ? TimePoint::min() : std::min(next_deadline_, call->deadline);
    pipeline_.enqueue(call);
  }
  if (state_ != State::live || broken_)
    return;
  if (!armed_ && reader_ == Reader::none)
    arm_locked();
  signal_library_locked();
}

void Link::extract_waiting(const std::function<bool(const detail::Call&)>& takes, CallQueue& into) {
  const std::lock_guard lock(mutex_);
  pipeline_.extract_waiting(takes, into);
  make_room_soon();
}

bool Link::withdraw(detail::Call& call) {
  const std::lock_guard lock(mutex_);
  if (!pipeline_.withdraw(call))
    return false;
  make_room_soon();
  return true;
}

void Link::add_pending_slots(Slots& slots) const {
  const std::lock_guard lock(mutex_);
  pipeline_.for_each([&](const detail::Call& call) {
    if (call.slot < slots.size())
      slots.set(call.slot);
  });
}

void Link::flush(Lock& lock, bool keep_going) {
  CallQueue dropped;
  writing_ = true;
  do {
    if (out_sent_ == out_.size()) {
      out_.clear();
      out_sent_ = 0;
      pipeline_.gather(out_, kWriteChunk, detail::Clock::now(), dropped);
      if (out_.empty())
        break;
    }
    const int fd = fd_;
    lock.unlock();
    const ssize_t count = ::send(fd, out_.data() + out_sent_, out_.size() - out_sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    const int error = errno;
    lock.lock();
    if (count >= 0) {
      out_sent_ += static_cast<std::size_t>(count);
      sent_total_ += static_cast<std::uint64_t>(count);
      counters_.writes.fetch_add(1, std::memory_order_relaxed);
      counters_.bytes_out.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
      if (out_sent_ < out_.size() && !keep_going)
        break;
    } else if (error == EAGAIN || error == EWOULDBLOCK) {
      want_write_ = true;
      armed_ = false;  // so that arm_locked sets the new interest
      if (reader_ != Reader::caller) {
        arm_locked();
      } else if (bell_ >= 0) {
        ring(bell_);  // it waits for input only
      } else {
        watch_locked(EPOLLOUT);  // it reads on
      }
      break;
    } else if (error != EINTR) {
      break_locked("write failed: " + std::string(strerrordesc_np(error)));
      break;
    }
  } while (!broken_ && (out_sent_ < out_.size() || (keep_going && pipeline_.has_waiting())));
  writing_ = false;
  if (out_.capacity() > 8 * kWriteChunk && out_sent_ == out_.size()) {
    out_ = std::string();
    out_sent_ = 0;
  }
  if (broken_)
    signal_library_locked();
  if (out_sent_ < out_.size() && !want_write_)
    signal_library_locked();
  if (!dropped.empty()) {
    lock.unlock();
    dropped = CallQueue();
    lock.lock();
  }
}

void Link::signal_library_locked() {
  if (wake_pending_ || event_fd_ < 0)
    return;
  wake_pending_ = true;
  ring(event_fd_);
}

void Link::wake_library() {
  const std::lock_guard lock(mutex_);
  signal_library_locked();
}

/// What the gate tells the library's thread of.
void Link::watch_locked(std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd_;
  ::epoll_ctl(gate_fd_, EPOLL_CTL_MOD, fd_, &event);
}

void Link::arm_locked() {
  if (armed_ || fd_ < 0)
    return;
  watch_locked(EPOLLIN | (want_write_ ? static_cast<std::uint32_t>(EPOLLOUT) : 0U));
  armed_ = true;
}

void Link::disarm_locked() {
  if (!armed_ || fd_ < 0)
    return;
  watch_locked(0);
  armed_ = false;
}

void Link::leave_to_library() noexcept {
  const std::lock_guard lock(mutex_);
  if (state_ == State::live && !armed_ && reader_ == Reader::none)
    arm_locked();
}

bool Link::drive(bool (*done)(void*), void* argument, TimePoint until) {
  Lock lock(mutex_);
  if (state_ != State::live || reader_ != Reader::none || broken_ || want_write_)
    return false;
  // Only what is (about) alone in flight is worth taking over; a busy pipeline is the library's.
  if (pipeline_.pending() != 1 || pipeline_.has_waiting())
    return false;
  reader_ = Reader::caller;
  caller_drove_ = true;
  disarm_locked();
  // recv() on a Unix socket is also woken when the server takes the request in, and sleeps again; poll() is not.
  const bool polls = !settings_.endpoint.socket_path.empty();
  while (!done(argument)) {
    const bool last_look = detail::Clock::now() >= until;
    if (last_look || broken_ || closing_)
      break;
    lock.unlock();
    bool closed_by_peer = false;
    bool got = false;
    const auto left = until == TimePoint::max()
                          ? kDriveSlice
                          : std::chrono::ceil<std::chrono::milliseconds>(until - detail::Clock::now());
    if (polls || left < kDriveSlice) {
      pollfd readable{fd_, POLLIN, 0};
      (void)::poll(&readable, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kDriveSlice.count())));
      got = receive(fd_, input_, MSG_DONTWAIT, closed_by_peer);
    } else {
      got = receive(fd_, input_, 0, closed_by_peer);  // SO_RCVTIMEO bounds it
    }
    const bool sound = !got || process_input();
    lock.lock();
    if (closed_by_peer)
      break_locked("closed by the server");
    if (!sound)
      break;
    // What other threads queued meanwhile: this thread is awake, it writes.
    if (pipeline_.has_waiting() && !writing_ && !want_write_ && !broken_)
      flush(lock, true);
    if (pipeline_.pending() > 1)
      break;  // a pipeline now: the library's
    if (redirector_ != nullptr && pipeline_.pending() == 0)
      break;  // what was waited for has gone to another node
  }
  reader_ = Reader::none;
  if (broken_ || closing_) {
    signal_library_locked();
  } else if (pipeline_.pending() > 0 || redirector_ != nullptr) {
    // In a cluster also with nothing in flight: who waits for calls of several nodes drives none of them, or one.
    arm_locked();
    if (pipeline_.has_waiting())
      signal_library_locked();
  }
  return true;
}

void Link::attend(int bell) {
  Lock lock(mutex_);
  // There may be no connection yet, or somebody else who reads for a moment.
  for (int wait = 1; state_ != State::live || reader_ != Reader::none || broken_ || want_write_;
       wait = std::min(2 * wait, kLongestLook)) {
    if (closing_ || pipeline_.pending() == 0)
      return;
    lock.unlock();
    pollfd rung{bell, POLLIN, 0};
    if (::poll(&rung, 1, wait) != 0)
      return;
    lock.lock();
  }
  if (closing_ || pipeline_.pending() == 0)
    return;
  reader_ = Reader::caller;
  caller_drove_ = true;
  bell_ = bell;
  disarm_locked();
  const int fd = fd_;
  lock.unlock();
  bool closed_by_peer = false;
  pollfd awaited[] = {{fd, POLLIN, 0}, {bell, POLLIN, 0}};
  // Interrupted by a signal, it leaves the rest to the library's thread like anything else that comes later.
  if (::poll(awaited, 2, -1) > 0 && awaited[0].revents != 0 && receive(fd, input_, MSG_DONTWAIT, closed_by_peer))
    (void)process_input();
  lock.lock();
  bell_ = -1;
  reader_ = Reader::none;
  if (closed_by_peer)
    break_locked("closed by the server");
  if (broken_ || closing_) {
    signal_library_locked();
    return;
  }
  // With nothing in flight it is armed when something is sent: not now, when a job is to be begun.
  if (pipeline_.pending() > 0)
    arm_locked();
  if (pipeline_.has_waiting() && !writing_)
    signal_library_locked();
}

bool Link::receive(int fd, InputBuffer& input, int flags, bool& closed_by_peer) {
  char* into = input.reserve(16384);
  const ssize_t count = ::recv(fd, into, input.room(), flags);
  if (count > 0) {
    input.commit(static_cast<std::size_t>(count));
    return true;
  }
  if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
    closed_by_peer = true;
  return false;
}

void Link::cancel(detail::Call& call) {
  const bool waiting = redirector_ != nullptr ? redirector_->withdraw(call) : withdraw(call);
  if (call.win()) {
    if (waiting && !call.resent) {
      call.fail(Error(Errc::cancelled, "withdrawn before it was carried out", Repeat::safe));
    } else {
      counters_.outcomes_unknown.fetch_add(1, std::memory_order_relaxed);
      call.fail(Error(Errc::outcome_unknown, "cancelled after it was written", call.repeat));
    }
  }
  if (waiting)
    call.release();
}

void Link::when_ready(detail::CallOf<void>* waiter) {
  {
    const std::lock_guard lock(mutex_);
    if (!closing_ && over_bound_locked()) {
      ready_waiters_.push_back(waiter);
      if (state_ == State::live && !armed_ && reader_ == Reader::none)
        arm_locked();
      return;
    }
  }
  if (waiter->win()) {
    waiter->store({});
    waiter->publish();
  }
  waiter->release();
}

void Link::make_room_locked() {
  if (over_bound_locked() && !closing_)
    return;
  if (waiting_for_room_ > 0 &&
      (closing_ || pipeline_.pending() < settings_.max_in_flight - settings_.max_in_flight / 4)) {
    room_.notify_all();
  }
  if (ready_waiters_.empty())
    return;
  std::vector<detail::CallOf<void>*> waiters = std::exchange(ready_waiters_, {});
  mutex_.unlock();
  for (detail::CallOf<void>* waiter : waiters) {
    if (waiter->win()) {
      waiter->store({});
      waiter->publish();
    }
    waiter->release();
  }
  mutex_.lock();
}

/// Whoever waits for room is told from elsewhere: the caller may hold a lock of its own.
void Link::make_room_soon() {
  boost::asio::post(io_, [self = shared_from_this()] {
    const std::lock_guard guard(self->mutex_);
    self->make_room_locked();
  });
}

void Link::fail_all(CallQueue& calls, const Error& why, bool written) {
  while (detail::Call* call = calls.pop()) {
    if (call->win()) {
      if (written || call->resent)
        counters_.outcomes_unknown.fetch_add(1, std::memory_order_relaxed);
      call->fail(unanswered(*call, written, why));
    }
    call->release();
  }
}

void Link::close(const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_)
      return;
    closing_ = true;
    close_error_ = why;
    if (fd_ >= 0)
      ::shutdown(fd_, SHUT_RDWR);
    room_.notify_all();
    first_.notify_all();
    make_room_locked();
  }
  boost::asio::post(io_, [self = shared_from_this()] { self->tear_down_if_possible(); });
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
