// Delivery of a queue's outbox: read, bring all records to their parents' queues, take out what was brought.
#include <list>
#include <utility>

#include "echomq/flow.hpp"
#include "queue/conversation.hpp"
#include "queue/flow_record.hpp"
#include "queue/start.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace queue;
using keyspace::Subkey;
using std::string_view;

class Delivering final : public Conversation<Delivered> {
 public:
  Delivering(client::Core& core, std::optional<Milliseconds> limit, const keyspace::QueueKeys& own, std::uint32_t batch)
      : Conversation(core, limit), scripts_(Scripts::get()), outbox_(own.flow_outbox()), batch_(batch) {}

 private:
  enum class Step : std::uint8_t { read, bring, take_out, done };

  std::optional<Result<Delivered>> go_on() override {
    if (error_)
      return Result<Delivered>(std::unexpected<Error>(*std::move(error_)));
    const std::size_t asked = asked_;
    while (asked_ == asked && step_ != Step::done) {
      const Step step = std::exchange(step_, static_cast<Step>(static_cast<std::uint8_t>(step_) + 1));
      if (step == Step::read) {
        const Decimal last(std::int64_t{batch_} - 1);
        ++asked_;
        ask(0, views(string_view("LRANGE"), outbox_, string_view("0"), last), nullptr, Repeat::safe);
      } else if (step == Step::bring) {
        for (std::size_t i = 0; i < records_.size(); ++i)
          bring(i);
      } else {
        for (const std::size_t i : brought_)
          take_out(i);
      }
    }
    if (asked_ != asked)
      return std::nullopt;
    return Result<Delivered>(std::move(outcome_));
  }

  void heard(std::size_t tag, Result<Value> answer, bool) override {
    if (step_ == Step::bring) {
      if (!answer) {
        error_ = std::move(answer).error();
      } else {
        records_ = answer->take_items();
        outcome_.read = static_cast<std::int64_t>(records_.size());
      }
    } else if (step_ == Step::take_out) {
      if (answer && answer->as_integer() == 1) {
        ++outcome_.delivered;
        brought_.push_back(tag);
        return;
      }
      ++outcome_.failed;
      if (!outcome_.error && !answer)
        outcome_.error = std::move(answer).error();
    }
    // A record that was brought but could not be taken out is brought once more later, and counts for nothing then.
  }

  void bring(std::size_t index) {
    const auto record = parse_flow_record(records_[index].as_text().value_or(string_view()));
    if (!record) {
      ++outcome_.malformed;
      return;
    }
    const keyspace::QueueKeys& keys = keys_of(record->parent_queue);
    const keyspace::KeyText row = keys.job(record->parent);
    const keyspace::KeyText counter = keys.job_sub(record->parent, Subkey::dependencies);
    ++asked_;
    if (!record->failed) {
      const keyspace::KeyText processed = keys.job_sub(record->parent, Subkey::processed);
      ask(index, scripts_.flow_deliver, views(counter, processed, row),
          views(record->child, record->text, record->parent.text(), keys.base()), Repeat::safe);
    } else {
      const keyspace::KeyText failed = keys.job_sub(record->parent, Subkey::failed);
      const keyspace::KeyText unsuccessful = keys.job_sub(record->parent, Subkey::unsuccessful);
      ask(index, scripts_.flow_fail_deliver, views(counter, failed, unsuccessful, row),
          views(record->child, record->text, record->policy, keys.base(), record->parent.text()), Repeat::safe);
    }
  }

  /// By value, nearest to the head: somebody else who delivers the same may have taken it out already, and what stands
  /// at the head then is another record. Not sent twice: an equal record may follow.
  void take_out(std::size_t index) {
    ++asked_;
    ask(index, views(string_view("LREM"), outbox_, string_view("1"), records_[index].as_text().value_or(string_view())),
        nullptr, Repeat::unsafe);
  }

  [[nodiscard]] const keyspace::QueueKeys& keys_of(const QueueName& name) {
    for (const keyspace::QueueKeys& keys : queues_) {
      if (keys.queue() == name)
        return keys;
    }
    return queues_.emplace_back(name);
  }

  const Scripts& scripts_;
  const std::string outbox_;
  const std::uint32_t batch_;
  Step step_ = Step::read;  ///< the next one
  std::size_t asked_ = 0;
  std::vector<Value> records_;
  std::vector<std::size_t> brought_;
  std::list<keyspace::QueueKeys> queues_;
  Delivered outcome_;
  std::optional<Error> error_;
};

}  // namespace

Reply<Delivered> Flow::deliver(std::uint32_t batch, std::optional<Milliseconds> deadline) const {
  ECHOMQ_CHECK(check_limit("batch", batch));
  ECHOMQ_CHECK(check_deadline(deadline));
  const Queue::State& state = queue_.internal();
  return (new Delivering(*state.core, deadline, state.keys, batch))->begin();
}

}  // namespace v1
}  // namespace echomq
