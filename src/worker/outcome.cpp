// How a run ended.
#include "worker/outcome.hpp"

#include <exception>
#include <utility>

namespace echomq {
inline namespace v1 {
namespace {

[[nodiscard]] Outcome make(Outcome::Kind kind, std::string text = {}, std::optional<Milliseconds> after = {}) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.text = std::move(text);
  outcome.after = after;
  return outcome;
}

}  // namespace

Outcome Done() { return make(Outcome::Kind::done); }

Outcome Done(std::string result) {
  Outcome outcome = make(Outcome::Kind::done, std::move(result));
  outcome.has_result = true;
  return outcome;
}

Outcome Retry(std::string error, std::optional<Milliseconds> after) {
  return make(Outcome::Kind::retry, std::move(error), after);
}

Outcome Delay(Milliseconds wait) { return make(Outcome::Kind::delay, {}, wait); }
Outcome Dead(std::string error) { return make(Outcome::Kind::dead, std::move(error)); }
Outcome HandBack() { return make(Outcome::Kind::hand_back); }

namespace worker {

Outcome outcome_of(const std::exception_ptr& exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const Unrecoverable& error) {
    return Dead(error.what());
  } catch (const std::exception& error) {
    return Retry(error.what());
  } catch (...) {
    return Retry("an exception that is not a std::exception");
  }
}

Outcome run_handler(const Handler& handler, Job& job) noexcept {
  try {
    return handler(job);
  } catch (...) {
    return outcome_of(std::current_exception());
  }
}

std::string last_bytes(std::string text, std::size_t limit) {
  if (text.size() <= limit)
    return text;
  std::size_t from = text.size() - limit;
  // At most three continuation bytes follow a leading one; more of them are not UTF-8, and are kept as they are.
  std::size_t start = from;
  while (start < text.size() && start - from < 4 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U)
    ++start;
  if (start - from < 4)
    from = start;
  text.erase(0, from);
  return text;
}

}  // namespace worker
}  // namespace v1
}  // namespace echomq
