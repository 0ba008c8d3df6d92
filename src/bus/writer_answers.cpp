// What follows the answer of a batch, or its loss: records that stand, that go back to be minted again, that are refused.
#include <fmt/format.h>

#include <algorithm>

#include "bus/writer_batch.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

constexpr std::int64_t kLongestPause = 50;
constexpr std::chrono::seconds kForgotten{10};

[[nodiscard]] std::int64_t now_ms() {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[nodiscard]] EntryNumber entry_number(const EventId& id) noexcept {
  const auto since = static_cast<std::uint64_t>(id.minted_at().time_since_epoch().count());
  return {since, id.value() & 0x3FFFFF};
}

[[nodiscard]] Error passed_by(const WaitingRecord& record) {
  return Error(
      Errc::nonmonotonic,
      fmt::format("record {} was refused, and later ones of its appender were not: ids that nobody minted stand "
                  "between them, or the connection was lost",
                  record.id->text()));
}

}  // namespace

/// A record that may stand from before is not told an error after which it could be appended again.
Error Writer::told_of(const WaitingRecord& record, const Batch& batch, const Error& error) {
  // What has a key is found under it, however often it is appended.
  if ((!record.maybe_there && !batch.resent) || batch.form == Batch::Form::keyed || !record.id ||
      error.is(Errc::outcome_unknown))
    return error;
  return Error(Errc::outcome_unknown,
               fmt::format("record {} was sent twice and may have been appended the first time; the second: {}",
                           record.id->text(), error.text),
               Repeat::unsafe);
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
    if (!batch.none_refused() || !again_.empty())
      sort_out(batch, settled);
  }
  settle_appended(batch);
  settle(settled);
  go_on();
}

/// Leaves with the batch what stands.
void Writer::sort_out(Batch& batch, std::vector<Settled>& settled) {
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
      settled.push_back({record, std::unexpected<Error>(told_of(*record, batch, error))});
    batch.records.clear();
    return;
  }
  const auto appended = reply.at(0).as_integer();
  if (!appended || *appended < -1 || *appended >= static_cast<std::int64_t>(batch.records.size())) {
    const Error error = unexpected_reply("append", reply).error();
    for (WaitingRecord* record : batch.records)
      settled.push_back({record, std::unexpected<Error>(told_of(*record, batch, error))});
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

/// Whether a later record than the refused one stands, from before a loss. What stands is left with the batch, what does not
/// and is before it can be appended no more, and what is behind all of it is minted again.
bool Writer::passed(Batch& batch, std::size_t appended, const resp::View& reply, std::vector<Settled>& settled) {
  if (batch.form != Batch::Form::script)
    return false;
  std::vector<WaitingRecord*> there;
  if (const resp::View places = reply.at(5); places.is_aggregate()) {
    for (const resp::View& one : places.elements()) {
      const auto place = static_cast<std::size_t>(one.as_integer().value_or(0));
      if (place > appended + 1 && place <= batch.records.size())
        there.push_back(batch.records[place - 1]);
    }
  }
  std::uint64_t last = there.empty() ? 0 : there.back()->number;
  if (const auto later = reply.at(6).as_integer(); later && *later > 0 && std::size_t(*later) <= batch.later.size())
    last = std::max(last, batch.later[std::size_t(*later) - 1].number);
  if (last <= batch.records[appended]->number)
    return false;
  auto next = there.begin();
  for (std::size_t i = appended; i < batch.records.size(); ++i) {
    WaitingRecord* record = batch.records[i];
    if (next != there.end() && *next == record) {
      ++next;
    } else if (record->number < last) {
      settled.push_back({record, std::unexpected<Error>(passed_by(*record))});
    } else {
      record->id.reset();
      record->refused_alone = false;
      record->maybe_there = false;
      again_.push_back(record);
    }
  }
  batch.records.resize(appended);
  batch.records.insert(batch.records.end(), there.begin(), there.end());
  return true;
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
  const auto removed = [&](std::size_t at) { return parse_entry(reply.at(at).as_text().value_or("")); };
  const EntryNumber deleted = keyed ? EntryNumber{} : std::max(removed(2), removed(4)).value_or(EntryNumber{});
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
    settled.push_back({first, std::unexpected<Error>(passed_by(*first))});
    batch.records.clear();
    return;
  }
  if (passed(batch, appended, reply, settled))
    return;
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
        record->maybe_there = record->maybe_there || lost;
        note_given_up(*record);
        settled.push_back({record, std::unexpected<Error>(told_of(*record, batch, error))});
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
