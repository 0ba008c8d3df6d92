// A connection for commands that wait on the server.
#include "client/line.hpp"

#include <utility>

#include "wire/request_keys.hpp"
#include "wire/slot_map.hpp"

namespace echomq {
inline namespace v1 {
namespace client {
namespace {

/// Where the slot is, is asked so often while its node cannot be reached.
constexpr std::chrono::milliseconds kAsk{250};
/// Nodes that contradict each other send a call back and forth no longer.
constexpr std::uint8_t kMostRedirects = 16;

[[nodiscard]] Error elsewhere() { return {Errc::disconnected, "the slot is on another node", Repeat::safe}; }

}  // namespace

void FollowingLine::close_all(const Links& links) {
  for (const auto& link : links)
    link->close(elsewhere());
}

FollowingLine::Links FollowingLine::move_locked() {
  Links done;
  std::erase_if(left_, [&](const std::shared_ptr<wire::Link>& link) {
    const bool owes = link->live() && link->pending() > 0;
    if (!owes)
      done.push_back(link);
    return !owes;
  });
  const wire::Endpoint owner = ways_.where();
  if (link_ && link_->endpoint() == owner)
    return done;
  const std::shared_ptr<wire::Link> before = std::exchange(link_, ways_.connect(owner, shared_from_this()));
  link_->start();
  if (before) {
    wire::CallQueue waiting;
    before->extract_waiting([](const detail::Call&) { return true; }, waiting);
    if (!waiting.empty())
      link_->take_over(std::move(waiting));
    // What waits there is answered by the node that gave the slot away, with MOVED; not by one that is lost.
    (before->live() && before->pending() > 0 ? left_ : done).push_back(before);
  }
  return done;
}

void FollowingLine::submit(detail::Call* call) {
  Links done;
  Error why;
  bool taken = false, lost = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      why = close_error_;
    } else {
      done = move_locked();
      // Under the lock, so that the connection is not given up meanwhile.
      wire::CallQueue only;
      only.push(call);
      link_->submit(std::move(only));
      taken = true;
      lost = !link_->live();
    }
  }
  close_all(done);
  if (taken) {
    if (ways_.find && lost)
      ask_while_lost();
    return;
  }
  if (call->win())
    call->fail(why);
  call->release();
}

void FollowingLine::close(const Error& why) {
  Links links;
  {
    const std::lock_guard lock(mutex_);
    if (closed_)
      return;
    closed_ = true;
    close_error_ = why;
    links.swap(left_);
    if (link_)
      links.push_back(std::move(link_));
    link_ = nullptr;
  }
  for (const auto& link : links)
    link->close(why);
}

bool FollowingLine::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void FollowingLine::map_changed() {
  Links done;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !link_)
      return;
    done = move_locked();
  }
  close_all(done);
}

void FollowingLine::when_live(std::function<void(std::int64_t connection)> on_live) {
  const std::lock_guard lock(mutex_);
  on_live_ = std::move(on_live);
}

void FollowingLine::link_live(std::int64_t connection_id) {
  std::function<void(std::int64_t)> told;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_)
      told = on_live_;
  }
  if (told)
    told(connection_id);
}

void FollowingLine::link_lost(const Error&) {
  if (ways_.find)
    ask_while_lost();
}

void FollowingLine::ask_while_lost() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || asking_)
      return;
    asking_ = true;
  }
  ways_.find();
  ways_.later(kAsk, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    bool again = false;
    {
      const std::lock_guard lock(self->mutex_);
      self->asking_ = false;
      // A connection that owes nobody anything may be lost.
      again = !self->closed_ && self->link_ && !self->link_->live() && self->link_->pending() > 0;
    }
    if (again)
      self->ask_while_lost();
  });
}

detail::Call::Refusal FollowingLine::refusal(const wire::Link& from, std::string_view error_text,
                                             std::vector<wire::SlotMove>& moves) {
  if (error_text.starts_with("CLUSTERDOWN"))
    ways_.find();
  std::optional<wire::SlotMove> move = wire::parse_moved(error_text, from.endpoint());
  if (!move)
    return detail::Call::Refusal::none;  // what is on its way is asked for over the client's own connections
  moves.push_back(*std::move(move));
  return detail::Call::Refusal::moved;
}

void FollowingLine::redirect(wire::Link& from, wire::CallQueue& calls, const std::vector<wire::SlotMove>& moves) {
  ways_.learn(from, moves);
  std::vector<std::pair<detail::Call*, Error>> ended;
  Links done;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_)
      done = move_locked();
    wire::CallQueue onward;
    while (detail::Call* call = calls.pop()) {
      call->refusal = detail::Call::Refusal::none;
      call->replies = wire::commands_of_request({call->request, call->request_size});
      if (!call->resent)
        call->first_written = {};  // it had no effect where it was
      if (closed_) {
        ended.emplace_back(call, close_error_);
      } else if (++call->redirects > kMostRedirects) {
        ended.emplace_back(call, Error(Errc::moved, "the nodes do not agree who serves its slot", Repeat::safe));
      } else {
        onward.push(call);
      }
    }
    if (!onward.empty())
      link_->take_over(std::move(onward));
  }
  close_all(done);
  for (auto& [call, why] : ended) {
    if (call->win())
      call->fail(wire::unanswered(*call, false, why));
    call->release();
  }
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
