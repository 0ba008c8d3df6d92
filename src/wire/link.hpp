// One connection with its pipeline, under a thin Asio loop.
//
// Who reads: the library's thread, or, on a connection that has nothing but the caller's own request in flight, the
// caller itself (`drive`), which saves two thread switches a round trip; on one that parks, a thread that has nothing to do
// but to wait for its answer (`attend`). Who writes: a caller whose request finds an idle connection, else the library's
// thread, which thereby sends everything that gathered meanwhile in one write.
//
// The socket is not in Asio's epoll itself but in a small epoll of its own (the gate), which Asio watches. So it can be
// taken out of the library thread's sight with one system call while a caller drives.
#pragma once

#include <atomic>
#include <bitset>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/detail/call.hpp"
#include "keyspace/slot.hpp"
#include "resp/scanner.hpp"
#include "result/late_wakes.hpp"
#include "wire/boot.hpp"
#include "wire/input_buffer.hpp"
#include "wire/pipeline.hpp"
#include "wire/slot_map.hpp"
#include "wire/url.hpp"

namespace echomq {
inline namespace v1 {
namespace wire {

/// Counters of a client, written by all its links.
struct Counters {
  std::atomic<std::uint64_t> commands{0}, replies{0}, pushes{0}, bytes_out{0}, bytes_in{0}, writes{0}, reconnects{0},
      script_calls{0}, script_loads{0}, scripts_resent{0}, calls_resent{0}, outcomes_unknown{0}, overloads{0},
      protocol_errors{0}, unblocked_errors{0}, wakes{0}, id_collisions{0}, connections{0}, redirects{0},
      map_refreshes{0};
};

struct LinkSettings {
  Endpoint endpoint;
  BootSettings boot;
  std::chrono::milliseconds connect_timeout{3000};
  std::chrono::milliseconds heartbeat{5000};
  std::chrono::milliseconds backoff_initial{50};
  std::chrono::milliseconds backoff_max{500};
  std::chrono::milliseconds resend_window{15000};
  std::size_t max_in_flight = 65536;
  std::size_t max_in_flight_bytes = std::size_t{256} << 20;
  Overflow overflow = Overflow::block;
  /// A connection that parks in BLPOP has no heartbeat while it does: the parked call's deadline judges it.
  bool parks = false;
  /// Out-of-band frames are expected; on RESP2 every array is one.
  bool subscribes = false;
  /// It lives as long as its client: it becomes the `source` of its calls, and whoever waits for one may read it and
  /// withdraw the call. Of any other connection the library's thread reads everything, and calls keep the source they have.
  bool lasts = false;
  /// Looked after at each tick (20 ms while calls are pending, 100 ms else); lives as long as the client. May be null.
  detail::LateWakes* late_wakes = nullptr;
};

class Link;

/// Decides about replies that mean "send it again" (NOSCRIPT). Called with the link's lock held but for `refuses`.
class Repairer {
 public:
  /// Whether this reply refuses the call without an effect, so that it may be sent again after a repair.
  [[nodiscard]] virtual bool refuses(const detail::Call& call, const resp::View& reply) const noexcept = 0;
  /// Puts into `again` what to send: repairs first, then the refused calls in order. Calls that cannot be repaired
  /// are moved to `given_up` with the error to fail them with.
  virtual void repair(CallQueue& refused, CallQueue& again, CallQueue& given_up, Error& why) = 0;
  /// The connection is gone, and with it what was known about the server's script cache.
  virtual void connection_lost() = 0;

 protected:
  ~Repairer() = default;
};

/// Takes what one node of a cluster refused because another serves the slot. Called without the link's lock, by whoever
/// reads.
class Redirector {
 public:
  /// Whether this error reply sends its call elsewhere, or back later; `moves` learns where to.
  [[nodiscard]] virtual detail::Call::Refusal refusal(const Link& from, std::string_view error_text,
                                                      std::vector<SlotMove>& moves) = 0;
  /// What `from` refused so, in order, with its references.
  virtual void redirect(Link& from, CallQueue& calls, const std::vector<SlotMove>& moves) = 0;
  /// Takes out a call that is not written where it is now: held, or waiting on whichever connection. False when it is not
  /// found there; else its reference goes to the caller. From any thread, without a lock.
  [[nodiscard]] virtual bool withdraw(detail::Call& call) = 0;

 protected:
  ~Redirector() = default;
};

/// Told about the life of a link, on the library's thread, without the link's lock.
class LinkObserver {
 public:
  virtual void link_live(std::int64_t connection_id) = 0;
  virtual void link_lost(const Error& why) = 0;
  /// An out-of-band frame. May be called on a driving thread.
  virtual void link_push(const resp::View& frame) = 0;

 protected:
  ~LinkObserver() = default;
};

class Link final : public detail::Source, public std::enable_shared_from_this<Link> {
 public:
  using TimePoint = detail::Clock::time_point;
  using LogFunction = std::function<void(LogLevel, std::string_view, std::string_view)>;

  Link(boost::asio::io_context& io, LinkSettings settings, Counters& counters, LogFunction log, Repairer* repairer,
       LinkObserver* observer, Redirector* redirector = nullptr);
  ~Link();

  /// Begins to connect, and keeps connected from then on.
  void start();
  /// Waits for the first connection: nothing, or why it failed.
  [[nodiscard]] Result<void> wait_live(TimePoint until);

  /// Queues a call and takes over its reference; writes it at once on an idle connection. At the in-flight bound it
  /// blocks or fails the call, by `settings.overflow`; `may_block` false refuses in any case.
  void submit(detail::Call* call, bool may_block);
  /// Queues calls that belong together, past the bound, and writes them as one on an idle connection. They may have been
  /// handed out before and keep the `source` they have.
  void submit(CallQueue&& calls);
  /// As `submit`, but whatever is not accepted stays with the caller: `full` at the bound when calls may block there.
  enum class Taken : std::uint8_t { accepted, full, overloaded, closed };
  [[nodiscard]] Taken try_submit(detail::Call* call);
  /// What `try_submit` would say if so much more were pending.
  [[nodiscard]] Taken taken_beside(std::size_t calls, std::size_t bytes) const;
  /// Waits for room below the bound.
  void wait_for_room(TimePoint until);
  /// Queues a call of the library's own, past the bound.
  void submit_internal(detail::Call* call);
  /// As `submit_internal`; false when the link is closed, and the call stays with the caller.
  [[nodiscard]] bool try_submit_internal(detail::Call* call);

  // For a topology that moves calls between links. Their `source` stays the link that had them first.

  /// Queues calls in order, past the bound.
  void take_over(CallQueue&& calls);
  /// Takes out the calls not written yet for which `takes` says so.
  void extract_waiting(const std::function<bool(const detail::Call&)>& takes, CallQueue& into);
  /// Takes a call out that is not written yet; false when it is not waiting here. Its reference goes to the caller.
  [[nodiscard]] bool withdraw(detail::Call& call);
  using Slots = std::bitset<keyspace::kSlots>;
  /// The slots of all calls not answered yet.
  void add_pending_slots(Slots& slots) const;
  [[nodiscard]] const Endpoint& endpoint() const noexcept { return settings_.endpoint; }

  bool drive(bool (*done)(void*), void* argument, TimePoint until) override;
  void leave_to_library() noexcept override;
  void cancel(detail::Call& call) override;
  /// For a connection that parks: reads it on this thread in the library's place, until something has come or the eventfd
  /// `bell` is readable. Returns at once when nothing is awaited; waits when it is not this thread's to read yet.
  void attend(int bell);

  /// Answers (once) when there is room below the bound; takes over the reference.
  void when_ready(detail::CallOf<void>* waiter);

  /// Ends everything with `why`; nothing is accepted any more. From any thread; the library's thread finishes it.
  void close(const Error& why);

  [[nodiscard]] std::int64_t connection_id() const;
  [[nodiscard]] int protocol() const;
  [[nodiscard]] std::size_t pending() const;
  [[nodiscard]] bool live() const;
  [[nodiscard]] bool closed() const;

 private:
  enum class State : std::uint8_t { idle, connecting, booting, live, backing_off, closed };
  enum class Reader : std::uint8_t { none, library, caller };
  using Lock = std::unique_lock<std::mutex>;

  // link.cpp: the pipeline's side. Functions that take a Lock want it held and give it back held.
  void flush(Lock& lock, bool keep_going);
  void wake_library();
  void signal_library_locked();
  void watch_locked(std::uint32_t events);
  void arm_locked();
  void disarm_locked();
  void make_room_locked();
  void make_room_soon();
  [[nodiscard]] bool over_bound_locked(std::size_t more_calls = 0, std::size_t more_bytes = 0) const;
  void wait_for_room_locked(Lock& lock, TimePoint until);
  void enqueue_locked(Lock& lock, detail::Call* call);
  void send_soon_locked(Lock& lock, bool idle);
  void claim_locked(detail::Call& call) noexcept {
    if (settings_.lasts)
      call.source = this;
  }
  void fail_all(CallQueue& calls, const Error& why, bool written);
  [[nodiscard]] static bool receive(int fd, InputBuffer& input, int flags, bool& closed_by_peer);

  // link_input.cpp: replies.
  [[nodiscard]] bool process_input();
  /// Calls to be sent again, and where to.
  struct Again {
    CallQueue refused;
    CallQueue moved;
    std::vector<SlotMove> moves;
  };
  void dispatch(detail::Call* call, const resp::View& reply, bool is_last, Again& again);
  [[nodiscard]] bool refused(detail::Call* call, const resp::View& reply, bool is_last, Again& again);
  void repair(CallQueue& refused);
  void take_boot_reply(const resp::View& reply);
  void protocol_error(const std::string& why);

  // link_io.cpp: the library's thread.
  void connect();
  void resolved(const std::vector<boost::asio::ip::tcp::endpoint>& endpoints, std::size_t index);
  void connected(int fd);
  void connect_failed(const std::string& why);
  void boot_failed(const Error& why, bool final);
  void watch_gate();
  void on_gate();
  void read_available();
  void break_locked(std::string why);
  void tear_down_if_possible();
  void back_off(const Error& why);
  void schedule_tick();
  void tick();
  void expire_calls(TimePoint now);
  void judge_connection(TimePoint now);

  boost::asio::io_context& io_;
  const LinkSettings settings_;
  Counters& counters_;
  const LogFunction log_;
  Repairer* const repairer_;
  LinkObserver* const observer_;
  Redirector* const redirector_;

  mutable std::mutex mutex_;
  std::condition_variable room_;   // for callers at the bound
  std::condition_variable first_;  // for wait_live
  // All of these are guarded by mutex_.
  State state_ = State::idle;
  Reader reader_ = Reader::none;
  bool writing_ = false;       // somebody is inside send(); out_ is theirs
  bool armed_ = false;         // the gate watches the socket for input
  bool want_write_ = false;    // the socket's buffer is full
  bool wake_pending_ = false;  // the event of the gate is set
  bool broken_ = false;        // to be torn down as soon as nobody is inside
  bool closing_ = false;
  bool caller_drove_ = false;  // since the last tick
  int bell_ = -1;              // of the thread inside attend()
  std::uint32_t waiting_for_room_ = 0;
  Pipeline pipeline_;
  std::string out_;
  std::size_t out_sent_ = 0;
  std::uint64_t sent_total_ = 0;
  std::string break_reason_;
  Error close_error_;
  Error last_error_;  // why there is no connection
  bool last_error_final_ = false;
  bool first_attempt_over_ = false;
  std::int64_t connection_id_ = 0;
  int protocol_ = 3;
  TimePoint next_deadline_ = TimePoint::max();
  TimePoint last_input_{};
  TimePoint last_tick_{};
  bool ping_in_flight_ = false;
  std::vector<detail::CallOf<void>*> ready_waiters_;

  // Set while no connection is open, constant while one is.
  int fd_ = -1;
  int gate_fd_ = -1;
  int event_fd_ = -1;

  // Owned by whoever is the reader.
  struct Frame {
    std::size_t offset;
    std::size_t size;
    detail::Call* call;
    bool is_last;
    bool is_push;
  };
  InputBuffer input_;
  resp::Scanner scanner_;
  std::vector<Frame> frames_;

  // Owned by the library's thread.
  std::optional<boost::asio::posix::stream_descriptor> gate_;
  boost::asio::steady_timer timer_;  // connecting and backing off
  boost::asio::steady_timer tick_timer_;
  boost::asio::ip::tcp::resolver resolver_;
  std::optional<boost::asio::ip::tcp::socket> tcp_;
  std::optional<boost::asio::local::stream_protocol::socket> local_;
  std::uint64_t attempt_ = 0;
  std::optional<Boot> boot_;
  std::chrono::milliseconds backoff_{0};
  bool was_live_ = false;
  std::minstd_rand jitter_;
};

}  // namespace wire
}  // namespace v1
}  // namespace echomq
