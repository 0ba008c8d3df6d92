// Several requests, one answer: for reads that need two commands, and for lists too long for one script.
//
// All requests are in flight at once. The first error among the answers is the error of the whole.
#pragma once

#include <atomic>
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
#include "resp/encode.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Never on the wire itself: it waits for its parts, each of which holds a reference. `Finish` makes the answer of
/// the parts' replies, in the order of the requests.
template <typename T, typename Finish>
class Join final : public detail::CallOf<T> {
 public:
  Join(std::size_t parts, Finish finish) : answers_(parts), finish_(std::move(finish)) {}

  /// Sends one of the requests. Call it once for each, then `started`.
  void ask(client::Core& core, std::size_t index, std::span<const std::string_view> parts,
           const script::ScriptSource* of_script, wire::CallSettings settings) {
    Part* part = Part::make(*this, index, parts);
    part->script = of_script;
    left_.fetch_add(1, std::memory_order_relaxed);
    part->retain();
    detail::CallPointer<detail::Call> kept(part);
    core.submit(part, settings);
    // Whoever waits for the whole drives the connection and continues where its parts do.
    this->source = kept->source;
    this->default_target = kept->default_target;
  }
  [[nodiscard]] Reply<T> started() {
    detail::CallPointer<detail::CallOf<T>> mine(this);
    part_done();
    return Reply<T>(std::move(mine));
  }

  void accept(const resp::View&) noexcept override {}

 private:
  class Part final : public detail::Call {
   public:
    static Part* make(Join& whole, std::size_t index, std::span<const std::string_view> parts) {
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
    Part(Join& whole, std::size_t index) : whole_((whole.retain(), &whole)), index_(index) {}
    ~Part() override = default;
    void destroy() noexcept override {
      this->~Part();
      ::operator delete(static_cast<void*>(this));
    }
    detail::CallPointer<Join> whole_;
    std::size_t index_;
  };

  ~Join() override = default;
  void destroy() noexcept override { delete this; }
  void part_done() noexcept {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
      return;
    if (!this->win())
      return;  // cancelled meanwhile
    this->store(finish());
    this->publish();
  }
  [[nodiscard]] Result<T> finish() {
    std::vector<Value> values;
    values.reserve(answers_.size());
    for (Result<Value>& answer : answers_) {
      if (!answer)
        return std::unexpected<Error>(std::move(answer).error());
      values.push_back(*std::move(answer));
    }
    return finish_(std::span<Value>(values));
  }

  std::vector<Result<Value>> answers_;
  Finish finish_;
  std::atomic<std::size_t> left_{1};
};

/// `T` cannot be deduced from a call of `new`.
template <typename T, typename Finish>
[[nodiscard]] Join<T, Finish>* make_join(std::size_t parts, Finish finish) {
  return new Join<T, Finish>(parts, std::move(finish));
}

}  // namespace queue
}  // namespace v1
}  // namespace echomq
