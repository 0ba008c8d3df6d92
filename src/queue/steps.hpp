// Requests in rounds, one answer: for verbs whose script does a bounded bite of the work, so that the host asks again
// until it is done, and for those that must see one answer before they can ask the next question.
//
// All requests of a round are in flight at once; the next round begins when the last of them is answered, on whichever
// thread took that answer. Nothing blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "client/core.hpp"
#include "echomq/detail/call.hpp"
#include "echomq/reply.hpp"
#include "queue/arguments.hpp"
#include "resp/encode.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Never on the wire itself: it waits for its requests, each of which holds a reference.
///
/// `next(steps, answers) -> std::optional<Result<T>>` is called with no answers first, then with those of each round in
/// the order of its requests. It gives the result of the whole, or asks for more by `eval` and gives nothing. It must
/// own what it needs. `core` outlives the call: it owns the connection that answers it.
template <typename T, typename Next>
class Steps final : public detail::CallOf<T> {
 public:
  [[nodiscard]] static Reply<T> start(client::Core& core, wire::CallSettings settings, Next with) {
    auto* steps = new Steps(core, settings, std::move(with));
    detail::CallPointer<detail::CallOf<T>> mine(steps);
    steps->round({});
    return Reply<T>(std::move(mine));
  }

  /// A script of the round that begins when `next` returns.
  void eval(const script::ScriptSource& with, std::span<const std::string_view> keys,
            std::span<const std::string_view> arguments) {
    const ScriptParts parts(with, keys, arguments);
    Part* part = Part::make(*this, asked_.size(), parts.parts());
    part->script = &with;
    asked_.push_back(part);
  }

  void accept(const resp::View&) noexcept override {}

 private:
  class Part final : public detail::Call {
   public:
    static Part* make(Steps& whole, std::size_t index, std::span<const std::string_view> parts) {
      const std::size_t size = resp::encoded_size(parts);
      void* memory = ::operator new(sizeof(Part) + size);
      auto* call = ::new (memory) Part(whole, index);
      char* const bytes = reinterpret_cast<char*>(call + 1);
      resp::encode_to(bytes, parts);
      call->request = bytes;
      call->request_size = static_cast<std::uint32_t>(size);
      return call;
    }
    void accept(const resp::View& reply) noexcept override {
      if (reply.is_error())
        return fail(wire::to_error(reply.error_text()));
      whole_->answers_[index_] = resp::to_value(reply);
      publish();
      whole_->part_done();
    }
    void fail(Error error) noexcept override {
      whole_->answers_[index_] = std::unexpected<Error>(std::move(error));
      publish();
      whole_->part_done();
    }

   private:
    Part(Steps& whole, std::size_t index) : whole_((whole.retain(), &whole)), index_(index) {}
    ~Part() override = default;
    void destroy() noexcept override {
      this->~Part();
      ::operator delete(static_cast<void*>(this));
    }
    detail::CallPointer<Steps> whole_;
    std::size_t index_;
  };

  Steps(client::Core& core, wire::CallSettings settings, Next with)
      : core_(core), settings_(settings), next_(std::move(with)) {
    if (settings.deadline)
      until_ = detail::Clock::now() + *settings.deadline;
  }
  ~Steps() override = default;
  void destroy() noexcept override { delete this; }

  void part_done() noexcept {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
      return;
    std::vector<Value> values;
    values.reserve(answers_.size());
    for (Result<Value>& answer : answers_) {
      if (!answer)
        return finish(std::unexpected<Error>(std::move(answer).error()));
      values.push_back(*std::move(answer));
    }
    round(values);
  }
  void round(std::span<Value> answers) noexcept {
    if (this->settled())
      return;  // cancelled meanwhile
    if (auto result = next_(*this, answers))
      return finish(*std::move(result));

    const bool first = answers.empty();
    std::vector<Part*> parts = std::exchange(asked_, {});
    answers_.assign(parts.size(), Result<Value>(Value()));
    left_.store(parts.size() + 1, std::memory_order_relaxed);
    for (Part* part : parts) {
      part->retain();
      detail::CallPointer<detail::Call> kept(part);
      core_.submit(part, left_until());
      if (first) {
        // Whoever waits for the whole drives the connection and continues where its requests do.
        this->source = kept->source;
        this->default_target = kept->default_target;
      }
    }
    part_done();
  }
  /// The caller's deadline is that of the whole; without one each round has the client's.
  [[nodiscard]] wire::CallSettings left_until() const {
    wire::CallSettings how = settings_;
    if (until_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until_ - detail::Clock::now());
      how.deadline = std::max(left, std::chrono::milliseconds{1});
    }
    return how;
  }
  void finish(Result<T> result) noexcept {
    if (!this->win())
      return;
    this->store(std::move(result));
    this->publish();
  }

  client::Core& core_;
  wire::CallSettings settings_;
  std::optional<detail::Clock::time_point> until_;
  Next next_;
  std::vector<Part*> asked_;            // of the round to come
  std::vector<Result<Value>> answers_;  // of the round in flight
  std::atomic<std::size_t> left_{0};
};

/// `T` cannot be deduced from a call.
template <typename T, typename Next>
[[nodiscard]] Reply<T> run_steps(client::Core& core, wire::CallSettings settings, Next next) {
  return Steps<T, Next>::start(core, settings, std::move(next));
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
