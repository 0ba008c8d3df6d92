// The handle itself, and appending.
#include <utility>
#include <vector>

#include "bus/checks.hpp"
#include "bus/coarse_clock.hpp"
#include "bus/state.hpp"
#include "bus/writer.hpp"
#include "identity/quoted.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;

/// A record under an id of the caller's. A refusal after a lost answer may be the echo of the first attempt: then the
/// stream is asked.
class OwnAppend final : public detail::CallOf<EventId> {
 public:
  static Reply<EventId> start(const Stream::State& state, EventId id, std::span<const Field> fields,
                              wire::CallSettings settings) {
    const EntryId entry = id.entry_id();
    std::vector<std::string_view> words = {"XADD", state.key, entry, "id", id.text()};
    words.reserve(words.size() + 2 * fields.size());
    for (const auto& [name, value] : fields) {
      words.push_back(name);
      words.push_back(value);
    }
    auto* call = new OwnAppend(*state.core, state.key, id);
    call->slot = state.slot;
    call->bytes_.resize(resp::encoded_size(words));
    resp::encode_to(call->bytes_.data(), words);
    call->request = call->bytes_.data();
    call->request_size = static_cast<std::uint32_t>(call->bytes_.size());
    call->retain();
    detail::CallPointer<detail::CallOf<EventId>> mine(call);
    state.core->submit(call, settings);
    return Reply<EventId>(std::move(mine));
  }

  void accept(const resp::View& reply) noexcept override {
    if (!reply.is_error())
      return finish(id_);
    Error error = wire::to_error(reply.error_text());
    if (!resent)
      return finish(std::unexpected<Error>(std::move(error)));
    if (!error.is(Errc::nonmonotonic)) {
      return finish(echomq::fail(Errc::outcome_unknown,
                                 fmt::format("record {} was sent twice and may have been appended the first time; the "
                                             "second: {}",
                                             id_.text(), error.text)));
    }
    const EntryId entry = id_.entry_id();
    const auto is_there = [id = id_](const wire::Answer& answer) -> Result<bool> {
      return answer.view.at(0).at(1).at(1).as_text() == id.text();
    };
    retain();
    detail::CallPointer<OwnAppend> self(this);
    core_.command<bool>(parts(std::string_view("XRANGE"), key_, entry, entry), bus::settings(Repeat::safe), is_there)
        .then([self = std::move(self), error = std::move(error)](Result<bool> found) mutable {
          if (found && *found)
            return self->finish(self->id_);
          if (found)
            return self->finish(std::unexpected<Error>(std::move(error)));
          self->finish(echomq::fail(Errc::outcome_unknown, found.error().message()));
        });
  }

 private:
  OwnAppend(client::Core& core, std::string key, EventId id) : core_(core), key_(std::move(key)), id_(id) {}
  void destroy() noexcept override { delete this; }
  void finish(Result<EventId> result) {
    store(std::move(result));
    publish();
  }

  client::Core& core_;
  const std::string key_;
  const EventId id_;
  std::string bytes_;
};

[[nodiscard]] detail::Clock::time_point deadline_of(const Stream::State& state, std::optional<Milliseconds> deadline) {
  const wire::CallSettings how = settings(Repeat::safe, deadline);
  const Milliseconds wait = how.deadline.value_or(state.core->options().deadline);
  return now_within(wait) + wait;
}

/// Of a record with a caller's key.
[[nodiscard]] Result<void> check_once(std::string_view name, std::string_view once, std::span<const Field> fields,
                                      const OnceWindow& window) {
  if (once.empty())
    return {};
  if (once.size() > 512)
    return fail(Errc::invalid_argument, fmt::format("once of {} must have 1 to 512 bytes, got {}", name, once.size()));
  if (fields.size() > 497) {
    return fail(Errc::invalid_argument, fmt::format("{} has a key: at most 497 fields, got {}", name, fields.size()));
  }
  if (window.most < 1 || window.most > 10'000'000)
    return fail(Errc::invalid_argument, fmt::format("window.most must be 1 to 10000000, got {}", window.most));
  return check_span("window.age", window.age);
}

[[nodiscard]] std::unique_ptr<const OnceKey> once_key(const Stream::State& state, std::string_view once,
                                                      const OnceWindow& window) {
  if (once.empty())
    return nullptr;
  return std::make_unique<const OnceKey>(
      OnceKey{.key = std::string(once), .keys = state.once_key, .ages = state.once_ages_key, .window = window});
}

[[nodiscard]] Result<void> check_alive(const Stream::State& state) {
  if (state.fork_generation != client::fork_generation())
    return fail(Errc::forked, "open a client of its own in the child process");
  return {};
}

}  // namespace

Result<StreamName> StreamName::parse(std::string_view text) {
  if (!is_valid(text)) {
    return fail(Errc::invalid_argument,
                "stream name: " + identity::quoted(text) + ": 1 to 255 bytes that do not end in `:archived`");
  }
  return StreamName(text);
}

Stream::State::State(const QueueName& queue_name, const StreamName& stream_name,
                     std::shared_ptr<client::Core> shared_core)
    : queue(queue_name), name(stream_name), slot(0), core(std::move(shared_core)) {
  const keyspace::QueueKeys keys(queue);
  key = keys.stream(name.text()).str();
  archived_key = keys.stream_archived(name.text()).str();
  once_key = keys.once(name.text()).str();
  once_ages_key = keys.once_ages(name.text()).str();
  slot = keys.slot();
  writer = Writer::of(core, key, slot);
}

// Here rather than with the client, which lies below this room and knows a stream by name only.
Stream Client::stream(const QueueName& queue, const StreamName& name) const {
  return Stream(std::make_shared<const Stream::State>(queue, name, core_));
}

const QueueName& Stream::queue() const noexcept { return state_->queue; }
std::string_view Stream::name() const noexcept { return state_->name.text(); }

Reply<EventId> Stream::append(std::span<const Field> fields, AppendOptions options) const {
  ECHOMQ_CHECK(check_fields("the record", fields));
  ECHOMQ_CHECK(check_span("max_skew", options.max_skew));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  ECHOMQ_CHECK(check_once("the record", options.once, fields, options.window));
  if (options.id && !options.once.empty())
    return fail(Errc::invalid_argument, "id and once exclude each other");
  ECHOMQ_CHECK(check_alive(*state_));
  if (options.id)
    return OwnAppend::start(*state_, *options.id, fields, settings(Repeat::safe, options.deadline));
  WaitingRecord* record = WaitingRecord::make(fields, options.max_skew, deadline_of(*state_, options.deadline));
  record->source = state_->core->source();
  record->default_target = state_->core->continuations();
  record->once = once_key(*state_, options.once, options.window);
  record->retain();
  detail::CallPointer<detail::CallOf<EventId>> mine(record);
  WaitingRecord* const one[] = {record};
  state_->writer->append(one);
  return Reply<EventId>(std::move(mine));
}

Reply<std::vector<Result<EventId>>> Stream::append_many(std::span<const NewRecord> records,
                                                        AppendManyOptions options) const {
  if (records.empty())
    return fail(Errc::empty_pipeline, "append_many: there are no records");
  ECHOMQ_CHECK(check_span("max_skew", options.max_skew));
  ECHOMQ_CHECK(check_deadline(options.deadline));
  ECHOMQ_CHECK(check_alive(*state_));
  for (std::size_t i = 0; i < records.size(); ++i) {
    ECHOMQ_CHECK(check_fields(fmt::format("record {}", i), records[i].fields));
    ECHOMQ_CHECK(check_once(fmt::format("record {}", i), records[i].once, records[i].fields, options.window));
  }
  auto* many = new ManyAppends(records.size());
  many->source = state_->core->source();
  many->default_target = state_->core->continuations();
  detail::CallPointer<detail::CallOf<std::vector<Result<EventId>>>> mine(many);
  const auto deadline = deadline_of(*state_, options.deadline);
  std::vector<WaitingRecord*> waiting;
  waiting.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    waiting.push_back(WaitingRecord::make(records[i].fields, options.max_skew, deadline));
    waiting.back()->answer_to(*many, i);
    waiting.back()->once = once_key(*state_, records[i].once, options.window);
  }
  state_->writer->append(waiting);
  return Reply<std::vector<Result<EventId>>>(std::move(mine));
}

Result<StreamGroup> Stream::group(std::string_view name) const {
  ECHOMQ_CHECK(check_name("group", name));
  return StreamGroup(*this, name);
}

}  // namespace v1
}  // namespace echomq
