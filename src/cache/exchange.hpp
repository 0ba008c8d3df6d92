// One write of one or more commands, whose answers are told together, in order, on the thread that reads them.
//
// That thread tells pushes of the same connection in between as they came, so what the end of an exchange puts into L1
// is in step with what tracking says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/detail/call.hpp"
#include "resp/encode.hpp"
#include "resp/view.hpp"
#include "wire/link.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace cache {

/// The state of a reply that the table itself completes.
template <typename T>
class Promise final : public detail::CallOf<T> {
 public:
  void accept(const resp::View&) noexcept override {}
  void settle(Result<T> result) noexcept {
    if (!this->win())
      return;
    this->store(std::move(result));
    this->publish();
  }

 private:
  void destroy() noexcept override { delete this; }
};

class Exchange final : public detail::CallOf<void> {
 public:
  /// Where it was answered: `followed` is another node of a cluster than the one of its slot, or that only after a while.
  enum class At : std::uint8_t { its_node, followed };
  /// Called with the answers, and, if it takes that, with where they came from. Error replies stand in their places as error values; an error
  /// is a lost or unsent exchange.
  class End {
   public:
    End() = default;
    template <typename Take>
      requires(!std::is_same_v<std::remove_cvref_t<Take>, End>)
    End(Take take) {  // NOLINT(google-explicit-constructor): whatever can be called
      if constexpr (std::is_invocable_v<Take&, Result<std::vector<Value>>, At>) {
        take_ = std::move(take);
      } else {
        take_ = [take = std::move(take)](Result<std::vector<Value>> answers, At) mutable { take(std::move(answers)); };
      }
    }
    void operator()(Result<std::vector<Value>> answers, At at) const { take_(std::move(answers), at); }
    explicit operator bool() const noexcept { return static_cast<bool>(take_); }

   private:
    std::function<void(Result<std::vector<Value>>, At)> take_;
  };

  [[nodiscard]] static Exchange* make(std::string bytes, std::uint32_t replies, End end) {
    return new Exchange(std::move(bytes), replies, std::move(end));
  }
  template <typename... Parts>
  [[nodiscard]] static Exchange* command(End end, const Parts&... parts) {
    const std::string_view all[] = {std::string_view(parts)...};
    std::string bytes;
    resp::CommandWriter(bytes).command(std::span<const std::string_view>(all));
    return make(std::move(bytes), 1, std::move(end));
  }

  void part(const resp::View& reply) noexcept override { values_.push_back(resp::to_value(reply)); }
  void accept(const resp::View& reply) noexcept override {
    values_.push_back(resp::to_value(reply));
    finish(std::move(values_));
  }
  void fail(Error error) noexcept override { finish(std::unexpected<Error>(std::move(error))); }

 private:
  Exchange(std::string bytes, std::uint32_t count, End end)
      : bytes_(std::move(bytes)), count_(count), end_(std::move(end)) {
    request = bytes_.data();
    request_size = static_cast<std::uint32_t>(bytes_.size());
    replies = count;
  }
  void destroy() noexcept override { delete this; }
  void finish(Result<std::vector<Value>> answers) noexcept {
    const End end = std::exchange(end_, End());
    const At at = asking || redirects > 0 || pauses > 0 ? At::followed : At::its_node;
    // Sent again after a part of the replies had come: those of the last time count.
    if (answers && answers->size() > count_)
      answers->erase(answers->begin(), answers->end() - count_);
    store({});
    publish();
    if (end)
      end(std::move(answers), at);
  }

  const std::string bytes_;
  const std::uint32_t count_;
  End end_;
  std::vector<Value> values_;
};

}  // namespace cache
}  // namespace v1
}  // namespace echomq
