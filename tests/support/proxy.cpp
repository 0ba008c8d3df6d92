// The proxy's thread: one poll loop over the listener, a wake-up descriptor and two sockets a connection.
//
// All state belongs to that thread; other threads hand it functions and wait until they ran.
#include "proxy.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "proxy_address.hpp"
#include "proxy_connection.hpp"

namespace echomq::test {

using Clock = std::chrono::steady_clock;

class Proxy::Loop {
 public:
  Loop(std::string_view upstream, ProxyOptions options) : upstream_(parse_upstream(upstream)) {
    rules_.options = std::move(options);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) {
      throw_errno("eventfd");
    }
    try {
      listen();
    } catch (...) {
      ::close(wake_);
      throw;
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    call([this] { stopping_ = true; });
    thread_.join();
    ::close(listener_);
    ::close(wake_);
    if (!path_.empty()) {
      (void)::unlink(path_.c_str());
      (void)::rmdir(path_.substr(0, path_.rfind('/')).c_str());
    }
  }

  /// Runs `action` on the proxy's thread and waits for it.
  template <typename Action>
  void call(Action action) {
    if (std::this_thread::get_id() == thread_.get_id()) {  // from the tap
      action();
      return;
    }
    bool done = false;
    std::unique_lock lock(mutex_);
    actions_.push_back([&] {
      action();
      const std::lock_guard guard(mutex_);
      done = true;
      acted_.notify_all();
    });
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
    acted_.wait(lock, [&] { return done; });
  }

  // On the proxy's thread.

  [[nodiscard]] ProxyRules& rules() noexcept { return rules_; }

  std::size_t cut_all() {
    std::size_t count = 0;
    for (ProxyConnection& connection : connections_) {
      count += connection.has_client() ? 1 : 0;
      connection.cut();
    }
    return count;
  }

  void arm(Direction direction, ProxyFault::Kind kind, std::uint64_t bytes) {
    const auto spent = std::make_shared<bool>(false);
    for (ProxyConnection& connection : connections_) {
      connection.arm(direction, {.kind = kind, .at = connection.passed(direction) + bytes, .spent = spent});
    }
  }
  void arm_next(Direction direction, ProxyFault::Kind kind, std::uint64_t bytes) {
    next_faults_[direction] = ProxyFault{.kind = kind, .at = bytes, .spent = std::make_shared<bool>(false)};
  }

  void heal() {
    rules_.held = {};
    rules_.only.reset();
    rules_.refuse = false;
    rules_.piece = 0;
    rules_.delay = {};
    next_faults_ = {};
    for (ProxyConnection& connection : connections_) {
      connection.disarm();
    }
  }

  [[nodiscard]] ProxyCounters counters() const {
    ProxyCounters out = rules_.counters;
    for (const ProxyConnection& connection : connections_) {
      ++(connection.left() ? out.draining : out.open);
    }
    return out;
  }

  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  [[noreturn]] static void throw_errno(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  void listen() {
    ProxyAddress address;
    if (rules_.options.listen == ProxyListen::unix_socket) {
      char folder[] = "/tmp/echomq-proxy-XXXXXX";
      if (::mkdtemp(folder) == nullptr) {
        throw_errno("mkdtemp");
      }
      path_ = std::string(folder) + "/socket";
      address = unix_address(path_);
      url_ = "unix://" + path_;
    } else {
      address = tcp_address("127.0.0.1", 0);
    }
    listener_ = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener_ < 0) {
      throw_errno("socket");
    }
    if (::bind(listener_, address.get(), address.size) != 0 || ::listen(listener_, 512) != 0) {
      throw_errno("listen");
    }
    if (path_.empty()) {
      sockaddr_in bound{};
      socklen_t size = sizeof bound;
      if (::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
        throw_errno("getsockname");
      }
      port_ = ntohs(bound.sin_port);
      url_ = "valkey://127.0.0.1:" + std::to_string(port_);
    }
  }

  void run() {
    std::vector<pollfd> polled;
    while (!stopping_) {
      const int timeout = prepare(polled);
      if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) {
        return;
      }
      if ((polled[0].revents & POLLIN) != 0) {
        act();
      }
      if ((polled[1].revents & POLLIN) != 0) {
        accept_all();
      }
      std::size_t at = 2;
      // Connections accepted in this round are at the end, past what was polled.
      for (auto it = connections_.begin(); it != connections_.end() && at + 1 < polled.size(); ++it, at += 2) {
        it->serve(polled[at].revents, polled[at + 1].revents);
      }
      const auto now = Clock::now();
      for (ProxyConnection& connection : connections_) {
        connection.pass(Direction::to_server, now);
        connection.pass(Direction::to_client, now);
      }
      for (auto it = connections_.begin(); it != connections_.end();) {
        if (!it->over()) {
          ++it;
          continue;
        }
        if (rules_.options.on_end) {
          rules_.options.on_end(it->id());
        }
        it = connections_.erase(it);
      }
    }
    connections_.clear();
  }

  // Fills the poll set; gives the timeout in ms.
  int prepare(std::vector<pollfd>& polled) {
    polled.clear();
    polled.push_back({.fd = wake_, .events = POLLIN, .revents = 0});
    polled.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
    auto next = Clock::time_point::max();
    for (const ProxyConnection& connection : connections_) {
      const auto interest = connection.interest();
      polled.push_back({.fd = interest.client, .events = interest.client_events, .revents = 0});
      polled.push_back({.fd = interest.server, .events = interest.server_events, .revents = 0});
      next = std::min(next, connection.next_due());
    }
    if (next == Clock::time_point::max()) {
      return -1;
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    // Below a millisecond it spins: gaps and delays are short, and tests are the only users.
    return static_cast<int>(wait <= 1 ? 0 : wait - 1);
  }

  void act() {
    std::uint64_t count = 0;
    (void)!::read(wake_, &count, sizeof count);
    std::vector<std::function<void()>> actions;
    {
      const std::lock_guard guard(mutex_);
      actions.swap(actions_);
    }
    for (const auto& action : actions) {
      action();
    }
  }

  void accept_all() {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (client < 0) {
        return;
      }
      if (rules_.refuse) {
        ++rules_.counters.refused;
        const linger hard{.l_onoff = 1, .l_linger = 0};  // a reset, not an end
        (void)::setsockopt(client, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        ::close(client);
        continue;
      }
      ++rules_.counters.accepted;
      const int server = ::socket(upstream_.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      for (const int fd : {client, server}) {
        const int on = 1;  // fails on a Unix socket, which has no such thing
        (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      }
      const bool connected = ::connect(server, upstream_.get(), upstream_.size) == 0;
      if (!connected && errno != EINPROGRESS) {
        ++rules_.counters.unreachable;
        ::close(client);
        if (server >= 0) {
          ::close(server);
        }
        continue;
      }
      ProxyConnection& connection =
          connections_.emplace_back(rules_, rules_.counters.accepted, client, server, !connected);
      for (const Direction direction : {Direction::to_server, Direction::to_client}) {
        if (auto fault = std::exchange(next_faults_[direction], std::nullopt)) {
          connection.arm(direction, *std::move(fault));
        }
      }
    }
  }

  ProxyAddress upstream_;
  ProxyRules rules_;
  std::string url_;
  std::string path_;
  std::uint16_t port_ = 0;
  int wake_ = -1;
  int listener_ = -1;
  bool stopping_ = false;
  std::list<ProxyConnection> connections_;
  Both<std::optional<ProxyFault>> next_faults_;

  std::mutex mutex_;
  std::condition_variable acted_;
  std::vector<std::function<void()>> actions_;
  std::thread thread_;
};

Proxy::Proxy(std::string_view upstream, ProxyOptions options)
    : loop_(std::make_unique<Loop>(upstream, std::move(options))) {}
Proxy::~Proxy() = default;

const std::string& Proxy::url() const noexcept { return loop_->url(); }
std::uint16_t Proxy::port() const noexcept { return loop_->port(); }

void Proxy::hold() {
  loop_->call([&] {
    loop_->rules().held = {{true, true}};
    loop_->rules().only.reset();
  });
}
void Proxy::hold(Direction direction) {
  loop_->call([&] {
    loop_->rules().held[direction] = true;
    loop_->rules().only.reset();
  });
}
void Proxy::hold(Direction direction, std::uint64_t connection) {
  loop_->call([&] {
    loop_->rules().held[direction] = true;
    loop_->rules().only = connection;
  });
}
void Proxy::release() {
  loop_->call([&] {
    loop_->rules().held = {{false, false}};
    loop_->rules().only.reset();
  });
}
std::size_t Proxy::cut() {
  std::size_t count = 0;
  loop_->call([&] { count = loop_->cut_all(); });
  return count;
}
void Proxy::refuse_new(bool refuse) {
  loop_->call([&] { loop_->rules().refuse = refuse; });
}
void Proxy::split(std::size_t piece, std::chrono::microseconds gap) {
  loop_->call([&] {
    loop_->rules().piece = piece;
    loop_->rules().gap = gap;
  });
}
void Proxy::delay(std::chrono::microseconds time) {
  loop_->call([&] { loop_->rules().delay = time; });
}
void Proxy::cut_after(Direction direction, std::uint64_t bytes) {
  loop_->call([&] { loop_->arm(direction, ProxyFault::Kind::cut, bytes); });
}
void Proxy::cut_next_after(Direction direction, std::uint64_t bytes) {
  loop_->call([&] { loop_->arm_next(direction, ProxyFault::Kind::cut, bytes); });
}
void Proxy::swallow_after(Direction direction, std::uint64_t bytes) {
  loop_->call([&] { loop_->arm(direction, ProxyFault::Kind::swallow, bytes); });
}
void Proxy::swallow_next_after(Direction direction, std::uint64_t bytes) {
  loop_->call([&] { loop_->arm_next(direction, ProxyFault::Kind::swallow, bytes); });
}
void Proxy::heal() {
  loop_->call([&] { loop_->heal(); });
}

ProxyCounters Proxy::counters() const {
  ProxyCounters out;
  loop_->call([&] { out = loop_->counters(); });
  return out;
}

bool Proxy::wait_drained(std::chrono::milliseconds limit) const {
  const auto until = Clock::now() + limit;
  while (counters().draining != 0) {
    if (Clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
  return true;
}

bool Proxy::wait_struck(std::uint64_t count, std::chrono::milliseconds limit) const {
  const auto until = Clock::now() + limit;
  for (;;) {
    const ProxyCounters now = counters();
    if (now.cut + now.swallowing >= count) {
      return true;
    }
    if (Clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

}  // namespace echomq::test
