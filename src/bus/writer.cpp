// Appends to one stream: who may send, under which ids, and in which form.
#include "bus/writer.hpp"

#include <algorithm>
#include <map>

#include "bus/writer_batch.hpp"
#include "client/mint_run.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

constexpr std::size_t kMostInFlight = 2;
constexpr std::size_t kMostRuns = 3;
constexpr std::size_t kRunRecords = 256;
/// How far the ids of a run may stay behind the clock. The longer, the seldomer the connection runs dry.
constexpr Milliseconds kRunAge{5};
constexpr std::size_t kBatchRecords = 1000;
/// As many as the script looks for. There are fewer: what is in flight at most, and records whose time is over.
constexpr std::size_t kMostLater = 4096;
constexpr std::size_t kBatchBytes = std::size_t{512} << 10;

/// Whether no id of anybody else stands between the two, by their values.
[[nodiscard]] bool follows(std::uint64_t id, std::uint64_t before) noexcept {
  return id == before + 1 && id >> 12 == before >> 12;
}

/// Writers by core and key. A writer takes itself out when its last holder lets go.
struct WriterRegistry {
  std::mutex mutex;
  std::map<std::pair<const client::Core*, std::string>, std::weak_ptr<Writer>> writers;  // guarded by mutex

  [[nodiscard]] static WriterRegistry& get() {
    static auto* const registry = new WriterRegistry;  // lives as long as the process: a late handle may still ask
    return *registry;
  }
};

}  // namespace

std::shared_ptr<Writer> Writer::of(const std::shared_ptr<client::Core>& core, const std::string& key,
                                   std::uint16_t slot) {
  WriterRegistry& registry = WriterRegistry::get();
  const std::lock_guard lock(registry.mutex);
  std::weak_ptr<Writer>& known = registry.writers[{core.get(), key}];
  std::shared_ptr<Writer> writer = known.lock();
  if (!writer) {
    writer.reset(new Writer(core, key, slot));
    known = writer;
  }
  return writer;
}

Writer::Writer(std::shared_ptr<client::Core> core, std::string key, std::uint16_t slot)
    : core_(std::move(core)), key_(std::move(key)), slot_(slot) {}

Writer::~Writer() {
  WriterRegistry& registry = WriterRegistry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.writers.find({core_.get(), key_});
  if (found != registry.writers.end() && found->second.expired())
    registry.writers.erase(found);
}

bool Writer::over_bound() const {
  return held_ >= core_->options().max_in_flight || held_bytes_ >= core_->options().max_in_flight_bytes;
}

bool Writer::may_send() const {
  return !paused_ && !(keyed_ && in_flight_ > 0) && in_flight_ < (running_ ? kMostRuns : kMostInFlight) &&
         !(halted_ && in_flight_ > 0);
}

void Writer::append(std::span<WaitingRecord* const> records) {
  {
    Lock lock(mutex_);
    if (over_bound() && core_->options().overflow == Overflow::block && !detail::on_library_thread()) {
      room_.wait_until(lock, records.front()->deadline, [&] { return !over_bound(); });
    }
    if (over_bound()) {
      const Error why(Errc::overloaded, fmt::format("{} records of this stream wait", held_), Repeat::safe);
      lock.unlock();
      for (WaitingRecord* record : records)
        record->settle(std::unexpected<Error>(why));
      return;
    }
    for (WaitingRecord* record : records) {
      record->number = ++appended_;
      waiting_.push_back(record);
      held_bytes_ += record->encoded().size();
    }
    held_ += records.size();
    // Whoever takes the next answer sends these.
    if (pumping_ || !may_send())
      return;
  }
  pump(Pumped::by_appender);
}

void Writer::pump(Pumped by) {
  std::vector<Settled> settled;
  Lock lock(mutex_);
  // One thread at a time hands over batches, without the lock: handing over may run into an answer.
  if (pumping_)
    return;
  pumping_ = true;
  while (Batch* batch = next_batch(settled)) {
    const auto latest = std::max_element(batch->records.begin(), batch->records.end(),
                                         [](const auto* a, const auto* b) { return a->deadline < b->deadline; });
    const auto left = std::chrono::ceil<Milliseconds>((*latest)->deadline - detail::Clock::now());
    // Records were counted when they were accepted; a thread of the library must not wait for room a second time. A run
    // is not sent again by the connection: what follows it must not pass it.
    const bool run = batch->form == Batch::Form::run;
    const wire::CallSettings how{.repeat = run ? Repeat::unsafe : Repeat::safe,
                                 .deadline = std::max(left, Milliseconds(1)),
                                 .past_bound = by == Pumped::by_answer};
    const bool shared = by == Pumped::by_answer || batch->records.size() > 1;
    const std::uint64_t losses = losses_;
    batch->retain();
    lock.unlock();
    // Appenders do not wait for this: nobody else looks at the batch before it is handed over.
    batch->encode(key_);
    settle(settled);
    core_->submit(batch, how);
    // Whoever waits for a record that he did not hand over himself does not drive the connection.
    if (detail::Source* source = core_->source(); shared && source != nullptr)
      source->leave_to_library();
    lock.lock();
    batch->submitted = true;
    if (run && losses != losses_) {
      lock.unlock();
      batch->cancel();
      lock.lock();
    }
    batch->release();
  }
  pumping_ = false;
  lock.unlock();
  settle(settled);
}

bool Writer::mint(WaitingRecord& record, std::vector<Settled>& settled) {
  if (record.id)
    return true;
  ids_ = ids_used_ = 0;  // they would be below this one
  auto minted = core_->mint("EVT");
  if (minted) {
    record.id = EventId::from(*minted).value();
    record.value = record.id->value();
    return true;
  }
  settled.push_back({&record, std::unexpected<Error>(std::move(minted).error())});
  return false;
}

bool Writer::dropped(WaitingRecord& record, detail::Clock::time_point now, std::vector<Settled>& settled) {
  if (record.withdrawn()) {
    note_given_up(record);
    settled.push_back({&record, fail(Errc::cancelled, "withdrawn before it was written", Repeat::safe)});
    return true;
  }
  if (record.deadline > now)
    return false;
  note_given_up(record);
  // One that may have been written before its answer was lost cannot be called unwritten.
  settled.push_back({&record, record.maybe_there ? fail(Errc::outcome_unknown, "the answer was lost", Repeat::unsafe)
                                                 : fail(Errc::timeout, "the deadline passed in the queue of the stream",
                                                        Repeat::safe)});
  return true;
}

void Writer::note_given_up(const WaitingRecord& record) {
  if (record.maybe_there && record.id && !record.once)
    given_up_.push_back({record.number, *record.id});
}

/// What was sent before and comes behind a batch.
void Writer::note_later(Batch& batch) {
  for (const WaitingRecord* record : waiting_) {
    if (record->number > newest_sent_)
      break;
    if (record->maybe_there && record->id && !record->once)
      batch.later.push_back({record->number, *record->id});
  }
  for (const Sent& one : given_up_) {
    if (one.number > batch.records.front()->number)
      batch.later.push_back(one);
  }
  std::ranges::sort(batch.later, {}, &Sent::number);
  if (batch.later.size() > kMostLater)
    batch.later.erase(batch.later.begin(), batch.later.end() - static_cast<std::ptrdiff_t>(kMostLater));
}

/// Ids that follow one another, enough for what waits and for what came of late.
Result<void> Writer::mint_ahead() {
  const std::size_t wanted = std::min<std::size_t>(std::max(ids_wanted_, waiting_.size() + 1), 4096);
  ids_ = ids_used_ = 0;
  for (std::size_t minted = 0; minted < wanted;) {
    auto run = client::mint_run(*core_, static_cast<std::uint32_t>(wanted - minted));
    if (!run) {
      if (ids_ == 0)
        return std::unexpected<Error>(std::move(run).error());
      break;
    }
    if (ids_ == 0 || !follows(run->first, ids_first_ + ids_ - 1)) {
      // The clock has moved on, or somebody else of this process has minted: the longer stretch is taken.
      if (2 * ids_ >= wanted)
        break;
      ids_first_ = run->first;
      ids_ = 0;
    }
    ids_ += run->count;
    minted += run->count;
  }
  ids_minted_ = detail::Clock::now();
  return {};
}

/// The next id of a run; nothing when it must wait until nothing is in flight.
std::optional<Result<std::uint64_t>> Writer::take_id(bool idle, detail::Clock::time_point now) {
  const bool old = now - ids_minted_ > kRunAge;
  if (idle)
    ids_apart_ = false;
  if (ids_apart_)
    return std::nullopt;
  if (ids_used_ == ids_ || old) {
    const bool used_up = ids_used_ == ids_;
    if (ids_used_ > 0)
      ids_wanted_ = std::min<std::size_t>(used_up && !idle ? 2 * ids_wanted_ : ids_used_ + ids_used_ / 4, 4096);
    if (auto minted = mint_ahead(); !minted)
      return std::unexpected<Error>(std::move(minted).error());
    if (!idle && !follows(ids_first_, last_sent_.value())) {
      ids_apart_ = true;
      return std::nullopt;
    }
  }
  return ids_first_ + ids_used_++;
}

Writer::Batch* Writer::next_batch(std::vector<Settled>& settled) {
  using Form = Batch::Form;
  if (!may_send())
    return nullptr;
  halted_ = false;
  if (!again_.empty()) {
    // A batch whose script had to be loaded first is answered after the one behind it.
    std::ranges::sort(again_, {}, &WaitingRecord::number);
    waiting_.insert(waiting_.begin(), again_.begin(), again_.end());
    again_.clear();
  }
  if (in_flight_ == 0 && !given_up_.empty()) {
    const std::uint64_t front = waiting_.empty() ? UINT64_MAX : waiting_.front()->number;
    std::erase_if(given_up_, [&](const Sent& one) { return one.number < front; });
  }
  if (waiting_.empty())
    return nullptr;

  const auto now = detail::Clock::now();
  const bool contended = now < no_runs_until_;
  Batch* batch = nullptr;
  std::size_t bytes = 0;
  while (!waiting_.empty()) {
    WaitingRecord& record = *waiting_.front();
    if (dropped(record, now, settled)) {
      waiting_.pop_front();
      continue;
    }
    // What was sent before goes by the script, which tells what became of it.
    const bool keyed = record.once != nullptr;
    const bool run = !contended && !record.id && !record.oversize() && !keyed;
    if (keyed && in_flight_ > 0)
      break;
    if (batch != nullptr && (keyed != (batch->form == Form::keyed) ||
                             (keyed && record.once->window != batch->records.front()->once->window)))
      break;
    if (batch != nullptr || in_flight_ > 0) {
      if (run != running_)
        break;
      // What does not fit into a script goes alone, and nothing is under way beside it. So does what was overtaken: what
      // comes behind it may be there.
      if (record.oversize() || record.overtaken || (batch != nullptr && batch->records.front()->overtaken))
        break;
    }
    if (batch != nullptr && (batch->records.size() >= (run ? kRunRecords : kBatchRecords) || bytes >= kBatchBytes))
      break;
    if (run) {
      auto id = take_id(in_flight_ == 0 && batch == nullptr, now);
      if (!id)
        break;
      waiting_.pop_front();
      if (!*id) {
        settled.push_back({&record, std::unexpected<Error>(std::move(*id).error())});
        continue;
      }
      record.value = **id;
      record.id = EventId::from_value(record.value).value();
      last_sent_ = *record.id;
    } else {
      waiting_.pop_front();
      if (!mint(record, settled))
        continue;
    }
    if (batch == nullptr) {
      running_ = run;
      const bool alone = record.oversize() || (in_flight_ == 0 && waiting_.empty());
      keyed_ = keyed;
      const Form form = run                                         ? Form::run
                        : keyed                                     ? Form::keyed
                        : record.oversize() && record.refused_alone ? Form::look
                        : alone && !record.refused_alone            ? Form::plain
                                                                    : Form::script;
      batch = new Batch(shared_from_this(), form);
    }
    batch->records.push_back(&record);
    bytes += record.encoded().size();
    if (batch->form == Form::plain || batch->form == Form::look)
      break;
  }
  if (batch == nullptr)
    return nullptr;
  if (batch->form == Form::look) {
    batch->before = batch->records.front()->id;
  } else if (in_flight_ > 0) {
    batch->before = last_sent_;
  }
  last_sent_ = *batch->records.back()->id;
  newest_sent_ = std::max(newest_sent_, batch->records.back()->number);
  if (batch->form == Form::script)
    note_later(*batch);
  ++in_flight_;
  if (batch->form == Form::run)
    runs_.push_back(batch);
  return batch;
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
