// The core of an open client.
#include "client/live_core.hpp"

#include <pthread.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "client/fork_guard.hpp"
#include "client/line.hpp"
#include "result/futex.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace client {

using std::chrono::milliseconds;

LiveCore::LiveCore(wire::Url url, ClientOptions options)
    : url_(std::move(url)),
      options_(std::move(options)),
      fork_generation_(client::fork_generation()),
      work_(boost::asio::make_work_guard(io_)),
      callbacks_(options_.executor) {
  if (url_.seeds.empty()) {
    make_standalone();
  } else {
    make_cluster();
  }
  io_thread_ = std::thread([this] {
    detail::mark_library_thread();
    (void)pthread_setname_np(pthread_self(), "echomq-io");
    io_.run();
  });
}

void LiveCore::make_standalone() {
  wire::LinkSettings of_main = link_settings("", url_.endpoint);
  of_main.lasts = true;
  main_ = make_link(std::move(of_main), &executor_, nullptr);
  topology_ = std::make_shared<wire::Standalone>(main_);
  wake_ = std::make_unique<WakeHubs>(false, [this](std::uint32_t) {
    WakeHub::Ways ways;
    ways.park = [this](const std::shared_ptr<WakeHub>& hub) {
      wire::LinkSettings settings = link_settings(":parked", url_.endpoint);
      settings.parks = true;
      return make_link(std::move(settings), nullptr, hub.get());
    };
    ways.beside = [this](const wire::Link&) { return main_; };
    ways.later = [this](milliseconds wait, std::function<void()> function) { after(wait, std::move(function)); };
    ways.push_back = [this](detail::Call* call) { main_->submit_internal(call); };
    return std::make_shared<WakeHub>(std::move(ways), counters_, &callbacks_);
  });
  subscriptions_ = make_subscriptions(
      [this](wire::LinkObserver* observer, const wire::Endpoint* avoided) -> std::shared_ptr<wire::Link> {
        if (avoided != nullptr)
          return nullptr;
        wire::LinkSettings settings = link_settings(":subscriptions", url_.endpoint);
        settings.subscribes = true;
        return make_link(std::move(settings), nullptr, observer);
      });
}

void LiveCore::make_cluster() {
  auto connect = [this](const wire::Endpoint& endpoint, wire::Redirector* redirector, wire::LinkObserver* observer) {
    auto executor = std::make_shared<script::Executor>(counters_);
    wire::LinkSettings settings = link_settings("", endpoint);
    settings.lasts = true;
    return make_link(std::move(settings), executor.get(), observer, redirector, executor);
  };
  cluster_ = std::make_shared<wire::Cluster>(io_, wire::Cluster::Settings{url_.seeds, options_.connect_timeout},
                                             std::move(connect), counters_, log_line(), [this] {
                                               subscriptions_->leave_lost_node();
                                               wake_->look_again();
                                               map_changed();
                                             });
  topology_ = cluster_;
  wake_ = std::make_unique<WakeHubs>(true, [this](std::uint32_t slot) {
    WakeHub::Ways ways;
    ways.park = [this, slot](const std::shared_ptr<WakeHub>& hub) {
      wire::LinkSettings settings = link_settings(":parked", cluster_->owner_of(slot));
      settings.parks = true;
      return make_link(std::move(settings), nullptr, hub.get(), nullptr, hub);
    };
    ways.beside = [this](const wire::Link& parked) { return cluster_->link_to(parked.endpoint()); };
    ways.later = [this](milliseconds wait, std::function<void()> function) { after(wait, std::move(function)); };
    ways.push_back = [this](detail::Call* call) { cluster_->submit_internal(call); };
    ways.misplaced = [this, slot](const wire::Link& parked) { return cluster_->owner_of(slot) != parked.endpoint(); };
    ways.find = [this] { cluster_->want_refresh(); };
    return std::make_shared<WakeHub>(std::move(ways), counters_, &callbacks_);
  });
  // A publication reaches the subscribers of every node: one connection to any of them hears all.
  subscriptions_ = make_subscriptions(
      [this](wire::LinkObserver* observer, const wire::Endpoint* avoided) -> std::shared_ptr<wire::Link> {
        // A node that others still reach lost this one connection only.
        if (avoided != nullptr && cluster_->is_connected(*avoided))
          return nullptr;
        const auto node = cluster_->live_node(avoided);
        if (node == nullptr && avoided != nullptr)
          return nullptr;
        wire::LinkSettings settings =
            link_settings(":subscriptions", node != nullptr ? *node : cluster_->owner_of(detail::Call::kAnySlot));
        settings.subscribes = true;
        return make_link(std::move(settings), nullptr, observer);
      });
}

std::shared_ptr<SubscriptionHub> LiveCore::make_subscriptions(SubscriptionHub::MakeLink make_link) {
  SubscriptionHub::Ways ways;
  ways.make_link = std::move(make_link);
  ways.later = [this](milliseconds wait, std::function<void()> function) {
    if (!closed())
      after(wait, std::move(function));
  };
  ways.refused = [this](std::string_view channel, const Error& why) {
    const std::string text = why.message();
    const LogField fields[] = {{"channel", channel}, {"text", text}};
    log(LogLevel::warning, "subscription_refused", fields);
  };
  return std::make_shared<SubscriptionHub>(std::move(ways), &callbacks_, options_.deadline, options_.heartbeat);
}

wire::LinkSettings LiveCore::link_settings(std::string_view role, const wire::Endpoint& endpoint) const {
  wire::LinkSettings settings;
  settings.endpoint = endpoint;
  settings.boot.in_cluster = !url_.seeds.empty();
  settings.boot.user = url_.user.empty() ? options_.user : url_.user;
  settings.boot.password = url_.password.empty() ? options_.password : url_.password;
  settings.boot.database = url_.database.value_or(options_.database);
  settings.boot.client_name = (options_.name.empty() ? "echomq" : options_.name) + std::string(role);
  settings.boot.wire_version = options_.wire_version;
  settings.boot.accepted_versions = options_.accepted_versions;
  settings.connect_timeout = options_.connect_timeout;
  settings.heartbeat = options_.heartbeat;
  settings.backoff_initial = options_.backoff_initial;
  settings.backoff_max = options_.backoff_max;
  settings.resend_window = options_.resend_window;
  settings.max_in_flight = options_.max_in_flight;
  settings.max_in_flight_bytes = options_.max_in_flight_bytes;
  settings.overflow = options_.overflow;
  settings.late_wakes = late_wakes_.get();
  return settings;
}

wire::Link::LogFunction LiveCore::log_line(std::shared_ptr<void> keeps) {
  return [this, keeps = std::move(keeps)](LogLevel level, std::string_view event, std::string_view text) {
    const LogField fields[] = {{"text", text}};
    log(level, event, fields);
  };
}

std::shared_ptr<wire::Link> LiveCore::make_link(wire::LinkSettings settings, wire::Repairer* repairer,
                                                wire::LinkObserver* observer, wire::Redirector* redirector,
                                                std::shared_ptr<void> keeps) {
  return std::make_shared<wire::Link>(io_, std::move(settings), counters_, log_line(std::move(keeps)), repairer,
                                      observer, redirector);
}

Result<void> LiveCore::connect() {
  if (cluster_)
    return cluster_->open();
  main_->start();
  return main_->wait_live(detail::Clock::now() + options_.connect_timeout + milliseconds(200));
}

std::shared_ptr<wire::Link> LiveCore::open_link(std::string_view role, bool subscribes,
                                                std::shared_ptr<wire::LinkObserver> observer,
                                                const wire::Endpoint& node) {
  wire::LinkSettings settings = link_settings(role, node);
  settings.subscribes = subscribes;
  std::shared_ptr<wire::Link> link = make_link(std::move(settings), nullptr, observer.get());
  const std::lock_guard lock(extra_mutex_);
  // A closed link that only this list and its observer hold has no handler pending: nobody calls the observer any more.
  std::erase_if(extra_links_, [](const ExtraLink& one) {
    return one.link->closed() && one.observer.use_count() == 1 && one.link.use_count() <= 2;
  });
  extra_links_.push_back({std::move(observer), link});
  if (closed())
    link->close(Error(Errc::client_closed, "the client is closed", Repeat::safe));
  return link;
}

wire::Endpoint LiveCore::node_of(std::uint32_t slot) const {
  return cluster_ ? cluster_->owner_of(slot) : url_.endpoint;
}

std::optional<wire::Endpoint> LiveCore::better_node(const wire::Link& link, std::uint32_t slot) const {
  if (!cluster_)
    return std::nullopt;
  if (slot != detail::Call::kAnySlot) {
    wire::Endpoint owner = cluster_->owner_of(slot);
    return owner == link.endpoint() ? std::nullopt : std::optional(std::move(owner));
  }
  // A node that others still reach lost this one connection only.
  if (link.live() || cluster_->is_connected(link.endpoint()))
    return std::nullopt;
  const auto node = cluster_->live_node(&link.endpoint());
  return node ? std::optional(*node) : std::nullopt;
}

void LiveCore::read_map() {
  if (cluster_ && !closed())
    cluster_->want_refresh();
}

void LiveCore::watch_map(std::weak_ptr<MapWatcher> watcher) {
  const std::lock_guard lock(extra_mutex_);
  std::erase_if(watchers_, [](const auto& known) { return known.expired(); });
  watchers_.push_back(std::move(watcher));
}

void LiveCore::map_changed() {
  std::vector<std::shared_ptr<MapWatcher>> watchers;
  {
    const std::lock_guard lock(extra_mutex_);
    for (const auto& known : watchers_) {
      if (auto watcher = known.lock())
        watchers.push_back(std::move(watcher));
    }
  }
  for (const auto& watcher : watchers)
    watcher->map_changed();
}

Result<std::shared_ptr<LiveCore>> LiveCore::open(wire::Url url, ClientOptions options) {
  std::shared_ptr<LiveCore> core(new LiveCore(std::move(url), std::move(options)), [](LiveCore* last) {
    // A forked child has none of the threads that this would wait for: what they hold is left as it is.
    if (last->forked())
      return;
    // The last owner may be a continuation: the threads are then joined from a thread that is not one of them.
    if (detail::on_library_thread()) {
      std::thread([last] { delete last; }).detach();
    } else {
      delete last;
    }
  });
  if (auto live = core->connect(); !live) {
    core->close();
    return std::unexpected(std::move(live).error());
  }
  if (core->options_.node_lease == NodeLease::at_open) {
    if (auto leased = core->lease_node(); !leased) {
      core->close();
      return std::unexpected(std::move(leased).error());
    }
  }
  return core;
}

LiveCore::~LiveCore() { close(); }

bool LiveCore::forked() const noexcept { return fork_generation_ != client::fork_generation(); }

void LiveCore::submit(detail::Call* call, wire::CallSettings settings) {
  call->default_target = &callbacks_;
  if (forked() || closed()) {
    const bool child = forked();
    if (call->win()) {
      call->fail(child ? Error(Errc::forked, "open a client of its own in the child process", Repeat::safe)
                       : Error(Errc::client_closed, "the client is closed", Repeat::safe));
    }
    call->release();
    return;
  }
  call->repeat = settings.repeat;
  call->blocking = settings.blocking;
  call->deadline = detail::Clock::now() + settings.deadline.value_or(options_.deadline);
  if (call->script != nullptr)
    counters_.script_calls.fetch_add(1, std::memory_order_relaxed);
  if (settings.past_bound) {
    topology_->submit_internal(call);
  } else if (settings.never_refused) {
    topology_->submit_past_bound(call);
  } else {
    topology_->submit(call, !detail::on_library_thread());
  }
}

namespace {

/// What a caller has of a line. Keeps the core, whose loop it lives in.
class OwnLine final : public ToldLine {
 public:
  OwnLine(std::shared_ptr<Core> core, std::shared_ptr<FollowingLine> line, detail::Target* target)
      : core_(std::move(core)), line_(std::move(line)), target_(target) {}
  ~OwnLine() override { close(); }

  void submit(detail::Call* call, wire::CallSettings settings) override {
    call->default_target = target_;
    call->repeat = settings.repeat;
    call->blocking = true;
    call->deadline = detail::Clock::now() + settings.deadline.value_or(core_->options().deadline);
    line_->submit(call);
  }
  void close() override { line_->close(Error(Errc::client_closed, "the connection is closed", Repeat::safe)); }
  void when_live(std::function<void(std::int64_t connection)> on_live) override {
    line_->when_live(std::move(on_live));
  }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<FollowingLine> line_;
  detail::Target* const target_;
};

}  // namespace

std::unique_ptr<Line> LiveCore::line(std::uint32_t slot) {
  FollowingLine::Ways ways;
  ways.where = [this, slot] { return node_of(slot); };
  ways.connect = [this](const wire::Endpoint& node, const std::shared_ptr<FollowingLine>& line) {
    wire::LinkSettings settings = link_settings(":line", node);
    settings.parks = true;
    return make_link(std::move(settings), nullptr, line.get(), in_cluster() ? line.get() : nullptr, line);
  };
  if (in_cluster()) {
    ways.find = [this] { read_map(); };
    ways.learn = [this](wire::Link& from, const std::vector<wire::SlotMove>& moves) {
      wire::CallQueue none;
      cluster_->redirect(from, none, moves);
    };
    ways.later = [this](milliseconds wait, std::function<void()> function) {
      if (!closed())
        after(wait, std::move(function));
    };
  }
  auto line = std::make_shared<FollowingLine>(std::move(ways));
  {
    const std::lock_guard lock(lines_mutex_);
    std::erase_if(lines_, [](const auto& known) {
      const auto one = known.lock();
      return !one || one->closed();
    });
    if (lines_.size() >= kMostLines)
      return nullptr;
    lines_.push_back(line);
  }
  if (in_cluster())
    watch_map(line);
  // A client that closes meanwhile either finds it in the list, or is seen here.
  if (forked() || closed())
    line->close(Error(Errc::client_closed, "the client is closed", Repeat::safe));
  return std::make_unique<OwnLine>(shared_from_this(), std::move(line), &callbacks_);
}

void LiveCore::after(milliseconds wait, std::function<void()> function) {
  std::unique_lock lock(after_mutex_);  // to the end: what is posted after the loop has ended would never run
  if (closed()) {
    lock.unlock();
    return function();
  }
  // The loop runs on until its timers have ended, so a closing client waits for the few that are set.
  boost::asio::post(io_, [this, wait, function = std::move(function)]() mutable {
    auto timer = std::make_shared<boost::asio::steady_timer>(io_, wait);
    timer->async_wait([timer, function = std::move(function)](const boost::system::error_code&) { function(); });
  });
}

std::unique_ptr<WakeWatch> LiveCore::watch(std::string wake_key, std::function<void()> on_wake) {
  return wake_->watch(std::move(wake_key), std::move(on_wake));
}

Reply<Subscription> LiveCore::listen(std::string_view channel, ChannelHandlers handlers) {
  if (forked())
    return fail(Errc::forked, "open a client of its own in the child process");
  return subscriptions_->subscribe(channel, std::move(handlers));
}

Reply<Subscription> LiveCore::subscribe(std::string_view channel, SubscriptionHandlers handlers) {
  ChannelHandlers inside{.on_message = std::move(handlers.on_message)};
  if (handlers.on_gap)
    inside.on_gap = [on_gap = std::move(handlers.on_gap)](UnixMillis, UnixMillis) { on_gap(); };
  return listen(channel, std::move(inside));
}

Reply<void> LiveCore::ready() {
  if (forked())
    return fail(Errc::forked, "open a client of its own in the child process");
  auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
  auto* call = wire::BoundCall<void, decltype(decode)>::allocate(0, decode);
  call->default_target = &callbacks_;
  call->retain();
  detail::CallPointer<detail::CallOf<void>> mine(call);
  topology_->when_ready(call);
  return Reply<void>(std::move(mine));
}

void LiveCore::log(LogLevel level, std::string_view event, std::span<const LogField> fields) {
  if (options_.log)
    options_.log(level, event, fields);
}

ClientStats LiveCore::stats() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  ClientStats out;
  out.commands = read(counters_.commands);
  out.replies = read(counters_.replies);
  out.pushes = read(counters_.pushes);
  out.bytes_out = read(counters_.bytes_out);
  out.bytes_in = read(counters_.bytes_in);
  out.writes = read(counters_.writes);
  out.reconnects = read(counters_.reconnects);
  out.script_calls = read(counters_.script_calls);
  out.script_loads = read(counters_.script_loads);
  out.scripts_resent = read(counters_.scripts_resent);
  out.calls_resent = read(counters_.calls_resent);
  out.redirects = read(counters_.redirects);
  out.map_refreshes = read(counters_.map_refreshes);
  out.outcomes_unknown = read(counters_.outcomes_unknown);
  out.overloads = read(counters_.overloads);
  out.protocol_errors = read(counters_.protocol_errors);
  out.unblocked_errors = read(counters_.unblocked_errors);
  out.wakes = read(counters_.wakes);
  out.id_collisions = read(counters_.id_collisions);
  out.connections = read(counters_.connections);
  if (!forked())
    out.in_flight = topology_->pending();
  return out;
}

void LiveCore::close() {
  if (forked()) {
    // The threads do not exist here; what they hold is left as it is.
    closed_.store(true, std::memory_order_release);
    return;
  }
  std::call_once(shut_once_, [this] {
    release_node();
    {
      const std::lock_guard lock(after_mutex_);
      closed_.store(true, std::memory_order_release);
    }
    late_wakes_->close();
    const Error why(Errc::client_closed, "the client is closed", Repeat::safe);
    wake_->close(why);
    {
      const std::lock_guard lock(lines_mutex_);
      for (const auto& line : lines_) {
        if (const auto known = line.lock())
          known->close(why);
      }
    }
    subscriptions_->close(why);
    topology_->close(why);
    {
      const std::lock_guard lock(extra_mutex_);
      for (const ExtraLink& one : extra_links_)
        one.link->close(why);
    }
    boost::asio::post(io_, [this] {
      renewal_.cancel();
      work_.reset();
    });
  });
  // A thread of the library cannot wait for itself; the destructor, which runs elsewhere, does.
  if (detail::on_library_thread())
    return;
  const std::lock_guard lock(join_mutex_);
  if (io_thread_.joinable())
    io_thread_.join();
  callbacks_.stop();
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
