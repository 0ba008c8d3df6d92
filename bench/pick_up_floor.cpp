// The floor of an idle pick-up.
#include "pick_up_floor.hpp"

#include <string_view>
#include <utility>

#include "must.hpp"

namespace echomq_bench {
namespace {

using Clock = std::chrono::steady_clock;

const std::string kBase = "emq:{floor}:";
const std::string kPending = kBase + "pending";
const std::string kActive = kBase + "active";
constexpr std::string_view kLease = "30000";

[[nodiscard]] std::string encode_park(const std::string& script) {
  const std::string ring = kBase + "ring", schedule = kBase + "schedule", parked = kBase + "parked";
  const std::string wake = kBase + "wake", meta = kBase + "meta";
  const std::string_view parts[] = {"EVALSHA", script, "7",  kPending, ring,    schedule,
                                    kActive,   parked, wake, meta,     "floor", "30000"};
  return encode(parts);
}

[[nodiscard]] std::vector<std::string> encode_claim(const std::string& take) {
  const std::string wake = kBase + "wake";
  const std::string_view wait[] = {"BLPOP", wake, "60"};
  // The last moment is one that never comes.
  const std::string_view claim[] = {"EVALSHA", take, "2",    kPending, kActive,
                                    kBase,     "1",  kLease, "fl",     "99999999999999"};
  return {encode(wait), encode(claim)};
}

}  // namespace

PickUpFloor::PickUpFloor(Bed& bed)
    : bed_(bed),
      sender_(bed.path()),
      parked_(bed.path()),
      enqueue_(bed.load("enqueue")),
      settle_and_take_(bed.load("settle_and_take")),
      claim_(encode_claim(bed.load("take"))),
      park_(encode_park(bed.load("park"))),
      thread_([this] { run(); }) {}

PickUpFloor::~PickUpFloor() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PickUpFloor::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return asked_ || closed_; });
    if (closed_)
      return;
    asked_ = false;
    lock.unlock();
    parked_.run(claim_, 4);  // both in one write; both answers are read
    const Clock::time_point now = Clock::now();
    lock.lock();
    claimed_ = now;
    changed_.notify_all();
  }
}

Clock::duration PickUpFloor::sample(const std::function<void()>& pause) {
  const std::string_view nothing_due[] = {"EVALSHA", settle_and_take_, "2", kPending, kActive, kBase,
                                          "1",       kLease,           "fl"};
  (void)sender_.command(nothing_due);
  if (sender_.round_trip(park_) != "*3\r\n:0\r\n:-1\r\n:-1\r\n")
    give_up("floor of the pick-up: its queue is not empty");
  const std::string id(must(bed_.minter().next("JOB")).text());
  const std::string row = kBase + "job:" + id;
  const std::string_view parts[] = {"EVALSHA", enqueue_, "2", row, kPending, id, "x"};
  const std::string enqueue = encode(parts);
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  changed_.notify_all();
  pause();
  const Clock::time_point start = Clock::now();
  (void)sender_.round_trip(enqueue);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return claimed_.has_value(); });
  const Clock::duration took = *std::exchange(claimed_, std::nullopt) - start;
  lock.unlock();
  const std::string_view done[] = {"EVALSHA", settle_and_take_, "2",  kPending, kActive, kBase,
                                   "1",       kLease,           "fl", id,       "1",     "d"};
  if (!sender_.command(done).starts_with("*2\r\n*1\r\n:1\r\n"))
    give_up("floor of the pick-up: its claim gave no job");
  return took;
}

}  // namespace echomq_bench
