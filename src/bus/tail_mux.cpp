// One XREAD for all tails.
#include "bus/tail_mux.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <utility>

#include "bus/records.hpp"
#include "bus/state.hpp"
#include "client/line.hpp"
#include "client/live_core.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

using std::string_view;

/// How long an XREAD waits; and where nobody may wake it, for a stream that comes meanwhile.
constexpr Milliseconds kBlock{5000};
constexpr Milliseconds kShortBlock{200};
/// In a cluster nobody wakes it: CLIENT IDs are of a node, and the line may just be moving to another one.
constexpr Milliseconds kClusterBlock{1000};
constexpr Milliseconds kPoll{100};
constexpr Milliseconds kFirstBackoff{50};
constexpr Milliseconds kLongestBackoff{1000};
constexpr Milliseconds kBroken{500};
/// An XREAD costs the server some microseconds a stream, whatever it finds.
constexpr std::size_t kStreamsAMillisecond = 125;
/// Records of one reply, over all streams.
constexpr std::size_t kMostRecords = 10'000;
constexpr std::uint32_t kPage = 500;
/// An XREAD that CLIENT UNBLOCK does not find is about to come, or has just ended.
constexpr unsigned kMostTries = 20;
/// A stream is looked at for gaps no more often, and so many in one go.
constexpr Milliseconds kLookAgain{1000};
constexpr std::size_t kMostLooks = 500;
constexpr Milliseconds kTryAgain{5};

struct MuxRegistry {
  std::mutex mutex;
  std::map<std::pair<const client::Core*, std::uint32_t>, std::weak_ptr<TailMux>> muxes;  // guarded by mutex

  [[nodiscard]] static MuxRegistry& get() {
    static auto* const registry = new MuxRegistry;  // lives as long as the process: a late handle may still ask
    return *registry;
  }
};

[[nodiscard]] std::vector<EntryNumber> numbers_of(const TailBatch& batch) {
  std::vector<EntryNumber> out;
  out.reserve(batch.records.size());
  for (const auto& [number, record] : batch.records)
    out.push_back(number);
  return out;
}

[[nodiscard]] StreamLook look_of(const StreamInfo& info) {
  return {.added = info.appended,
          .length = info.length,
          .first = parse_entry(info.first),
          .top = parse_entry(info.top).value_or(EntryNumber{})};
}

/// The server is held up by a script: that says nothing of what was asked.
[[nodiscard]] bool is_busy(const Error& error) {
  return error.is(Errc::server_error) && error.text.starts_with("BUSY");
}
/// Whether it is the stream that cannot be read, and not the server for the moment.
[[nodiscard]] bool is_broken(const Error& error) {
  return error.is(Errc::no_permission) || (error.is(Errc::server_error) && error.text.starts_with("WRONGTYPE"));
}

}  // namespace

std::shared_ptr<TailMux> TailMux::of(const std::shared_ptr<client::Core>& core, std::uint16_t slot) {
  const auto* live = dynamic_cast<const client::LiveCore*>(core.get());
  // A command reads streams of one slot only, whatever node they are on.
  const std::uint32_t of_slot = live != nullptr && live->in_cluster() ? slot : detail::Call::kAnySlot;
  MuxRegistry& registry = MuxRegistry::get();
  const std::lock_guard lock(registry.mutex);
  std::weak_ptr<TailMux>& known = registry.muxes[{core.get(), of_slot}];
  std::shared_ptr<TailMux> mux = known.lock();
  if (!mux) {
    mux.reset(new TailMux(core, of_slot));
    known = mux;
  }
  return mux;
}

TailMux::TailMux(std::shared_ptr<client::Core> core, std::uint32_t slot) : core_(std::move(core)), slot_(slot) {}

TailMux::~TailMux() {
  MuxRegistry& registry = MuxRegistry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.muxes.find({core_.get(), slot_});
  if (found != registry.muxes.end() && found->second.expired())
    registry.muxes.erase(found);
}

void TailMux::join(const std::shared_ptr<TailReader>& reader) {
  Lock lock(mutex_);
  if (reader->left)
    return;
  const auto [found, fresh] = followed_.try_emplace(reader->stream.internal().key, reader->behind, reader->watch);
  Followed& followed = found->second;
  if (fresh && !followed.watch.counts())
    to_look_.insert(found->first);
  reader->joined = fresh || reader->behind >= followed.cursor;
  if (reader->joined) {
    followed.readers.push_back(reader);
  } else {
    lock.unlock();
    return catch_up(reader);
  }
  if (!fresh)
    return;
  if (!running_)
    return go_on(lock);
  wake(lock);
}

void TailMux::leave(TailReader& reader) {
  const Lock lock(mutex_);
  reader.left = true;
  const auto found = followed_.find(reader.stream.internal().key);
  if (found == followed_.end())
    return;
  std::erase_if(found->second.readers, [&](const auto& one) { return one.get() == &reader; });
  if (found->second.readers.empty()) {
    to_look_.erase(found->first);
    followed_.erase(found);
  }
  if (followed_.empty() && line_) {
    // What waits on it ends, and with it the round.
    line_->close();
    line_.reset();
    connection_ = 0;
  }
}

void TailMux::go_on(Lock& lock) {
  if (followed_.empty()) {
    running_ = false;
    return;
  }
  running_ = true;
  const auto now = detail::Clock::now();
  const auto wait = std::chrono::floor<Milliseconds>(not_before_ - now);
  if (wait.count() <= 0)
    return ask(lock);
  lock.unlock();
  resume_later(wait);
}

void TailMux::resume() {
  {
    const Lock lock(mutex_);
    not_before_ = {};
  }
  look_for_gaps();
}

std::unique_ptr<client::Line> TailMux::make_line() {
  std::unique_ptr<client::Line> line = core_->line(slot_);
  if (auto* told = dynamic_cast<client::ToldLine*>(line.get())) {
    told->when_live([weak = weak_from_this()](std::int64_t connection) {
      if (const auto self = weak.lock())
        self->connected(connection);
    });
  }
  return line;
}

/// What came while the connection was lost, and has gone, no XREAD tells of: the one that waits ends, and all are looked at.
void TailMux::connected(std::int64_t connection) {
  Lock lock(mutex_);
  if (!std::exchange(was_connected_, true))
    return;
  connection_ = slot_ == detail::Call::kAnySlot ? connection : 0;
  anew_ = true;
  for (auto& [key, followed] : followed_) {
    followed.looked = {};
    to_look_.insert(key);
  }
  wake(lock);
}

void TailMux::resume_later(Milliseconds wait) {
  if (core_->closed()) {
    Lock lock(mutex_);
    return failed(lock, Error(Errc::client_closed, "the client is closed", Repeat::safe));
  }
  core_->after(wait, [self = shared_from_this()] { self->resume(); });
}

Result<TailMux::Parts> TailMux::read_parts(const resp::View& reply) {
  Parts parts;
  if (reply.is_null())
    return parts;
  if (!reply.is_aggregate())
    return unexpected_reply("tail", reply);
  for (const auto& [stream, entries] : reply.pairs()) {
    auto key = stream.copy_text();
    if (!key || !entries.is_aggregate())
      return unexpected_reply("tail", reply);
    Part part{.key = *std::move(key), .batch = {}};
    part.batch.records.reserve(entries.size());
    for (const resp::View& entry : entries.elements()) {
      ECHOMQ_TRY(Record record, read_record("tail", entry));
      const auto number = parse_entry(record.entry);
      if (!number)
        return unexpected_reply("tail", entry);
      part.batch.records.emplace_back(*number, std::move(record));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void TailMux::ask(Lock& lock) {
  if (!line_) {
    was_connected_ = false;
    lock.unlock();
    std::shared_ptr<client::Line> line = make_line();
    lock.lock();
    if (followed_.empty()) {
      running_ = false;
      return;
    }
    line_ = std::move(line);
    connection_ = 0;
  }
  if (anew_) {
    lock.unlock();
    return look_for_gaps();
  }
  std::vector<std::string> cursors;
  std::vector<const std::string*> keys;
  for (auto& [key, followed] : followed_) {
    followed.asked = !followed.broken;
    if (!followed.asked)
      continue;
    keys.push_back(&key);
    cursors.push_back(entry_text(followed.cursor));
  }
  if (keys.empty()) {
    // Whatever can be read again starts a new round.
    running_ = false;
    return;
  }
  const Decimal count(std::clamp<std::size_t>(kMostRecords / keys.size(), 10, 1000));
  const bool in_cluster = slot_ != detail::Call::kAnySlot;
  const Milliseconds block = in_cluster ? kClusterBlock : can_unblock_ ? kBlock : kShortBlock;
  const Decimal block_text(block.count());
  const std::shared_ptr<client::Line> line = std::exchange(beside_, false) ? nullptr : line_;
  if (!line && keys.size() > 1)
    return ask_each(lock, keys, cursors);
  std::vector<string_view> words = {"XREAD", "COUNT", count};
  if (line)
    words.insert(words.end(), {"BLOCK", block_text});
  words.push_back("STREAMS");
  for (const std::string* key : keys)
    words.push_back(*key);
  words.insert(words.end(), cursors.begin(), cursors.end());
  auto decode = [](const wire::Answer& answer) { return read_parts(answer.view); };
  auto* call = wire::BoundCall<Parts, decltype(decode)>::make(words, decode);
  call->slot = slot_;
  call->retain();
  detail::CallPointer<detail::CallOf<Parts>> mine(call);
  wanted_ = false;
  blocked_ = line != nullptr;
  ++round_;
  tries_ = 0;
  const auto paced = Milliseconds(static_cast<std::int64_t>(keys.size() / kStreamsAMillisecond));
  not_before_ = detail::Clock::now() + (line ? paced : kPoll);
  const bool introduce = line && connection_ == 0 && can_unblock_ && !in_cluster;
  lock.unlock();
  if (introduce) {
    auto decode_id = [](const wire::Answer& answer) -> Result<std::int64_t> {
      const auto id = answer.view.as_integer();
      if (!id)
        return unexpected_reply("CLIENT ID", answer.view);
      return *id;
    };
    auto* ask_id = wire::BoundCall<std::int64_t, decltype(decode_id)>::make(
        parts(string_view("CLIENT"), string_view("ID")), decode_id);
    ask_id->slot = slot_;
    ask_id->retain();
    detail::CallPointer<detail::CallOf<std::int64_t>> id(ask_id);
    line->submit(ask_id, settings(Repeat::unsafe));
    Reply<std::int64_t>(std::move(id)).then([self = shared_from_this()](Result<std::int64_t> answer) {
      Lock inner(self->mutex_);
      self->connection_ = answer.value_or(0);
      if (self->wanted_)
        self->wake(inner);
    });
  }
  if (line) {
    line->submit(call, settings(Repeat::unsafe, block + Milliseconds(5000)));
  } else {
    core_->submit(call, settings(Repeat::safe));
  }
  Reply<Parts>(std::move(mine)).then([self = shared_from_this()](Result<Parts> parts) {
    self->arrived(std::move(parts));
  });
}

/// Each by a command of its own. While their slot is on its way streams may be on two nodes, and one that does not exist counts as
/// gone: a read of several is refused until the slot has moved.
void TailMux::ask_each(Lock& lock, const std::vector<const std::string*>& keys,
                       const std::vector<std::string>& cursors) {
  struct All {
    std::mutex mutex;
    Parts parts;
    std::optional<Error> error;
    std::size_t left = 0;
  };
  auto all = std::make_shared<All>();
  all->left = keys.size();
  const Decimal count(std::clamp<std::size_t>(kMostRecords / keys.size(), 10, 1000));
  std::vector<std::string> names;
  for (const std::string* key : keys)
    names.push_back(*key);
  wanted_ = false;
  blocked_ = false;
  tries_ = 0;
  not_before_ = detail::Clock::now() + kPoll;
  lock.unlock();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const string_view words[] = {"XREAD", "COUNT", count, "STREAMS", names[i], cursors[i]};
    core_
        ->command<Parts>(words, settings(Repeat::safe),
                         [](const wire::Answer& answer) { return read_parts(answer.view); })
        .then([self = shared_from_this(), all](Result<Parts> parts) {
          {
            const std::lock_guard guard(all->mutex);
            if (parts) {
              std::ranges::move(*parts, std::back_inserter(all->parts));
            } else {
              all->error = std::move(parts).error();
            }
            if (--all->left > 0)
              return;
          }
          if (!all->error)
            return self->arrived(std::move(all->parts));
          self->deliver(all->parts);
          Lock inner(self->mutex_);
          self->failed(inner, *all->error);
        });
  }
}

void TailMux::arrived(Result<Parts> parts) {
  if (parts) {
    deliver(*parts);
    {
      const Lock lock(mutex_);
      blocked_ = false;
      backoff_ = Milliseconds(0);
    }
    return look_for_gaps();
  }
  Lock lock(mutex_);
  failed(lock, parts.error());
}

void TailMux::deliver(const Parts& parts) {
  struct Told {
    std::vector<std::shared_ptr<TailReader>> readers;
    std::optional<MissedRecords> gap;
  };
  std::vector<Told> told(parts.size());
  {
    const Lock lock(mutex_);
    blocked_ = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto found = followed_.find(parts[i].key);
      if (found == followed_.end() || parts[i].batch.records.empty())
        continue;
      Followed& followed = found->second;
      // Of one that has left and come again meanwhile the XREAD was asked behind another cursor: between the two may be records.
      if (!followed.asked)
        continue;
      told[i].gap = followed.watch.read(numbers_of(parts[i].batch));
      followed.cursor = std::max(followed.cursor, parts[i].batch.records.back().first);
      followed.reached = std::max(followed.reached, parts[i].batch.records.back().first);
      told[i].readers = followed.readers;
      to_look_.insert(found->first);
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto& reader : told[i].readers) {
      if (told[i].gap)
        tell_gap(*reader, *told[i].gap);
      deliver_to(*reader, parts[i].batch);
    }
  }
}

void TailMux::look_for_gaps() {
  Lock lock(mutex_);
  const auto now = detail::Clock::now();
  std::vector<std::pair<std::string, Stream>> due;
  for (auto key = to_look_.begin(); key != to_look_.end() && due.size() < kMostLooks;) {
    const auto found = followed_.find(*key);
    // While its place is not known, each read is looked behind.
    const bool wanted = found != followed_.end() && !found->second.broken && !found->second.readers.empty();
    if (wanted && found->second.watch.counts() && now - found->second.looked < kLookAgain) {
      ++key;
      continue;
    }
    if (wanted) {
      found->second.looked = now;
      due.emplace_back(*key, found->second.readers.front()->stream);
    }
    key = to_look_.erase(key);
  }
  anew_ = anew_ && due.size() == kMostLooks;
  if (due.empty() || core_->closed())
    return go_on(lock);
  lock.unlock();
  // Nothing is read meanwhile: what the looks say is of the cursors that there are.
  auto left = std::make_shared<std::atomic<std::size_t>>(due.size());
  for (const auto& [of, stream] : due) {
    stream.info().then([self = shared_from_this(), left, key = of](Result<StreamInfo> info) {
      std::vector<std::shared_ptr<TailReader>> readers;
      std::optional<MissedRecords> gap;
      {
        const Lock inner(self->mutex_);
        const auto found = self->followed_.find(key);
        if (info && found != self->followed_.end()) {
          gap = found->second.watch.looked(look_of(*info));
          if (gap)
            readers = found->second.readers;
        } else if (!info && found != self->followed_.end()) {
          self->to_look_.insert(key);
        }
      }
      for (const auto& reader : readers)
        tell_gap(*reader, *gap);
      if (left->fetch_sub(1) == 1) {
        Lock inner(self->mutex_);
        self->go_on(inner);
      }
    });
  }
}

void TailMux::failed(Lock& lock, const Error& error) {
  connection_ = 0;
  const bool blocked = std::exchange(blocked_, false);
  if (core_->closed()) {
    running_ = false;
    std::vector<std::shared_ptr<TailReader>> all;
    for (const auto& [key, followed] : followed_)
      all.insert(all.end(), followed.readers.begin(), followed.readers.end());
    lock.unlock();
    return tell(all, Error(Errc::client_closed, "the client is closed", Repeat::safe));
  }
  if (followed_.empty())  // the line was closed when its last stream had left
    return go_on(lock);
  const bool transport = error.is(Errc::outcome_unknown) || error.is(Errc::unreachable) || error.is(Errc::timeout) ||
                         error.is(Errc::disconnected) || error.is(Errc::loading) || error.is(Errc::client_closed);
  backoff_ = std::clamp(2 * backoff_, kFirstBackoff, kLongestBackoff);
  const Milliseconds wait = backoff_;
  beside_ = blocked && error.is(Errc::moved);
  // Whatever came and went while nobody was there.
  for (auto& [key, followed] : followed_) {
    followed.looked = {};
    to_look_.insert(key);
  }
  const bool beside = beside_;
  lock.unlock();
  if (transport || beside)
    return resume_later(wait);
  // One stream that cannot be read must not hold the others up.
  look_for_broken(wait);
}

/// Asks for the length of each; goes on when all have answered.
void TailMux::look_for_broken(Milliseconds wait) {
  std::vector<std::pair<std::string, Stream>> streams;
  {
    const Lock lock(mutex_);
    for (const auto& [key, followed] : followed_) {
      if (followed.asked && !followed.readers.empty())
        streams.emplace_back(key, followed.readers.front()->stream);
    }
  }
  auto left = std::make_shared<std::atomic<std::size_t>>(streams.size() + 1);
  const auto done = [self = shared_from_this(), left, wait] {
    if (left->fetch_sub(1) == 1)
      self->resume_later(wait);
  };
  for (const auto& waiting : streams) {
    waiting.second.length().then(
        [self = shared_from_this(), key = waiting.first, stream = waiting.second, done](Result<std::uint64_t> length) {
          if (!length && is_broken(length.error())) {
            std::vector<std::shared_ptr<TailReader>> readers;
            {
              const Lock lock(self->mutex_);
              if (const auto found = self->followed_.find(key); found != self->followed_.end()) {
                found->second.broken = true;
                readers = found->second.readers;
              }
            }
            self->tell(readers, length.error());
            if (!readers.empty())
              self->look_again(key, stream);
          }
          done();
        });
  }
  done();
}

void TailMux::look_again(const std::string& key, const Stream& stream) {
  if (core_->closed())
    return;
  core_->after(kBroken, [self = shared_from_this(), key, stream] {
    if (self->core_->closed())
      return;
    stream.length().then([self, key, stream](Result<std::uint64_t> length) {
      Lock lock(self->mutex_);
      const auto found = self->followed_.find(key);
      if (found == self->followed_.end() || !found->second.broken)
        return;
      if (!length) {
        lock.unlock();
        return self->look_again(key, stream);
      }
      found->second.broken = false;
      if (!self->running_)
        return self->go_on(lock);
      self->wake(lock);
    });
  });
}

void TailMux::wake(Lock& lock) {
  wanted_ = true;
  if (!blocked_ || waking_ || connection_ == 0 || !can_unblock_)
    return;
  waking_ = true;
  const std::uint64_t of = round_;
  const std::string id = std::to_string(connection_);
  lock.unlock();
  auto decode = [](const wire::Answer& answer) -> Result<std::int64_t> {
    const auto found = answer.view.as_integer();
    if (!found)
      return unexpected_reply("CLIENT UNBLOCK", answer.view);
    return *found;
  };
  auto* call = wire::BoundCall<std::int64_t, decltype(decode)>::make(
      parts(string_view("CLIENT"), string_view("UNBLOCK"), id), decode);
  call->slot = slot_;
  call->retain();
  detail::CallPointer<detail::CallOf<std::int64_t>> mine(call);
  wire::CallSettings how = settings(Repeat::safe);
  how.past_bound = true;
  core_->submit(call, how);
  Reply<std::int64_t>(std::move(mine)).then([self = shared_from_this(), of](Result<std::int64_t> found) {
    Lock inner(self->mutex_);
    self->waking_ = false;
    const bool refused = !found && (found.error().is(Errc::no_permission) || found.error().is(Errc::server_error));
    if (refused && !is_busy(found.error()))
      self->can_unblock_ = false;
    if (!self->wanted_ || !self->blocked_ || self->core_->closed())
      return;
    // A stream that came since the next one was asked left it to this answer to wake that.
    if (self->round_ != of)
      return self->wake(inner);
    if (found.value_or(0) != 0 || ++self->tries_ > kMostTries)
      return;
    inner.unlock();
    self->core_->after(kTryAgain, [self] { self->wake_again(); });
  });
}

void TailMux::wake_again() {
  Lock lock(mutex_);
  if (wanted_)
    wake(lock);
}

void TailMux::catch_up(const std::shared_ptr<TailReader>& reader) {
  EntryNumber noted;
  {
    const Lock lock(mutex_);
    const auto found = followed_.find(reader->stream.internal().key);
    if (found != followed_.end())
      noted = found->second.reached;
  }
  // The look is behind the page, on the same connection.
  struct Both {
    std::optional<Result<Page>> page;
    std::optional<Result<StreamInfo>> info;
    std::atomic<int> left{2};
  };
  auto both = std::make_shared<Both>();
  const auto arrived = [self = shared_from_this(), reader, both, noted] {
    if (both->left.fetch_sub(1) == 1)
      self->caught_up(reader, *std::move(both->page), *both->info, noted);
  };
  Reply<Page> page = reader->stream.read("(" + entry_text(reader->behind), "+", {.count = kPage});
  Reply<StreamInfo> info = reader->stream.info();
  std::move(page).then([both, arrived](Result<Page> answer) {
    both->page = std::move(answer);
    arrived();
  });
  std::move(info).then([both, arrived](Result<StreamInfo> answer) {
    both->info = std::move(answer);
    arrived();
  });
}

/// `noted`: where the stream's top had been before the page was read.
void TailMux::caught_up(const std::shared_ptr<TailReader>& reader, Result<Page> page, const Result<StreamInfo>& info,
                        EntryNumber noted) {
  if (!page) {
    if (core_->closed())
      return tell({reader}, Error(Errc::client_closed, "the client is closed", Repeat::safe));
    bool told = false;
    {
      const Lock lock(mutex_);
      if (reader->left)
        return;
      const bool broken = is_broken(page.error());
      told = broken && !std::exchange(reader->told, broken);
    }
    if (told)
      tell({reader}, page.error());
    return core_->after(reader->told ? kBroken : kFirstBackoff * 4,
                        [self = shared_from_this(), reader] { self->catch_up(reader); });
  }
  reader->told = false;
  TailBatch batch;
  for (Record& record : page->records) {
    if (const auto number = parse_entry(record.entry))
      batch.records.emplace_back(*number, std::move(record));
  }
  // What is missing is told before what is there.
  const std::optional<MissedRecords> gaps[] = {
      reader->watch.read(numbers_of(batch)),
      info ? reader->watch.looked(look_of(*info)) : std::nullopt,
  };
  for (const auto& gap : gaps) {
    if (gap)
      tell_gap(*reader, *gap);
  }
  deliver_to(*reader, batch);
  {
    Lock lock(mutex_);
    if (reader->left)
      return;
    if (!page->rest) {
      // What stands up to there was in the page.
      reader->behind = std::max(reader->behind, noted);
      const auto [found, fresh] = followed_.try_emplace(reader->stream.internal().key, reader->behind, reader->watch);
      // What the others were handed since this page was read is not in it.
      if (reader->behind >= found->second.cursor) {
        reader->joined = true;
        found->second.readers.push_back(reader);
        if (!fresh)
          return;
        if (!running_)
          return go_on(lock);
        return wake(lock);
      }
      if (found->second.cursor > found->second.reached) {
        // The others were told to begin there: behind records that have gone, or where the stream has not come yet.
        const auto top = info ? parse_entry(info->top) : std::nullopt;
        if (!top || *top < found->second.cursor) {
          lock.unlock();
          return core_->after(kBroken, [self = shared_from_this(), reader] { self->catch_up(reader); });
        }
        found->second.reached = found->second.cursor;
      }
    }
  }
  catch_up(reader);
}

void TailMux::tell(const std::vector<std::shared_ptr<TailReader>>& readers, const Error& why) {
  for (const auto& reader : readers)
    tell_error(*reader, why);
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
