// The whole job, admitted in batches and run by a worker, beside a socket that sends the same calls.
#include "worker_case.hpp"

#include <deque>
#include <thread>
#include <utility>

#include "events/event_text.hpp"
#include "must.hpp"

namespace echomq_bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBatch = 100;
constexpr std::size_t kInFlight = 3;  // batches of the producer
constexpr std::uint32_t kConcurrency = 100;
const std::string kBase = "emq:{bench}:";
const std::string kPayload(100, 'x');

struct Scripts {
  std::string admit, settle_and_take, take, settle;
};

/// What one batch of jobs makes a worker's client send, in order: its admission, the exchange that settles an earlier
/// batch and takes this one, and the events of what was settled.
class Floor {
 public:
  Floor(Bed& bed, Scripts scripts, bool with_events)
      : bed_(bed), scripts_(std::move(scripts)), with_events_(with_events) {
    for (const char* type : {"pending", "schedule", "ring", "paused", "glimit", "gactive", "wake", "parked"})
      admit_keys_.push_back(kBase + type);
  }

  [[nodiscard]] std::size_t calls_of_a_batch() const { return with_events_ ? 2 + kBatch : 2; }

  /// `lag`: a batch is settled by the exchange so many later, when the socket has its answer.
  [[nodiscard]] std::vector<std::string> requests(std::size_t jobs, std::size_t lag) {
    std::vector<std::vector<std::string>> batches;
    for (std::size_t at = 0; at < jobs; at += kBatch) {
      std::vector<std::string>& ids = batches.emplace_back();
      for (std::size_t i = 0; i < kBatch; ++i)
        ids.emplace_back(must(bed_.minter().next("JOB")).text());
    }
    std::vector<std::string> out;
    for (std::size_t at = 0; at < batches.size() + lag; ++at) {
      if (at < batches.size())
        out.push_back(admission(batches[at]));
      const std::vector<std::string>* ended = at >= lag ? &batches[at - lag] : nullptr;
      out.push_back(exchange(ended, at < batches.size(), at % 2 == 0));
      if (ended != nullptr && with_events_)
        publish(*ended, out);
    }
    return out;
  }

 private:
  [[nodiscard]] std::string admission(const std::vector<std::string>& ids) const {
    std::vector<std::string_view> parts = {"EVALSHA", scripts_.admit, "8"};
    parts.insert(parts.end(), admit_keys_.begin(), admit_keys_.end());
    parts.insert(parts.end(), {kBase, "", "", ""});
    for (const std::string& id : ids)
      parts.insert(parts.end(), {id, kPayload});
    return encode(parts);
  }

  [[nodiscard]] std::string exchange(const std::vector<std::string>* ended, bool takes, bool flat_first) const {
    const std::string pending = kBase + "pending";
    const std::string active = kBase + "active";
    const std::string& script = !takes ? scripts_.settle : ended != nullptr ? scripts_.settle_and_take : scripts_.take;
    std::vector<std::string_view> parts = {"EVALSHA", script, "2", pending, active, kBase};
    if (takes)
      parts.insert(parts.end(), {"100", "15000", flat_first ? "fl" : "lf"});
    if (ended != nullptr) {
      for (const std::string& id : *ended)
        parts.insert(parts.end(), {id, "1", "d"});
    }
    return encode(parts);
  }

  static void publish(const std::vector<std::string>& ended, std::vector<std::string>& out) {
    const std::string channel = kBase + "events";
    for (const std::string& id : ended) {
      std::string message;
      echomq::events::append_event(message, "completed", must(echomq::JobId::parse(id)), {});
      const std::string_view parts[] = {"PUBLISH", channel, message};
      out.push_back(encode(parts));
    }
  }

  Bed& bed_;
  const Scripts scripts_;
  const bool with_events_;
  std::vector<std::string> admit_keys_;
};

/// Somebody who hears the events and throws them away: without one a worker would send none.
class Listener {
 public:
  explicit Listener(const std::string& path) : socket_(path) {
    const std::string channel = kBase + "events";
    const std::string_view parts[] = {"SUBSCRIBE", channel};
    (void)socket_.command(parts);
    reader_ = std::thread([this] { socket_.drain(); });
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    socket_.shut();
    reader_.join();
  }

 private:
  RawSocket socket_;
  std::thread reader_;
};

/// What one side of the case has for the run that comes next.
struct Prepared {
  std::optional<Listener> listener;
  std::vector<std::string> requests;
  std::optional<echomq::Worker> worker;
};

}  // namespace

void wait_parked(Bed& bed) {
  const std::string key = kBase + "parked";
  const std::string_view parts[] = {"ZCARD", key};
  while (bed.control().command(parts) != ":1\r\n")
    std::this_thread::sleep_for(100us);
}

void admit_by(const echomq::Queue& queue, std::size_t jobs, std::size_t batch) {
  const std::vector<echomq::NewJob> fresh(batch, echomq::NewJob{kPayload, std::nullopt});
  std::deque<echomq::Reply<std::vector<echomq::Result<echomq::Admission>>>> window;
  const auto take_one = [&] {
    for (auto& verdict : must(window.front().get()))
      (void)must(std::move(verdict));
    window.pop_front();
  };
  for (std::size_t at = 0; at < jobs; at += batch) {
    window.push_back(queue.enqueue_many(fresh));
    if (window.size() >= kInFlight)
      take_one();
  }
  while (!window.empty())
    take_one();
}

void wait_completed(const echomq::Worker& worker, std::size_t jobs) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (worker.stats().completed < jobs) {
    if (std::chrono::steady_clock::now() > until)
      give_up("the worker has not completed its jobs in a minute");
    std::this_thread::sleep_for(200us);
  }
}

Case make_worker_case(Bed& bed, double scale, bool with_events) {
  Case whole;
  whole.name = with_events ? "worker, whole job, with events" : "worker, whole job";
  whole.must_be = 0.9;
  whole.jobs = std::max<std::size_t>(static_cast<std::size_t>(150 * scale), 30) * kBatch;
  whole.more_pairs = 5;
  whole.windows = {2, 3, 4};  // batches in flight
  auto floor = std::make_shared<Floor>(
      bed, Scripts{bed.load("admit"), bed.load("settle_and_take"), bed.load("take"), bed.load("settle")}, with_events);
  auto prepared = std::make_shared<Prepared>();
  whole.prepare = [&bed, prepared, floor, jobs = whole.jobs, with_events](std::size_t batches) {
    prepared->worker.reset();
    if (with_events && !prepared->listener)
      prepared->listener.emplace(bed.path());
    bed.flush();
    prepared->requests = floor->requests(jobs, batches);
  };
  whole.floor = [&bed, prepared, floor](std::size_t batches) {
    bed.floor().run(prepared->requests, batches * floor->calls_of_a_batch());
  };
  whole.prepare_contender = [&bed, prepared, with_events] {
    bed.flush();
    const auto events = with_events ? echomq::WorkerEvents::settled : echomq::WorkerEvents::nothing;
    prepared->worker.emplace(must(echomq::Worker::start(bed.queue(), [](echomq::Job&) { return echomq::Done(); },
                                                        {.concurrency = kConcurrency, .events = events})));
    wait_parked(bed);
  };
  whole.contender = [&bed, prepared, jobs = whole.jobs] {
    admit_by(bed.queue(), jobs, kBatch);
    wait_completed(*prepared->worker, jobs);
  };
  whole.clean = [prepared] {
    prepared->worker.reset();
    prepared->listener.reset();
  };
  return whole;
}

}  // namespace echomq_bench
