// What a `Stream` handle points to: its keys, made once, the client's core, and the stream's one writer in this client.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/core.hpp"
#include "client/fork_guard.hpp"
#include "echomq/stream.hpp"
#include "keyspace/keys.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
class Writer;
}  // namespace bus

/// Constant once made; shared by all copies of the handle.
struct Stream::State {
  State(const QueueName& queue_name, const StreamName& stream_name, std::shared_ptr<client::Core> shared_core);

  QueueName queue;
  StreamName name;
  std::string key;
  std::string archived_key;
  std::string once_key;
  std::string once_ages_key;
  std::uint16_t slot;
  std::uint32_t fork_generation = client::fork_generation();
  std::shared_ptr<client::Core> core;
  /// Shared by all handles of this stream over the same core: the order of records is kept across them.
  std::shared_ptr<bus::Writer> writer;
};

}  // namespace v1
}  // namespace echomq
