// `Meter`: listeners by event name. Those of an event are called outside the lock, so they may attach and detach.
#include "echomq/meter.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace echomq {
inline namespace v1 {

struct Meter::State {
  struct Listener {
    std::uint64_t number;
    std::shared_ptr<const Handler> handler;
  };
  std::mutex mutex;
  std::map<std::string, std::vector<Listener>, std::less<>> listeners;  // guarded by mutex
  std::uint64_t last = 0;                                               // guarded by mutex
  std::atomic<std::uint64_t> failures{0};
};

const std::int64_t* Measured::value(std::string_view name) const noexcept {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& one) { return one.first == name; });
  return found == values.end() ? nullptr : &found->second;
}

std::string_view Measured::label(std::string_view name) const noexcept {
  const auto found = std::find_if(labels.begin(), labels.end(), [&](const auto& one) { return one.first == name; });
  return found == labels.end() ? std::string_view{} : found->second;
}

Meter::Attachment::Attachment(Attachment&& other) noexcept
    : state_(std::exchange(other.state_, {})), number_(std::exchange(other.number_, 0)) {}

Meter::Attachment& Meter::Attachment::operator=(Attachment&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(number_, other.number_);
  return *this;
}

Meter::Attachment::~Attachment() {
  const auto state = state_.lock();
  if (!state)
    return;
  const std::lock_guard lock(state->mutex);
  for (auto& [event, listeners] : state->listeners)
    std::erase_if(listeners, [this](const State::Listener& one) { return one.number == number_; });
}

Meter::Meter() : state_(std::make_shared<State>()) {}

Meter::Attachment Meter::attach(std::string_view event, Handler handler) const {
  auto shared = std::make_shared<const Handler>(std::move(handler));
  const std::lock_guard lock(state_->mutex);
  const std::uint64_t number = ++state_->last;
  state_->listeners[std::string(event)].push_back({number, std::move(shared)});
  return Attachment(state_, number);
}

std::size_t Meter::emit(const Measured& measured) const {
  std::vector<State::Listener> listeners;
  {
    const std::lock_guard lock(state_->mutex);
    if (const auto found = state_->listeners.find(measured.event); found != state_->listeners.end())
      listeners = found->second;
  }
  std::size_t taken = 0;
  for (const State::Listener& listener : listeners) {
    try {
      (*listener.handler)(measured);
      ++taken;
    } catch (...) {
      state_->failures.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return taken;
}

std::uint64_t Meter::failures() const noexcept { return state_->failures.load(std::memory_order_relaxed); }

}  // namespace v1
}  // namespace echomq
