// One tail: its handler, and where it is in each of its streams.
#include "echomq/tail.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "bus/checks.hpp"
#include "bus/state.hpp"
#include "bus/tail_mux.hpp"

namespace echomq {
inline namespace v1 {

using namespace bus;

struct Tail::State : std::enable_shared_from_this<Tail::State> {
  State(TailHandler handle, TailOptions with) : handler(std::move(handle)), options(std::move(with)) {}

  const TailHandler handler;
  const TailOptions options;
  /// Held while the handler runs, so that a stop can wait for it.
  std::recursive_mutex running;
  std::atomic<bool> stopped{false};  // written with running held
  mutable std::mutex mutex;
  std::deque<std::shared_ptr<TailReader>> readers;  // guarded by mutex
  std::deque<std::string> positions;                // guarded by mutex
  std::atomic<std::uint64_t> records{0};
  std::atomic<std::uint64_t> handler_errors{0};
  std::atomic<std::uint64_t> gaps{0};
  std::atomic<std::uint64_t> missed{0};

  [[nodiscard]] Result<void> add(std::span<const TailSource> sources) {
    std::vector<Reply<StreamInfo>> asked;
    for (const TailSource& source : sources) {
      if (!source.behind.empty())
        ECHOMQ_CHECK(check_entry("behind", source.behind));
      asked.push_back(source.behind.empty() || !detail::on_library_thread()
                          ? source.stream.info()
                          : Reply<StreamInfo>(Result<StreamInfo>(StreamInfo())));
    }
    std::vector<std::shared_ptr<TailReader>> fresh;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      ECHOMQ_TRY(const StreamInfo info, asked[i].get());
      const std::string behind = sources[i].behind.empty() ? info.top : sources[i].behind;
      const Stream::State& stream = sources[i].stream.internal();
      auto reader = std::make_shared<TailReader>(sources[i].stream, weak_from_this());
      reader->behind = parse_entry(behind).value_or(EntryNumber{});
      reader->began = reader->behind;
      // How many were added up to its end, the server has said.
      reader->watch = GapWatch(reader->behind, sources[i].behind.empty() ? std::optional(info.appended) : std::nullopt);
      reader->mux = TailMux::of(stream.core, stream.slot);
      reader->place = place_of(behind, reader);
      fresh.push_back(std::move(reader));
    }
    for (const auto& reader : fresh) {
      reader->mux->join(reader);
      if (stopped)
        reader->mux->leave(*reader);  // a stop beside this may not have seen it
    }
    return {};
  }
  [[nodiscard]] std::size_t place_of(const std::string& behind, const std::shared_ptr<TailReader>& reader) {
    const std::lock_guard lock(mutex);
    readers.push_back(reader);
    positions.push_back(behind);
    return positions.size() - 1;
  }

  void stop() {
    {
      const std::lock_guard in_handler(running);
      stopped = true;
    }
    std::deque<std::shared_ptr<TailReader>> leaving;
    {
      const std::lock_guard lock(mutex);
      leaving = readers;
    }
    for (const auto& reader : leaving)
      reader->mux->leave(*reader);
  }
};

namespace bus {

void deliver_to(TailReader& reader, const TailBatch& batch) {
  const std::shared_ptr<Tail::State> tail = reader.tail.lock();
  if (!tail)
    return;
  for (const auto& [number, record] : batch.records) {
    if (number <= reader.behind)
      continue;
    const std::lock_guard in_handler(tail->running);
    if (tail->stopped)
      return;
    reader.behind = number;
    try {
      tail->handler({reader.stream, record});
    } catch (...) {
      tail->handler_errors.fetch_add(1, std::memory_order_relaxed);
    }
    tail->records.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(tail->mutex);
    tail->positions[reader.place] = record.entry;
  }
}

void tell_error(TailReader& reader, const Error& why) {
  const std::shared_ptr<Tail::State> tail = reader.tail.lock();
  if (!tail || !tail->options.on_error)
    return;
  const std::lock_guard in_handler(tail->running);
  if (tail->stopped)
    return;
  try {
    tail->options.on_error(reader.stream, why);
  } catch (...) {
    tail->handler_errors.fetch_add(1, std::memory_order_relaxed);
  }
}

void tell_gap(TailReader& reader, const MissedRecords& gap) {
  const std::shared_ptr<Tail::State> tail = reader.tail.lock();
  // Of before its time: it shares the reading of others.
  if (!tail || (gap.until <= reader.began && !gap.begun_anew))
    return;
  const std::lock_guard in_handler(tail->running);
  if (tail->stopped)
    return;
  tail->gaps.fetch_add(1, std::memory_order_relaxed);
  tail->missed.fetch_add(gap.missed.value_or(0), std::memory_order_relaxed);
  if (!tail->options.on_gap)
    return;
  try {
    tail->options.on_gap(reader.stream, {.missed = gap.missed,
                                         .from = entry_text(gap.from),
                                         .until = entry_text(gap.until),
                                         .begun_anew = gap.begun_anew});
  } catch (...) {
    tail->handler_errors.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace bus

Tail::Tail(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Tail::Tail(Tail&&) noexcept = default;
Tail& Tail::operator=(Tail&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Tail::~Tail() {
  if (state_)
    state_->stop();
}

Result<Tail> Tail::start(std::span<const TailSource> sources, TailHandler handler, TailOptions options) {
  if (!handler)
    return fail(Errc::invalid_argument, "handler must not be empty");
  auto state = std::make_shared<State>(std::move(handler), std::move(options));
  Tail tail(state);
  ECHOMQ_CHECK(state->add(sources));
  return tail;
}

Result<Tail> Tail::start(const Stream& stream, TailHandler handler, std::string behind, TailOptions options) {
  const TailSource source{stream, std::move(behind)};
  return start({&source, 1}, std::move(handler), std::move(options));
}

Result<void> Tail::add(const TailSource& source) { return state_->add({&source, 1}); }
void Tail::stop() { state_->stop(); }

void Tail::tell(const Stream& stream, const Error& error) const {
  struct Told {
    TailReader reader;
    Error error;
    static void run(void* argument) noexcept {
      const std::unique_ptr<Told> told(static_cast<Told*>(argument));
      tell_error(told->reader, told->error);
    }
  };
  stream.internal().core->post(Continuation(&Told::run, new Told{TailReader(stream, state_), error}));
}

std::string Tail::position(std::size_t source) const {
  const std::lock_guard lock(state_->mutex);
  return source < state_->positions.size() ? state_->positions[source] : std::string();
}

TailStats Tail::stats() const {
  return {.records = state_->records.load(std::memory_order_relaxed),
          .handler_errors = state_->handler_errors.load(std::memory_order_relaxed),
          .gaps = state_->gaps.load(std::memory_order_relaxed),
          .missed = state_->missed.load(std::memory_order_relaxed)};
}

}  // namespace v1
}  // namespace echomq
