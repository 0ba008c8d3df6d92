// Delivery of a queue's outbox: read, bring all records to their parents' queues, take out what was brought.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "echomq/flow.hpp"
#include "keyspace/keys.hpp"
#include "queue/conversation.hpp"
#include "queue/scripts.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// One pass, part of a conversation. Its tags begin with `first_tag`.
class OutboxPass {
 public:
  OutboxPass(const keyspace::QueueKeys& own, std::uint32_t batch, std::size_t first_tag = 0);
  bool go_on(Asker& to);
  void heard(std::size_t tag, Result<Value> answer);
  /// An error when the outbox could not be read.
  [[nodiscard]] Result<Delivered> outcome();

 private:
  enum class Step : std::uint8_t { read, bring, take_out, done };

  /// False: what stands there is no record.
  bool bring(Asker& to, std::size_t index);
  void take_out(Asker& to, std::size_t index);
  [[nodiscard]] const keyspace::QueueKeys& keys_of(const QueueName& name);

  const Scripts& scripts_;
  std::string outbox_;
  std::uint32_t batch_;
  std::size_t first_tag_;
  Step step_ = Step::read;  ///< the next one
  std::vector<Value> records_;
  std::vector<std::size_t> brought_;
  std::list<keyspace::QueueKeys> queues_;
  Delivered outcome_;
  std::optional<Error> error_;
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
