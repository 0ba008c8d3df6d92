// The library thread's side of a link: connecting, booting, the gate, timers, teardown.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "wire/link.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr milliseconds kBusyTick{20};
constexpr milliseconds kIdleTick{100};
constexpr milliseconds kParkedGrace{2000};
constexpr milliseconds kStoppedAfter{1000};

void set_option(int fd, int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof value); }

/// The library's thread and a driving caller both use the socket: readiness is asked by flags, a caller blocks for at
/// most the receive time-out.
void prepare_socket(int fd, bool tcp) {
  const int flags = ::fcntl(fd, F_GETFL, 0);
  (void)::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  timeval slice{};
  slice.tv_usec = 50000;
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
  if (!tcp)
    return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

void Link::start() {
  asio::post(io_, [self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      if (self->closing_ || self->state_ != State::idle)
        return;
      self->gate_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
      self->event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = self->event_fd_;
      ::epoll_ctl(self->gate_fd_, EPOLL_CTL_ADD, self->event_fd_, &event);
    }
    self->gate_.emplace(self->io_, self->gate_fd_);
    self->backoff_ = self->settings_.backoff_initial;
    self->watch_gate();
    self->schedule_tick();
    self->connect();
  });
}

void Link::connect() {
  ++attempt_;
  {
    const std::lock_guard lock(mutex_);
    if (closing_)
      return;
    state_ = State::connecting;
  }
  timer_.expires_after(settings_.connect_timeout);
  timer_.async_wait([self = shared_from_this(), attempt = attempt_](const boost::system::error_code& error) {
    if (error || attempt != self->attempt_)
      return;
    bool still = false;
    {
      const std::lock_guard lock(self->mutex_);
      still = self->state_ == State::connecting || self->state_ == State::booting;
    }
    if (still) {
      self->connect_failed("no answer within " + std::to_string(self->settings_.connect_timeout.count()) + "ms");
    }
  });

  if (!settings_.endpoint.socket_path.empty()) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
      return connect_failed(strerrordesc_np(errno));
    local_.emplace(io_, asio::local::stream_protocol(), fd);
    local_->async_connect(asio::local::stream_protocol::endpoint(settings_.endpoint.socket_path),
                          [self = shared_from_this(), attempt = attempt_](const boost::system::error_code& error) {
                            if (attempt != self->attempt_ || !self->local_)
                              return;
                            if (error)
                              return self->connect_failed(error.message());
                            const int connected_fd = self->local_->release();
                            self->local_.reset();
                            self->connected(connected_fd);
                          });
    return;
  }
  resolver_.async_resolve(
      settings_.endpoint.host, std::to_string(settings_.endpoint.port),
      [self = shared_from_this(), attempt = attempt_](const boost::system::error_code& error,
                                                      const asio::ip::tcp::resolver::results_type& results) {
        if (attempt != self->attempt_)
          return;
        if (error)
          return self->connect_failed(self->settings_.endpoint.host + ": " + error.message());
        std::vector<asio::ip::tcp::endpoint> endpoints;
        for (const auto& entry : results)
          endpoints.push_back(entry.endpoint());
        self->resolved(endpoints, 0);
      });
}

void Link::resolved(const std::vector<asio::ip::tcp::endpoint>& endpoints, std::size_t index) {
  if (index >= endpoints.size())
    return connect_failed("no address");
  const int family = endpoints[index].protocol().family();
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return connect_failed(strerrordesc_np(errno));
  tcp_.emplace(io_, endpoints[index].protocol(), fd);
  tcp_->async_connect(endpoints[index], [self = shared_from_this(), attempt = attempt_, endpoints,
                                         index](const boost::system::error_code& error) {
    if (attempt != self->attempt_ || !self->tcp_)
      return;
    if (error) {
      self->tcp_.reset();
      if (index + 1 < endpoints.size())
        return self->resolved(endpoints, index + 1);
      return self->connect_failed(error.message());
    }
    const int connected_fd = self->tcp_->release();
    self->tcp_.reset();
    self->connected(connected_fd);
  });
}

void Link::connected(int fd) {
  prepare_socket(fd, settings_.endpoint.socket_path.empty());
  Lock lock(mutex_);
  if (closing_) {
    ::close(fd);
    return;
  }
  fd_ = fd;
  state_ = State::booting;
  reader_ = Reader::library;  // until live
  input_.clear();
  scanner_.reset();
  sent_total_ = 0;
  out_.clear();
  out_sent_ = 0;
  want_write_ = false;
  armed_ = true;
  ping_in_flight_ = false;
  last_input_ = detail::Clock::now();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(gate_fd_, EPOLL_CTL_ADD, fd, &event);
  boot_.emplace(settings_.boot);
  const std::string first = boot_->next();
  // The first bytes of a fresh connection always fit its buffer.
  if (::send(fd, first.data(), first.size(), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(first.size())) {
    break_locked("write failed at boot");
    lock.unlock();
    tear_down_if_possible();
  }
}

void Link::connect_failed(const std::string& why) {
  ++attempt_;
  tcp_.reset();
  local_.reset();
  const Error error(Errc::unreachable, settings_.endpoint.to_string() + ": " + why, Repeat::safe);
  Lock lock(mutex_);
  if (fd_ >= 0) {  // failed while booting
    reader_ = Reader::none;
    ::epoll_ctl(gate_fd_, EPOLL_CTL_DEL, fd_, nullptr);
    ::close(fd_);
    fd_ = -1;
    armed_ = false;
  }
  last_error_ = error;
  last_error_final_ = false;
  first_attempt_over_ = true;
  first_.notify_all();
  lock.unlock();
  back_off(error);
}

void Link::boot_failed(const Error& why, bool final) {
  ++attempt_;
  CallQueue refused;
  Lock lock(mutex_);
  reader_ = Reader::none;
  if (fd_ >= 0) {
    ::epoll_ctl(gate_fd_, EPOLL_CTL_DEL, fd_, nullptr);
    ::close(fd_);
    fd_ = -1;
    armed_ = false;
  }
  last_error_ = why;
  last_error_final_ = final;
  first_attempt_over_ = true;
  first_.notify_all();
  // A refusal that waiting cannot cure is told to who waits; the link goes on trying, slowly.
  if (final) {
    pipeline_.take_all(refused);
    make_room_locked();
  }
  lock.unlock();
  fail_all(refused, why, false);
  back_off(why);
}

void Link::back_off(const Error& why) {
  bool final = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      asio::post(io_, [self = shared_from_this()] { self->tear_down_if_possible(); });
      return;
    }
    state_ = State::backing_off;
    final = last_error_final_;
  }
  log_(LogLevel::warning, "connect_failed", why.message());
  if (final)
    backoff_ = settings_.backoff_max;
  std::uniform_int_distribution<std::int64_t> extra(1, backoff_.count() / 2 + 1);
  timer_.expires_after(backoff_ + milliseconds(extra(jitter_)));
  backoff_ = std::min(backoff_ * 2, settings_.backoff_max);
  timer_.async_wait([self = shared_from_this(), attempt = attempt_](const boost::system::error_code& error) {
    if (!error && attempt == self->attempt_)
      self->connect();
  });
}

void Link::take_boot_reply(const resp::View& reply) {
  switch (boot_->take(reply)) {
    case Boot::Step::more: {
      const std::string next = boot_->next();
      const std::lock_guard lock(mutex_);
      if (::send(fd_, next.data(), next.size(), MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(next.size())) {
        break_locked("write failed at boot");
      }
      return;
    }
    case Boot::Step::failed:
      // The caller sees that the link is no longer booting and stops reading.
      boot_failed(boot_->error(), boot_->final());
      return;
    case Boot::Step::live: break;
  }
  timer_.cancel();
  backoff_ = settings_.backoff_initial;
  const std::int64_t id = boot_->connection_id();
  {
    const std::lock_guard lock(mutex_);
    if (closing_)
      return;  // it was given up: its end is on the way, and whoever observes it may have another one
    counters_.connections.fetch_add(1, std::memory_order_relaxed);
    connection_id_ = id;
    protocol_ = boot_->protocol();
    state_ = State::live;
    if (was_live_)
      counters_.reconnects.fetch_add(1, std::memory_order_relaxed);
    first_attempt_over_ = true;
    first_.notify_all();
  }
  was_live_ = true;
  log_(LogLevel::info, "connected", settings_.endpoint.to_string());
  if (observer_ != nullptr)
    observer_->link_live(id);
}

void Link::watch_gate() {
  gate_->async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (error)
                        return;
                      self->on_gate();
                      if (self->gate_ && self->gate_->is_open())
                        self->watch_gate();
                    });
}

void Link::on_gate() {
  epoll_event events[2];
  const int count = ::epoll_wait(gate_fd_, events, 2, 0);
  bool readable = false;
  bool writable = false;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == event_fd_) {
      std::uint64_t drained = 0;
      (void)!::read(event_fd_, &drained, sizeof drained);
      continue;
    }
    readable = readable || (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
    writable = writable || (events[i].events & EPOLLOUT) != 0;
  }
  {
    Lock lock(mutex_);
    wake_pending_ = false;
    if (writable && want_write_) {
      last_input_ = detail::Clock::now();  // the peer has taken something in: as good a sign of life as an answer
      want_write_ = false;
      armed_ = false;
      if (reader_ != Reader::caller) {
        arm_locked();
      } else {
        watch_locked(0);
      }
    }
    if (state_ == State::live && !writing_ && !want_write_ && !broken_ &&
        (pipeline_.has_waiting() || out_sent_ < out_.size())) {
      flush(lock, true);
    }
  }
  if (readable)
    read_available();
  tear_down_if_possible();
}

void Link::read_available() {
  {
    const std::lock_guard lock(mutex_);
    if (fd_ < 0)
      return;
    if (reader_ == Reader::caller) {
      // A hang-up is reported even to a gate that asks for nothing; the caller sees it too.
      return;
    }
    reader_ = Reader::library;
  }
  bool closed_by_peer = false;
  // A bounded number of reads, so that other links get their turn.
  for (int round = 0; round < 16; ++round) {
    const bool full = receive(fd_, input_, MSG_DONTWAIT, closed_by_peer);
    if (!full)
      break;
    const bool more_expected = input_.room() == 0;
    if (!process_input())
      break;
    Lock lock(mutex_);
    if (fd_ < 0)
      return;  // boot failed
    if (pipeline_.has_waiting() && state_ == State::live && !writing_ && !want_write_ && !broken_)
      flush(lock, true);
    if (!more_expected)
      break;
  }
  const std::lock_guard lock(mutex_);
  if (closed_by_peer)
    break_locked("closed by the server");
  // While booting the library's thread stays the reader, so that no caller drives.
  if (state_ != State::booting)
    reader_ = Reader::none;
}

void Link::break_locked(std::string why) {
  if (broken_)
    return;
  broken_ = true;
  break_reason_ = std::move(why);
  if (fd_ >= 0)
    ::shutdown(fd_, SHUT_RDWR);
  signal_library_locked();
}

void Link::tear_down_if_possible() {
  Lock lock(mutex_);
  if (!broken_ && !closing_)
    return;
  if (state_ == State::closed)
    return;
  if (writing_ || reader_ == Reader::caller)
    return;  // they signal when they leave
  const bool was_booting = state_ == State::booting || state_ == State::connecting;
  const bool had_connection = fd_ >= 0;
  if (had_connection) {
    ::epoll_ctl(gate_fd_, EPOLL_CTL_DEL, fd_, nullptr);
    ::close(fd_);
    fd_ = -1;
  }
  broken_ = false;
  armed_ = false;
  want_write_ = false;
  reader_ = Reader::none;
  ping_in_flight_ = false;
  const Error why(Errc::disconnected, settings_.endpoint.to_string() + ": " + break_reason_, Repeat::safe);
  CallQueue lost;
  const std::size_t resent =
      pipeline_.connection_lost(sent_total_, detail::Clock::now(), settings_.resend_window, lost);
  counters_.calls_resent.fetch_add(resent, std::memory_order_relaxed);
  next_deadline_ = TimePoint::min();  // the window of what is to be sent again may end before any deadline
  out_.clear();
  out_sent_ = 0;
  if (repairer_ != nullptr)
    repairer_->connection_lost();
  if (had_connection && !was_booting)
    counters_.connections.fetch_sub(1, std::memory_order_relaxed);

  if (closing_) {
    state_ = State::closed;
    ++attempt_;
    CallQueue waiting;
    pipeline_.take_all(waiting);
    const Error closed_why = close_error_;
    make_room_locked();
    lock.unlock();
    fail_all(lost, closed_why, true);
    fail_all(waiting, closed_why, false);
    timer_.cancel();
    tick_timer_.cancel();
    resolver_.cancel();
    tcp_.reset();
    local_.reset();
    if (gate_) {
      boost::system::error_code ignored;
      gate_->close(ignored);
      gate_.reset();
      gate_fd_ = -1;
    }
    return;
  }

  last_error_ = why;
  // Before anybody hears of it: what is asked from now on is written when there is a connection again.
  if (!was_booting)
    state_ = State::backing_off;
  make_room_locked();
  lock.unlock();
  fail_all(lost, why, true);
  if (was_booting)
    return connect_failed(why.text);
  log_(LogLevel::warning, "disconnected", why.message());
  if (observer_ != nullptr)
    observer_->link_lost(why);
  ++attempt_;
  // The first attempt after a loss comes almost at once: most losses are a restart or a cut, not an outage.
  std::uniform_int_distribution<std::int64_t> extra(1, backoff_.count() / 2 + 1);
  timer_.expires_after(milliseconds(extra(jitter_)));
  timer_.async_wait([self = shared_from_this(), attempt = attempt_](const boost::system::error_code& error) {
    if (!error && attempt == self->attempt_)
      self->connect();
  });
}

void Link::schedule_tick() {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_)
      return;
    busy = pipeline_.pending() > 0;
  }
  tick_timer_.expires_after(busy ? kBusyTick : kIdleTick);
  tick_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error)
      return;
    self->tick();
    self->schedule_tick();
  });
}

void Link::tick() {
  if (settings_.late_wakes != nullptr)
    settings_.late_wakes->ring();
  const TimePoint now = detail::Clock::now();
  expire_calls(now);
  judge_connection(now);
}

void Link::expire_calls(TimePoint now) {
  CallQueue late;
  std::vector<detail::Call*> late_in_flight;
  Error down;
  bool is_down = false;
  {
    const std::lock_guard lock(mutex_);
    if (now < next_deadline_)
      return;
    next_deadline_ = pipeline_.expire(now, settings_.resend_window, late, [&](detail::Call& call) {
      if (call.settled())
        return;
      call.retain();
      late_in_flight.push_back(&call);
    });
    is_down = state_ != State::live;
    down = last_error_;
    make_room_locked();
  }
  if (!late.empty()) {
    const Error why = is_down && down.code ? Error(Errc::unreachable, down.message(), Repeat::safe)
                                           : Error(Errc::timeout, "not written before its deadline", Repeat::safe);
    fail_all(late, why, false);
  }
  for (detail::Call* call : late_in_flight) {
    if (call->win()) {
      counters_.outcomes_unknown.fetch_add(1, std::memory_order_relaxed);
      call->fail(Error(Errc::outcome_unknown, "no answer before its deadline", call->repeat));
    }
    call->release();
  }
}

void Link::judge_connection(TimePoint now) {
  Lock lock(mutex_);
  // A process that was stopped (or starved) judges nobody by the time it did not live through.
  if (now - std::exchange(last_tick_, now) > kStoppedAfter)
    last_input_ = now;
  if (state_ != State::live || broken_)
    return;
  const bool caller_was_here = std::exchange(caller_drove_, false);
  if (!armed_ && reader_ == Reader::none && (pipeline_.pending() > 0 || !caller_was_here))
    arm_locked();
  const detail::Call* oldest = pipeline_.oldest_in_flight();
  if (oldest != nullptr && oldest->blocking) {
    if (now > oldest->deadline + kParkedGrace) {
      break_locked("a parked call got no answer");
      lock.unlock();
      tear_down_if_possible();
    }
    return;
  }
  if (settings_.heartbeat <= milliseconds::zero())
    return;
  if (oldest != nullptr) {
    const TimePoint since = std::max(last_input_, pipeline_.awaits_since());
    if (now - since > settings_.heartbeat) {
      break_locked("no sign of life within " + std::to_string(settings_.heartbeat.count()) + "ms");
      lock.unlock();
      tear_down_if_possible();
    }
    return;
  }
  if (now - last_input_ < settings_.heartbeat || ping_in_flight_)
    return;
  ping_in_flight_ = true;
  lock.unlock();
  constexpr std::string_view kPing[] = {"PING"};
  auto decode = [](const Answer&) -> Result<void> { return {}; };
  using Ping = BoundCall<void, decltype(decode), true>;
  detail::Call* ping = Ping::make(kPing, decode);
  ping->repeat = Repeat::unsafe;
  submit_internal(ping);
}

}  // namespace wire
}  // namespace v1
}  // namespace echomq
