// What an `EventLog` handle points to.
#pragma once

#include <memory>
#include <string>

#include "client/core.hpp"
#include "echomq/event_log.hpp"
#include "keyspace/keys.hpp"

namespace echomq {
inline namespace v1 {

struct EventLog::State {
  State(const QueueName& queue, std::shared_ptr<client::Core> shared) : keys(queue), core(std::move(shared)) {}
  keyspace::QueueKeys keys;
  std::shared_ptr<client::Core> core;
};

}  // namespace v1
}  // namespace echomq
