// The control thread's mailbox.
#include "worker/inbox.hpp"

#include <algorithm>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace worker {

void Inbox::notify() {
  if (!sleeping_)
    return;
  sleeping_ = false;
  arrived_.notify_one();
}

bool Inbox::empty() const {
  return mail_.answers.empty() && mail_.ended.size() < awaited_ && mail_.wakes == 0 && mail_.cancels.empty() &&
         !mail_.armed && !mail_.stop_by;
}

void Inbox::post(Continuation continuation) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      mail_.answers.push_back(continuation);
      notify();
      return;
    }
  }
  // May drop the last reference to this box, so nothing follows.
  continuation();
}

void Inbox::ended(std::shared_ptr<JobState> job, Outcome outcome) {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return;
  mail_.ended.push_back({std::move(job), std::move(outcome)});
  if (mail_.ended.size() >= awaited_)
    notify();
}

void Inbox::woken() {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return;
  ++mail_.wakes;
  notify();
}

void Inbox::cancel(JobId job) {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return;
  mail_.cancels.push_back(job);
  notify();
}

void Inbox::armed() {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return;
  mail_.armed = true;
  notify();
}

void Inbox::stop_by(TimePoint deadline) {
  const std::lock_guard lock(mutex_);
  if (closed_)
    return;
  mail_.stop_by = mail_.stop_by ? std::min(*mail_.stop_by, deadline) : deadline;
  notify();
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
    sleeping_ = true;
    if (until == TimePoint::max()) {
      arrived_.wait(lock);
    } else if (arrived_.wait_until(lock, until) == std::cv_status::timeout) {
      break;
    }
  }
  sleeping_ = false;
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
