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
#include "queue/flow_record.hpp"
#include "queue/scripts.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// A flow parent that died of a child.
struct FallenParent {
  QueueName queue;
  JobId parent;
  std::string reason;
};

/// A pass and whom it has moved to dead.
struct Brought {
  Delivered pass;
  std::vector<FallenParent> fallen;
};

/// By which script a pass brings a child's death: the canonical one, or `flow_death_deliver`, which says whether the parent died.
enum class Deaths : std::uint8_t { ignored, named };

/// `Flow::deliver` that says which parents died of what it brought.
[[nodiscard]] Reply<Brought> bring(const Queue& queue, std::uint32_t batch);

/// One pass, part of a conversation. Its tags begin with `first_tag`.
class OutboxPass {
 public:
  OutboxPass(const keyspace::QueueKeys& own, std::uint32_t batch, std::size_t first_tag = 0,
             Deaths deaths = Deaths::ignored);
  bool go_on(Asker& to);
  void heard(std::size_t tag, Result<Value> answer);
  /// An error when the outbox could not be read.
  [[nodiscard]] Result<Delivered> outcome();
  /// Parents that died of a record of this pass.
  [[nodiscard]] std::vector<FallenParent> take_fallen() { return std::move(fallen_); }

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
  Deaths deaths_;
  Step step_ = Step::read;  ///< the next one
  std::vector<Value> records_;
  std::vector<std::size_t> brought_;
  std::vector<FallenParent> fallen_;
  std::list<keyspace::QueueKeys> queues_;
  Delivered outcome_;
  std::optional<Error> error_;
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
