// What a `Queue` handle points to: its keys, made once, and the client's core.
#pragma once

#include <memory>
#include <utility>

#include "client/core.hpp"
#include "echomq/queue.hpp"
#include "keyspace/keys.hpp"
#include "queue/scripts.hpp"

namespace echomq {
inline namespace v1 {

/// Constant once made; shared by all copies of the handle.
struct Queue::State {
  State(const QueueName& name, std::shared_ptr<client::Core> shared_core)
      : keys(name), core(std::move(shared_core)), scripts(queue::Scripts::get()) {}

  keyspace::QueueKeys keys;
  std::shared_ptr<client::Core> core;
  const queue::Scripts& scripts;
};

}  // namespace v1
}  // namespace echomq
