// The connection on which a table hears of others' writes.
#include "cache/coherence.hpp"

#include <utility>

#include "cache/exchange.hpp"
#include "client/live_core.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

CoherenceLink::CoherenceLink(Coherence mode, const TableKeys& keys, std::weak_ptr<CoherenceSink> sink)
    : mode_(mode), prefix_(keys.prefix), channel_(keys.channel), sink_(std::move(sink)) {}

Result<void> CoherenceLink::start(client::LiveCore& core) {
  deadline_ = core.options().deadline;
  const bool subscribes = mode_ == Coherence::broadcast;
  link_ = core.open_link(subscribes ? ":cache" : ":tracking", subscribes, shared_from_this());
  link_->start();
  const auto until = detail::Clock::now() + core.options().connect_timeout + deadline_;
  if (auto live = link_->wait_live(until); !live)
    return live;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return first_.has_value(); }))
    return fail(Errc::timeout, "the server did not confirm the cache's subscription in time");
  return *first_;
}

void CoherenceLink::close() {
  if (link_)
    link_->close(Error(Errc::client_closed, "the cache is closed", Repeat::safe));
}

void CoherenceLink::link_live(std::int64_t) {
  auto end = [self = shared_from_this()](Result<std::vector<Value>> answers) { self->answered(std::move(answers)); };
  Exchange* call = mode_ == Coherence::broadcast ? Exchange::command(std::move(end), "SUBSCRIBE", channel_)
                                                 : Exchange::command(std::move(end), "CLIENT", "TRACKING", "ON",
                                                                     "BCAST", "PREFIX", prefix_, "NOLOOP");
  call->deadline = detail::Clock::now() + deadline_;
  link_->submit_internal(call);
}

void CoherenceLink::answered(Result<std::vector<Value>> answers) {
  Result<void> outcome;
  if (!answers) {
    outcome = std::unexpected<Error>(std::move(answers).error());
  } else if (mode_ == Coherence::tracking && link_->protocol() < 3) {
    outcome = fail(Errc::requires_resp3, "tracking needs a server that speaks RESP3");
  } else if (answers->back().is_error()) {
    outcome = std::unexpected<Error>(wire::to_error(answers->back().error_text()));
  }
  if (outcome) {
    if (const auto sink = sink_.lock())
      sink->armed();
  }
  const std::lock_guard lock(mutex_);
  if (!first_)
    first_ = std::move(outcome);
  changed_.notify_all();
}

void CoherenceLink::link_lost(const Error&) {
  if (const auto sink = sink_.lock())
    sink->lost();
}

void CoherenceLink::link_push(const resp::View& frame) {
  if (const auto sink = sink_.lock())
    read_push(frame, prefix_, channel_, *sink);
}

}  // namespace cache
}  // namespace v1
}  // namespace echomq
