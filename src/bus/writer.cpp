// Appends to one stream.
#include "bus/writer.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "resp/encode.hpp"
#include "script/registry.hpp"

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
constexpr std::size_t kBatchBytes = std::size_t{512} << 10;
constexpr std::int64_t kLongestPause = 50;
constexpr std::chrono::seconds kForgotten{10};

[[nodiscard]] const script::ScriptSource* append_script() noexcept {
  static const script::ScriptSource* const script = script::find_script("stream_append");
  return script;
}

[[nodiscard]] const script::ScriptSource* publish_script() noexcept {
  static const script::ScriptSource* const script = script::find_script("stream_publish");
  return script;
}

[[nodiscard]] std::int64_t now_ms() {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[nodiscard]] EntryNumber entry_number(const EventId& id) noexcept {
  const auto since = static_cast<std::uint64_t>(id.minted_at().time_since_epoch().count());
  return {since, id.value() & 0x3FFFFF};
}

/// Whether no id of anybody else stands between the two, by their values.
[[nodiscard]] bool follows(std::uint64_t id, std::uint64_t before) noexcept {
  return id == before + 1 && id >> 12 == before >> 12;
}

/// Entry ids of records, of which most have the millisecond of the one before.
class EntryText {
 public:
  /// Valid until the next one.
  [[nodiscard]] std::string_view of(std::uint64_t value) noexcept {
    if (const std::uint64_t milliseconds = value >> 22; milliseconds != milliseconds_) {
      milliseconds_ = milliseconds;
      const auto since = kIdEpoch.time_since_epoch().count() + static_cast<std::int64_t>(milliseconds);
      tail_ = std::to_chars(text_.data(), text_.data() + text_.size(), since).ptr;
      *tail_++ = '-';
    }
    char* const end = std::to_chars(tail_, text_.data() + text_.size(), value & 0x3FFFFF).ptr;
    return {text_.data(), static_cast<std::size_t>(end - text_.data())};
  }

 private:
  std::array<char, 40> text_{};
  char* tail_ = nullptr;
  std::uint64_t milliseconds_ = UINT64_MAX;
};

void write_bulk(std::string& out, std::string_view text) {
  const std::size_t at = out.size();
  out.resize(at + resp::bulk_size(text));
  resp::write_bulk(out.data() + at, text);
}

/// Writers by core and key. A writer takes itself out when its last holder lets go.
struct Registry {
  std::mutex mutex;
  std::map<std::pair<const client::Core*, std::string>, std::weak_ptr<Writer>> writers;  // guarded by mutex

  [[nodiscard]] static Registry& get() {
    static auto* const registry = new Registry;  // lives as long as the process: a late handle may still ask
    return *registry;
  }
};

}  // namespace

void ManyAppends::set(std::size_t index, Result<EventId> result) {
  results_[index] = std::move(result);
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1 && win()) {
    store(std::move(results_));
    publish();
  }
}

WaitingRecord* WaitingRecord::make(std::span<const Field> fields, Milliseconds max_skew,
                                   detail::Clock::time_point deadline) {
  std::size_t size = 0;
  for (const auto& [name, value] : fields)
    size += resp::bulk_size(name) + resp::bulk_size(value);
  void* memory = ::operator new(sizeof(WaitingRecord) + size);
  auto* record = ::new (memory) WaitingRecord;
  char* out = reinterpret_cast<char*>(record + 1);
  record->request = out;
  record->request_size = static_cast<std::uint32_t>(size);
  for (const auto& [name, value] : fields) {
    out = resp::write_bulk(out, name);
    out = resp::write_bulk(out, value);
  }
  record->fields_ = static_cast<std::uint32_t>(fields.size());
  record->max_skew = max_skew;
  record->deadline = deadline;
  return record;
}

void WaitingRecord::destroy() noexcept {
  if (many_ != nullptr)
    many_->release();
  this->~WaitingRecord();
  ::operator delete(static_cast<void*>(this));
}

void WaitingRecord::answer_to(ManyAppends& many, std::size_t index) noexcept {
  many.retain();
  many_ = &many;
  index_ = index;
}

void WaitingRecord::answer_appended() {
  if (many_ != nullptr) {
    many_->set(index_, EventId(*id));
  } else if (win()) {
    store(EventId(*id));
    answered_ = true;
  }
}

void WaitingRecord::tell() {
  if (answered_)
    publish();
  release();
}

void WaitingRecord::settle(Result<EventId> result) {
  if (many_ != nullptr) {
    many_->set(index_, std::move(result));
  } else if (win()) {
    store(std::move(result));
    publish();
  }
  release();
}

/// Some records on their way.
class Writer::Batch final : public detail::Call {
 public:
  enum class Form : std::uint8_t {
    run,     ///< several by an XADD each
    plain,   ///< one record by XADD
    script,  ///< several by `stream_append`
    keyed,   ///< several by `stream_publish`
    look,    ///< `stream_append` without records: whether the one record is there, and what the top is
  };

  Batch(std::shared_ptr<Writer> writer, Form form_of) : form(form_of), writer_(std::move(writer)) {
    slot = writer_->slot_;
    if (form == Form::script || form == Form::look)
      script = append_script();
    if (form == Form::keyed)
      script = publish_script();
  }

  void part(const resp::View& reply) noexcept override {
    if (reply.is_error())
      refusals_.emplace_back(replies_, wire::to_error(reply.error_text()));
    ++replies_;
  }
  void accept(const resp::View& reply) noexcept override {
    if (form == Form::run) {
      part(reply);
      writer_->run_answered(*this);
    } else {
      writer_->answered(*this, reply);
    }
    publish();
  }
  void fail(Error error) noexcept override {
    writer_->failed(*this, error);
    publish();
  }

  /// Encodes the request; `before` is the record that must stand already.
  void encode(std::string_view key, std::optional<EventId> before) {
    reserve(key);
    if (form == Form::run || form == Form::plain) {
      std::string head = "$4\r\nXADD\r\n";
      write_bulk(head, key);
      bytes_.resize_and_overwrite(bytes_.capacity(), [&](char* const begin, std::size_t) {
        char* out = begin;
        EntryText entry;
        for (const WaitingRecord* record : records) {
          out = resp::write_count(out, 3 + record->texts());
          out = std::copy(head.begin(), head.end(), out);
          out = resp::write_bulk(out, entry.of(record->value));
          constexpr std::string_view kId = "$2\r\nid\r\n";
          out = std::copy(kId.begin(), kId.end(), out);
          out = resp::write_bulk(out, record->id->text());
          out = std::copy(record->encoded().begin(), record->encoded().end(), out);
        }
        return out - begin;
      });
      replies = static_cast<std::uint32_t>(records.size());
    } else if (form == Form::keyed) {
      const OnceKey& of = *records.front()->once;
      std::size_t words = 8;
      for (const WaitingRecord* record : records)
        words += 3 + record->texts();
      begin(words);
      for (const std::string_view word : {std::string_view("EVALSHA"), script->sha1, std::string_view("3"), key,
                                          std::string_view(of.keys), std::string_view(of.ages)})
        write_bulk(bytes_, word);
      write_bulk(bytes_, Decimal(of.window.most));
      write_bulk(bytes_, Decimal(of.window.age.count()));
      for (const WaitingRecord* record : records) {
        write_bulk(bytes_, record->once->key);
        add(*record);
      }
    } else {
      std::size_t words = 5;
      if (form == Form::script) {
        for (const WaitingRecord* record : records)
          words += 2 + record->texts();
      }
      begin(words);
      for (const std::string_view word : {std::string_view("EVALSHA"), script->sha1, std::string_view("1"), key})
        write_bulk(bytes_, word);
      write_bulk(bytes_, before ? fmt::format("{} {}", before->entry_id().text(), before->text()) : std::string());
      if (form == Form::script) {
        for (const WaitingRecord* record : records)
          add(*record);
      }
    }
    request = bytes_.data();
    request_size = static_cast<std::uint32_t>(bytes_.size());
  }

  /// What a run's commands were refused with, by record. A run that was sent again elsewhere was answered more than once:
  /// the last answers count.
  [[nodiscard]] std::vector<std::pair<std::size_t, Error>> refusals() {
    const std::size_t stale = replies_ - records.size();
    std::vector<std::pair<std::size_t, Error>> out;
    for (auto& [at, error] : refusals_) {
      if (at >= stale)
        out.emplace_back(at - stale, std::move(error));
    }
    return out;
  }

  const Form form;
  std::vector<WaitingRecord*> records;
  bool submitted = false;  ///< guarded by the writer

 private:
  ~Batch() override = default;
  void destroy() noexcept override { delete this; }

  void reserve(std::string_view key) {
    std::size_t size = 128;
    const std::size_t around = 120 + key.size();
    for (const WaitingRecord* record : records)
      size += record->encoded().size() + around;
    bytes_.reserve(size);
  }
  void begin(std::size_t words) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + resp::count_size(words));
    resp::write_count(bytes_.data() + at, words);
  }
  void add(const WaitingRecord& record) {
    write_bulk(bytes_, record.id->entry_id().text());
    write_bulk(bytes_, Decimal(record.texts()));
    bytes_ += "$2\r\nid\r\n";
    write_bulk(bytes_, record.id->text());
    bytes_ += record.encoded();
  }

  const std::shared_ptr<Writer> writer_;
  std::string bytes_;
  std::vector<std::pair<std::size_t, Error>> refusals_;
  std::size_t replies_ = 0;
};

std::shared_ptr<Writer> Writer::of(const std::shared_ptr<client::Core>& core, const std::string& key,
                                   std::uint16_t slot) {
  Registry& registry = Registry::get();
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
  Registry& registry = Registry::get();
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
  ids_.clear();  // they would be below this one
  ids_used_ = 0;
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
    settled.push_back({&record, fail(Errc::cancelled, "withdrawn before it was written", Repeat::safe)});
    return true;
  }
  if (record.deadline > now)
    return false;
  // One that may have been written before its answer was lost cannot be called unwritten.
  settled.push_back({&record, record.maybe_there ? fail(Errc::outcome_unknown, "the answer was lost", Repeat::unsafe)
                                                 : fail(Errc::timeout, "the deadline passed in the queue of the stream",
                                                        Repeat::safe)});
  return true;
}

/// Ids that follow one another, enough for what waits and for what came of late.
Result<void> Writer::mint_ahead() {
  const std::size_t wanted = std::min<std::size_t>(std::max(ids_wanted_, waiting_.size() + 1), 4096);
  ids_.clear();
  ids_used_ = 0;
  for (std::size_t i = 0; i < wanted; ++i) {
    auto minted = core_->mint("EVT");
    if (!minted) {
      if (ids_.empty())
        return std::unexpected<Error>(std::move(minted).error());
      break;
    }
    const EventId id = EventId::from(*minted).value();
    const std::uint64_t value = id.value();
    if (!ids_.empty() && !follows(value, ids_.back().value)) {
      // The clock has moved on, or somebody else of this process has minted: the longer stretch is taken.
      if (2 * i >= wanted)
        break;
      ids_.clear();
    }
    ids_.push_back({id, value});
  }
  ids_minted_ = detail::Clock::now();
  return {};
}

/// The next id of a run; nothing when it must wait until nothing is in flight.
std::optional<Result<Writer::Minted>> Writer::take_id(bool idle, detail::Clock::time_point now) {
  const bool old = now - ids_minted_ > kRunAge;
  if (idle)
    ids_apart_ = false;
  if (ids_apart_)
    return std::nullopt;
  if (ids_used_ == ids_.size() || old) {
    const bool used_up = ids_used_ == ids_.size();
    if (ids_used_ > 0)
      ids_wanted_ = std::min<std::size_t>(used_up && !idle ? 2 * ids_wanted_ : ids_used_ + ids_used_ / 4, 4096);
    if (auto minted = mint_ahead(); !minted)
      return std::unexpected<Error>(std::move(minted).error());
    if (!idle && !follows(ids_.front().value, last_sent_.value())) {
      ids_apart_ = true;
      return std::nullopt;
    }
  }
  return ids_[ids_used_++];
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
      record.id = (*id)->id;
      record.value = (*id)->value;
      last_sent_ = (*id)->id;
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
  std::optional<EventId> before;
  if (batch->form == Form::look) {
    before = batch->records.front()->id;
  } else if (in_flight_ > 0) {
    before = last_sent_;
  }
  batch->encode(key_, before);
  last_sent_ = *batch->records.back()->id;
  ++in_flight_;
  if (batch->form == Form::run)
    runs_.push_back(batch);
  return batch;
}

void Writer::take_back(Batch& batch, std::size_t from) {
  again_.insert(again_.end(), batch.records.begin() + static_cast<std::ptrdiff_t>(from), batch.records.end());
  batch.records.resize(from);
}

void Writer::answered(Batch& batch, const resp::View& reply) {
  std::vector<Settled> settled;
  {
    const Lock lock(mutex_);
    --in_flight_;
    const bool told = batch.form != Batch::Form::keyed || reply.is_error() || take_ids(batch, reply);
    const bool all = told && !reply.is_error() &&
                     (batch.form == Batch::Form::plain ||
                      (reply.at(0).as_integer() ==
                       (batch.form == Batch::Form::look ? std::int64_t{0} : std::int64_t(batch.records.size()))));
    if (!all) {
      halted_ = true;
      stopped(batch, reply, settled);
    }
  }
  settle_appended(batch);
  settle(settled);
  go_on();
}

/// What is still with the batch was appended.
void Writer::settle_appended(Batch& batch) {
  std::size_t bytes = 0;
  // First all answers, then whoever waits, the first record's waiter last: he is woken once, and finds the others there too.
  for (WaitingRecord* record : batch.records) {
    bytes += record->encoded().size();
    record->answer_appended();
  }
  for (std::size_t i = 1; i < batch.records.size(); ++i)
    batch.records[i]->tell();
  if (!batch.records.empty())
    batch.records.front()->tell();
  release_room(batch.records.size(), bytes);
  batch.records.clear();
}

void Writer::run_answered(Batch& batch) {
  std::vector<Settled> settled;
  {
    const Lock lock(mutex_);
    --in_flight_;
    std::erase(runs_, &batch);
    std::vector<WaitingRecord*> appended;
    std::size_t at = 0;
    const auto stand = [&](std::size_t end) {
      if (at == end)
        return;
      appended.insert(appended.end(), batch.records.begin() + static_cast<std::ptrdiff_t>(at),
                      batch.records.begin() + static_cast<std::ptrdiff_t>(end));
      // What was refused before these was overtaken: by an id that nobody minted, or because it is there already, from
      // before its slot moved to another node. The script tells.
      for (WaitingRecord* record : again_) {
        if (record->number < batch.records[end - 1]->number)
          record->overtaken = record->maybe_there = true;
      }
    };
    for (auto& [index, error] : batch.refusals()) {
      stand(index);
      at = index + 1;
      halted_ = true;
      WaitingRecord* record = batch.records[index];
      if (error.is(Errc::nonmonotonic)) {
        no_runs_until_ = detail::Clock::now() + kForgotten;
        record->refused_alone = true;
        again_.push_back(record);
      } else {
        settled.push_back({record, std::unexpected<Error>(std::move(error))});
      }
    }
    stand(batch.records.size());
    batch.records = std::move(appended);
  }
  settle_appended(batch);
  settle(settled);
  go_on();
}

/// Under which ids the records of a `stream_publish` stand. False: it does not say.
bool Writer::take_ids(Batch& batch, const resp::View& reply) {
  const resp::View ids = reply.at(4);
  if (!ids.is_aggregate() || reply.at(0).as_integer() != static_cast<std::int64_t>(ids.size()) ||
      ids.size() > batch.records.size())
    return false;
  std::size_t at = 0;
  for (const resp::View& text : ids.elements()) {
    const auto id = EventId::parse(text.as_text().value_or(""));
    if (!id)
      return false;
    batch.records[at++]->id = *id;
  }
  return true;
}

void Writer::stopped(Batch& batch, const resp::View& reply, std::vector<Settled>& settled) {
  if (reply.is_error()) {
    Error error = wire::to_error(reply.error_text());
    if (batch.form == Batch::Form::plain && error.is(Errc::nonmonotonic)) {
      // The script tells by how much, and whether it is there already.
      WaitingRecord& record = *batch.records.front();
      record.refused_alone = true;
      record.maybe_there = record.maybe_there || batch.resent;
      return take_back(batch, 0);
    }
    for (WaitingRecord* record : batch.records)
      settled.push_back({record, std::unexpected<Error>(error)});
    batch.records.clear();
    return;
  }
  const auto appended = reply.at(0).as_integer();
  if (!appended || *appended < -1 || *appended >= static_cast<std::int64_t>(batch.records.size())) {
    const Error error = unexpected_reply("append", reply).error();
    for (WaitingRecord* record : batch.records)
      settled.push_back({record, std::unexpected<Error>(error)});
    batch.records.clear();
    return;
  }
  if (*appended == -1 && batch.form == Batch::Form::script) {
    // The record before these is not there (any more). They keep their ids only where they may stand already.
    for (WaitingRecord* record : batch.records) {
      record->maybe_there = record->maybe_there || batch.resent;
      if (!record->maybe_there)
        record->id.reset();
    }
    return take_back(batch, 0);
  }
  refused(batch, static_cast<std::size_t>(std::max<std::int64_t>(*appended, 0)), reply, settled);
}

void Writer::refused(Batch& batch, std::size_t appended, const resp::View& reply, std::vector<Settled>& settled) {
  WaitingRecord* first = batch.records[appended];
  const std::string_view why = reply.at(3).as_text().value_or("");
  const Error error = wire::to_error(why);
  const bool keyed = batch.form == Batch::Form::keyed;
  if ((batch.form == Batch::Form::script || keyed) && !error.is(Errc::nonmonotonic)) {
    settled.push_back({first, std::unexpected<Error>(error)});
    take_back(batch, appended + 1);
    batch.records.pop_back();
    return;
  }
  const EntryNumber top = parse_entry(reply.at(1).as_text().value_or("")).value_or(EntryNumber{});
  const EntryNumber deleted = parse_entry(reply.at(2).as_text().value_or("")).value_or(EntryNumber{});
  // What has a key is found under it.
  if (!keyed && (batch.resent || first->maybe_there) && deleted >= entry_number(*first->id)) {
    settled.push_back({first, fail(Errc::outcome_unknown,
                                   fmt::format("record {} was sent twice and is not on the stream, which was trimmed "
                                               "above it: it may have been appended",
                                               first->id->text()))});
    for (WaitingRecord* record : batch.records)
      record->maybe_there = record->maybe_there || batch.resent;
    take_back(batch, appended + 1);
    batch.records.pop_back();
    return;
  }
  if (first->overtaken) {
    settled.push_back(
        {first, fail(Errc::nonmonotonic,
                     fmt::format("record {} was refused, and later ones of its appender were not: ids that "
                                 "nobody minted stand between them, or the connection was lost",
                                 first->id->text()))});
    batch.records.clear();
    return;
  }
  // None of the rest is there, so all of it gets new ids.
  const std::int64_t ahead = static_cast<std::int64_t>(std::min<std::uint64_t>(top.milliseconds, INT64_MAX)) - now_ms();
  ++first->mints;
  std::vector<WaitingRecord*> rest;
  for (std::size_t i = appended; i < batch.records.size(); ++i) {
    WaitingRecord* record = batch.records[i];
    if (ahead > record->max_skew.count() || (record == first && record->mints > kMostMints)) {
      settled.push_back(
          {record,
           fail(Errc::nonmonotonic,
                fmt::format("the stream's top {}-{} is {}ms ahead of this client's clock (max_skew {}ms, minted "
                            "{} times)",
                            top.milliseconds, top.tail, ahead, record->max_skew.count(),
                            record->mints + (record == first ? 0 : 1)))});
      continue;
    }
    record->id.reset();
    record->refused_alone = false;
    record->maybe_there = false;
    rest.push_back(record);
  }
  batch.records.resize(appended);
  again_.insert(again_.end(), rest.begin(), rest.end());
  if (rest.empty())
    return;
  // A race that was lost gets a wider berth each time.
  const std::int64_t berth = (std::int64_t{1} << (first->mints - 1)) - 1;
  core_->mint_past(UnixMillis(Milliseconds(static_cast<std::int64_t>(top.milliseconds) + berth)));
  // Clocks that are apart stay so, and cost nothing; what hosts have added by taking turns makes them wait.
  const auto now = detail::Clock::now();
  if (ahead < usual_ahead_ || now - last_refusal_ > kForgotten)
    usual_ahead_ = ahead;
  last_refusal_ = now;
  pause_ = Milliseconds(std::min((ahead - usual_ahead_) / 8, kLongestPause));
}

void Writer::go_on() {
  Milliseconds wait{0};
  {
    const Lock lock(mutex_);
    if (paused_)
      return;
    if (in_flight_ == 0)
      wait = std::exchange(pause_, wait);
    paused_ = wait.count() > 0;
  }
  if (wait.count() == 0)
    return pump(Pumped::by_answer);
  core_->after(wait, [self = shared_from_this()] {
    {
      const Lock lock(self->mutex_);
      self->paused_ = false;
    }
    self->pump(Pumped::by_answer);
  });
}

void Writer::failed(Batch& batch, const Error& error) {
  std::vector<Settled> settled;
  std::vector<Batch*> behind;
  {
    const Lock lock(mutex_);
    --in_flight_;
    halted_ = true;
    // The answers of a run are lost: the script tells what became of it. A run behind it that was not written yet must not
    // pass it.
    const bool lost = batch.form == Batch::Form::run && error.is(Errc::outcome_unknown) && !core_->closed();
    const bool called_back = batch.form == Batch::Form::run && error.is(Errc::cancelled);
    std::erase(runs_, &batch);
    if (lost) {
      ++losses_;
      for (Batch* run : runs_) {
        if (!run->submitted)
          continue;  // whoever submits it sees the loss
        run->retain();
        behind.push_back(run);
      }
    }
    const auto now = detail::Clock::now();
    for (WaitingRecord* record : batch.records) {
      if (called_back) {
        record->id.reset();
        again_.push_back(record);
      } else if (lost && record->deadline > now) {
        record->maybe_there = true;
        record->refused_alone = true;
        again_.push_back(record);
      } else {
        settled.push_back({record, std::unexpected<Error>(error)});
      }
    }
    batch.records.clear();
  }
  for (Batch* run : behind) {
    run->cancel();
    run->release();
  }
  settle(settled);
  go_on();
}

void Writer::settle(std::vector<Settled>& settled) {
  if (settled.empty())
    return;
  std::size_t bytes = 0;
  for (Settled& one : settled) {
    bytes += one.record->encoded().size();
    one.record->settle(std::move(one.result));
  }
  release_room(settled.size(), bytes);
  settled.clear();
}

void Writer::release_room(std::size_t records, std::size_t bytes) {
  if (records == 0)
    return;
  const Lock lock(mutex_);
  held_ -= records;
  held_bytes_ -= bytes;
  // Wakes at three quarters of the bound, so that a blocked appender comes back to a stretch of work.
  const ClientOptions& options = core_->options();
  if (held_ < options.max_in_flight - options.max_in_flight / 4 && held_bytes_ < options.max_in_flight_bytes)
    room_.notify_all();
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
