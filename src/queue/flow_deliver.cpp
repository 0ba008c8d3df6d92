// One pass over an outbox.
#include "queue/flow_deliver.hpp"

#include <utility>

#include "queue/start.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

using keyspace::Subkey;
using std::string_view;

OutboxPass::OutboxPass(const keyspace::QueueKeys& own, std::uint32_t batch, std::size_t first_tag, Deaths deaths)
    : scripts_(Scripts::get()), outbox_(own.flow_outbox()), batch_(batch), first_tag_(first_tag), deaths_(deaths) {}

bool OutboxPass::go_on(Asker& to) {
  if (error_)
    return false;
  bool asked = false;
  while (!asked && step_ != Step::done) {
    const Step step = std::exchange(step_, static_cast<Step>(static_cast<std::uint8_t>(step_) + 1));
    if (step == Step::read) {
      const Decimal last(std::int64_t{batch_} - 1);
      to.ask(first_tag_, views(string_view("LRANGE"), outbox_, string_view("0"), last), nullptr, Repeat::safe);
      asked = true;
    } else if (step == Step::bring) {
      for (std::size_t i = 0; i < records_.size(); ++i)
        asked |= bring(to, i);
    } else {
      for (const std::size_t i : brought_)
        take_out(to, i);
      asked = !brought_.empty();
    }
  }
  return asked;
}

void OutboxPass::heard(std::size_t tag, Result<Value> answer) {
  if (step_ == Step::bring) {
    if (!answer) {
      error_ = std::move(answer).error();
    } else {
      records_ = answer->take_items();
      outcome_.read = static_cast<std::int64_t>(records_.size());
    }
  } else if (step_ == Step::take_out) {
    const std::size_t index = tag - first_tag_;
    const auto said = answer ? answer->as_integer() : std::nullopt;
    if (said == 1 || said == 2) {
      ++outcome_.delivered;
      brought_.push_back(index);
      if (const auto record = parse_flow_record(records_[index].as_text().value_or("")); said == 2 && record)
        fallen_.push_back({record->parent_queue, record->parent, std::string(record->text)});
      return;
    }
    ++outcome_.failed;
    if (!outcome_.error && !answer)
      outcome_.error = std::move(answer).error();
  }
  // A record that was brought but could not be taken out is brought once more later, and counts for nothing then.
}

Result<Delivered> OutboxPass::outcome() {
  if (error_)
    return std::unexpected<Error>(*std::move(error_));
  return std::move(outcome_);
}

bool OutboxPass::bring(Asker& to, std::size_t index) {
  const auto record = parse_flow_record(records_[index].as_text().value_or(string_view()));
  if (!record) {
    ++outcome_.malformed;
    return false;
  }
  const keyspace::QueueKeys& keys = keys_of(record->parent_queue);
  const keyspace::KeyText row = keys.job(record->parent);
  const keyspace::KeyText counter = keys.job_sub(record->parent, Subkey::dependencies);
  if (!record->failed) {
    const keyspace::KeyText processed = keys.job_sub(record->parent, Subkey::processed);
    to.ask(first_tag_ + index, scripts_.flow_deliver, views(counter, processed, row),
           views(record->child, record->text, record->parent.text(), keys.base()), Repeat::safe);
  } else {
    const keyspace::KeyText failed = keys.job_sub(record->parent, Subkey::failed);
    const keyspace::KeyText unsuccessful = keys.job_sub(record->parent, Subkey::unsuccessful);
    const auto& script = deaths_ == Deaths::named ? scripts_.flow_death_deliver : scripts_.flow_fail_deliver;
    to.ask(first_tag_ + index, script, views(counter, failed, unsuccessful, row),
           views(record->child, record->text, record->policy, keys.base(), record->parent.text()), Repeat::safe);
  }
  return true;
}

/// By value, nearest to the head: somebody else who delivers the same may have taken it out already, and what stands
/// at the head then is another record. Not sent twice: an equal record may follow.
void OutboxPass::take_out(Asker& to, std::size_t index) {
  to.ask(first_tag_ + index,
         views(string_view("LREM"), outbox_, string_view("1"), records_[index].as_text().value_or(string_view())),
         nullptr, Repeat::unsafe);
}

const keyspace::QueueKeys& OutboxPass::keys_of(const QueueName& name) {
  for (const keyspace::QueueKeys& keys : queues_) {
    if (keys.queue() == name)
      return keys;
  }
  return queues_.emplace_back(name);
}

namespace {

class NamingPass {
 public:
  NamingPass(const keyspace::QueueKeys& own, std::uint32_t batch) : pass_(own, batch, 0, Deaths::named) {}
  [[nodiscard]] bool go_on(Asker& to) { return pass_.go_on(to); }
  void heard(std::size_t tag, Result<Value> answer) { pass_.heard(tag, std::move(answer)); }
  [[nodiscard]] Result<Brought> outcome() {
    ECHOMQ_TRY(Delivered pass, pass_.outcome());
    return Brought{.pass = std::move(pass), .fallen = pass_.take_fallen()};
  }

 private:
  OutboxPass pass_;
};

}  // namespace

Reply<Brought> bring(const Queue& queue, std::uint32_t batch) {
  const Queue::State& state = queue.internal();
  return converse<Brought>(*state.core, std::nullopt, NamingPass(state.keys, batch));
}

}  // namespace queue

Reply<Delivered> Flow::deliver(std::uint32_t batch, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(queue::check_limit("batch", batch));
  ECHOMQ_CHECK(queue::check_deadline(deadline));
  const Queue::State& state = queue_.internal();
  return queue::converse<Delivered>(*state.core, deadline, queue::OutboxPass(state.keys, batch));
}

}  // namespace v1
}  // namespace echomq
