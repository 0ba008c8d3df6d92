// The control thread's mailbox.
#include "worker/inbox.hpp"

#include <algorithm>
#include <utility>

#include "result/futex.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

// The box may be gone as soon as its lock is: only the address of the word is used.
void Inbox::wake() { detail::WakeLater::wake(asleep_); }

bool Inbox::empty() const {
  return mail_.answers.empty() && mail_.ended.size() < awaited_ && mail_.wakes == 0 && mail_.cancels.empty() &&
         !mail_.armed && !mail_.stop_by;
}

void Inbox::post(Continuation continuation) {
  bool sleeps = false;
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
    if (!closed) {
      mail_.answers.push_back(continuation);
      sleeps = rouse();
    }
  }
  if (closed)
    return continuation();  // may drop the last reference to this box
  if (sleeps)
    wake();
}

template <typename Put>
void Inbox::put(Put put) {
  bool sleeps = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_)
      return;
    sleeps = put() && rouse();
  }
  if (sleeps)
    wake();
}

void Inbox::ended(std::shared_ptr<JobState> job, Outcome outcome) {
  put([&] {
    mail_.ended.push_back({std::move(job), std::move(outcome)});
    return mail_.ended.size() >= awaited_;
  });
}

void Inbox::woken() {
  put([&] {
    ++mail_.wakes;
    return true;
  });
}

void Inbox::cancel(JobId job) {
  put([&] {
    mail_.cancels.push_back(job);
    return true;
  });
}

void Inbox::armed() {
  put([&] {
    mail_.armed = true;
    return true;
  });
}

void Inbox::stop_by(TimePoint deadline) {
  put([&] {
    mail_.stop_by = mail_.stop_by ? std::min(*mail_.stop_by, deadline) : deadline;
    return true;
  });
}

void Inbox::wait(Mail& mail, TimePoint until, std::size_t ended) {
  mail.answers.clear();
  mail.ended.clear();
  mail.wakes = 0;
  mail.cancels.clear();
  mail.armed = false;
  mail.stop_by.reset();
  std::unique_lock lock(mutex_);
  awaited_ = ended;
  while (empty()) {
    asleep_.store(1, std::memory_order_relaxed);
    lock.unlock();
    const bool in_time = detail::futex_wait(asleep_, 1, until);
    lock.lock();
    if (!in_time)
      break;
  }
  asleep_.store(0, std::memory_order_relaxed);
  std::swap(mail, mail_);
}

Mail Inbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  return std::exchange(mail_, {});
}

bool Inbox::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
