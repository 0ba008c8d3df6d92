// Several requests that follow from each other, one answer: for verbs that must see one answer before they can ask the
// next question, and for those whose script does a bounded bite of the work, so that the host asks until it is done.
//
// A verb of this kind asks (any number of requests, of which a bounded number is on the way at a time), hears each
// answer, and, whenever nothing is left on the way, either asks again or concludes. Nothing blocks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "client/core.hpp"
#include "echomq/detail/call.hpp"
#include "echomq/reply.hpp"
#include "queue/arguments.hpp"
#include "queue/checks.hpp"
#include "resp/encode.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Where questions are put, from within `heard` and `go_on` of a conversation. `tag` comes back with the answer.
class Asker {
 public:
  virtual void ask(std::size_t tag, std::span<const std::string_view> parts, const script::ScriptSource* of_script,
                   Repeat again) = 0;
  void ask(std::size_t tag, const script::ScriptSource& of_script, std::span<const std::string_view> keys,
           std::span<const std::string_view> arguments, Repeat again) {
    const ScriptParts parts(of_script, keys, arguments);
    ask(tag, parts.parts(), &of_script, again);
  }

 protected:
  ~Asker() = default;
};

/// Whether a request keeps to the client's in-flight bound, or goes out all the same. The latter is for what costs a lease otherwise, and
/// for what follows from an answer: whoever brings that may be the only one who reads, and must not wait for room.
enum class Bound : std::uint8_t { kept, passed };

/// Never on the wire itself: its requests are, each of which holds a reference. `heard` and `go_on` run one at a time,
/// on whatever thread brings the answers, with the conversation's lock held: they must not block.
template <typename T>
class Conversation : public detail::CallOf<T>, protected Asker {
 public:
  /// Sends what `go_on` asks first. The maker's reference becomes the reply's.
  [[nodiscard]] Reply<T> begin() {
    detail::CallPointer<detail::CallOf<T>> mine(this);
    turn(bound_);
    return Reply<T>(std::move(mine));
  }
  void accept(const resp::View&) noexcept override {}

 protected:
  /// Requests on the way at a time.
  static constexpr std::size_t kWindow = 256;

  /// `limit` is the deadline of the whole; without one each request has the client's.
  Conversation(const client::Core& core, std::optional<Milliseconds> limit, Bound bound = Bound::kept)
      : core_(std::const_pointer_cast<client::Core>(core.shared_from_this())), bound_(bound) {
    if (limit)
      until_ = detail::Clock::now() + std::min<Milliseconds>(*limit, std::chrono::days{365});
  }
  ~Conversation() override = default;
  void destroy() noexcept override { delete this; }

  /// One answer. `sent_twice`: this may be what the second execution said.
  virtual void heard(std::size_t tag, Result<Value> answer, bool sent_twice) = 0;
  /// Everything asked is answered: asks again and gives nothing, or concludes.
  [[nodiscard]] virtual std::optional<Result<T>> go_on() = 0;

  using Asker::ask;
  void ask(std::size_t tag, std::span<const std::string_view> parts, const script::ScriptSource* of_script,
           Repeat again) final {
    Request* asked = Request::make(*this, tag, parts);
    asked->script = of_script;
    waiting_.emplace_back(asked, again);
  }

 private:
  class Request final : public detail::Call {
   public:
    static Request* make(Conversation& whole, std::size_t tag, std::span<const std::string_view> parts) {
      const std::size_t size = resp::encoded_size(parts);
      void* memory = ::operator new(sizeof(Request) + size);
      auto* call = ::new (memory) Request(whole, tag);
      char* const bytes = reinterpret_cast<char*>(call + 1);
      resp::encode_to(bytes, parts);
      call->request = bytes;
      call->request_size = static_cast<std::uint32_t>(size);
      return call;
    }
    void accept(const resp::View& reply) noexcept override {
      if (reply.is_error())
        return fail(wire::to_error(reply.error_text()));
      whole_->answered(tag_, resp::to_value(reply), resent);
      publish();
    }
    void fail(Error error) noexcept override {
      whole_->answered(tag_, std::unexpected<Error>(std::move(error)), resent);
      publish();
    }

   private:
    Request(Conversation& whole, std::size_t tag) : whole_((whole.retain(), &whole)), tag_(tag) {}
    ~Request() override = default;
    void destroy() noexcept override {
      this->~Request();
      ::operator delete(static_cast<void*>(this));
    }
    detail::CallPointer<Conversation> whole_;
    std::size_t tag_;
  };

  struct Waiting {
    Waiting(Request* adopted, Repeat how) : call(adopted), again(how) {}
    detail::CallPointer<detail::Call> call;
    Repeat again;
  };

  void answered(std::size_t tag, Result<Value> answer, bool sent_twice) {
    {
      const std::lock_guard lock(mutex_);
      heard(tag, std::move(answer), sent_twice);
      --on_the_way_;
    }
    turn(Bound::passed);
  }

  /// Whoever finds nobody sending sends; an answer that comes meanwhile, also from within `submit`, leaves it to them.
  void turn(Bound bound) {
    std::unique_lock lock(mutex_);
    if (sending_)
      return;
    sending_ = true;
    for (;;) {
      if (!waiting_.empty() && on_the_way_ < kWindow) {
        Waiting one = std::move(waiting_.front());
        waiting_.pop_front();
        ++on_the_way_;
        lock.unlock();
        wire::CallSettings how = settings(one.again, left());
        how.never_refused = bound == Bound::passed;
        one.call->retain();  // the wire's
        core_->submit(one.call.get(), how);
        lock.lock();
        // Whoever waits for the whole drives the connection of its first request, and continues where that one does.
        if (this->source == nullptr) {
          this->source = one.call->source;
          this->default_target = one.call->default_target;
        }
        continue;
      }
      if (!waiting_.empty() || on_the_way_ > 0)
        break;
      if (this->settled())
        return;  // cancelled meanwhile: `sending_` stays, nothing follows
      if (auto result = go_on()) {
        lock.unlock();
        // `sending_` stays: nothing follows.
        if (this->win()) {  // else cancelled meanwhile
          this->store(*std::move(result));
          this->publish();
        }
        return;
      }
    }
    sending_ = false;
  }

  [[nodiscard]] std::optional<Milliseconds> left() const {
    if (!until_)
      return std::nullopt;
    return std::max(std::chrono::ceil<Milliseconds>(*until_ - detail::Clock::now()), Milliseconds{1});
  }

  const std::shared_ptr<client::Core> core_;
  const Bound bound_;
  std::optional<detail::Clock::time_point> until_;
  std::mutex mutex_;
  std::deque<Waiting> waiting_;  // guarded by mutex_
  std::size_t on_the_way_ = 0;   // guarded by mutex_
  bool sending_ = false;         // guarded by mutex_
};

/// A conversation about one thing. `Part` has
///   `bool go_on(Asker&)`: asks what comes next, or gives false: nothing more,
///   `void heard(std::size_t tag, Result<Value>)`,
///   `Result<T> outcome()`: after `go_on` gave false.
template <typename T, typename Part>
class Monologue final : public Conversation<T> {
 public:
  Monologue(const client::Core& core, std::optional<Milliseconds> limit, Part part, Bound bound)
      : Conversation<T>(core, limit, bound), part_(std::move(part)) {}

 private:
  void heard(std::size_t tag, Result<Value> answer, bool) override { part_.heard(tag, std::move(answer)); }
  std::optional<Result<T>> go_on() override {
    if (part_.go_on(*this))
      return std::nullopt;
    return part_.outcome();
  }

  Part part_;
};

/// `T` cannot be deduced from a call.
template <typename T, typename Part>
[[nodiscard]] Reply<T> converse(const client::Core& core, std::optional<Milliseconds> limit, Part part,
                                Bound bound = Bound::kept) {
  return (new Monologue<T, Part>(core, limit, std::move(part), bound))->begin();
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
