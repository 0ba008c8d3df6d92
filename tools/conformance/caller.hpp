// What the verbs of the vocabulary share: their arguments, and how results and errors are told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/values.hpp"
#include "echomq/queue.hpp"

namespace echomq::conformance {

/// An argument that the API refuses, by its types or by an error of the caller's input.
struct Raised {
  std::string why;
};

template <typename T>
[[nodiscard]] T good(Result<T> result) {
  if (!result)
    throw Raised{result.error().message()};
  return *std::move(result);
}

struct Args {
  const json::object& fields;

  [[nodiscard]] const json::value* find(std::string_view name) const { return fields.if_contains(name); }
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] std::string text(std::string_view name) const { return text_of(fields.at(name)); }
  [[nodiscard]] std::int64_t integer(std::string_view name) const {
    const json::value& value = fields.at(name);
    if (!value.is_number())
      throw Raised{std::string(name) + " is not a number: the types refuse it"};
    return value.to_number<std::int64_t>();
  }
  [[nodiscard]] Milliseconds duration(std::string_view name) const { return Milliseconds(integer(name)); }
  [[nodiscard]] Instant instant(std::string_view name) const { return Instant(duration(name)); }
  /// Counts are unsigned here: what is negative is refused by the types.
  [[nodiscard]] std::uint32_t count(std::string_view name) const {
    const std::int64_t value = integer(name);
    if (value < 0)
      throw Raised{std::string(name) + " is negative: the types refuse it"};
    return static_cast<std::uint32_t>(value);
  }
  [[nodiscard]] std::uint32_t count(std::string_view name, std::uint32_t otherwise) const {
    return has(name) ? count(name) : otherwise;
  }
  [[nodiscard]] JobId id() const { return good(JobId::parse(text("id"))); }
  [[nodiscard]] Token token() const { return Token(static_cast<std::uint64_t>(integer_of(fields.at("token")))); }
  [[nodiscard]] LaneId group() const { return good(LaneId::parse(text("group"))); }
};

[[nodiscard]] inline json::value ok(json::value value) { return json::object{{"ok", std::move(value)}}; }
[[nodiscard]] inline json::value error(json::value value) { return json::object{{"error", std::move(value)}}; }

/// An error in the words of the canonical host.
[[nodiscard]] json::value error_word(const Error& failure);

/// Runs calls and keeps the error's text.
class Caller {
 public:
  Caller(Queue queue, const json::object& fields) : args{fields}, queue_(std::move(queue)) {}

  /// The result of a call whose success has no value.
  [[nodiscard]] json::value done(Reply<void> reply) {
    const Result<void> result = reply.get();
    return result ? json::value("ok") : refused(result.error());
  }
  /// The same where only success matters, not the value.
  template <typename T>
  [[nodiscard]] json::value done(Reply<T> reply) {
    const Result<T> result = reply.get();
    return result ? json::value("ok") : refused(result.error());
  }
  /// The result of a call whose value `form` turns into JSON.
  template <typename T, typename Form>
  [[nodiscard]] json::value value(Reply<T> reply, Form form) {
    Result<T> result = reply.get();
    return result ? form(*std::move(result)) : refused(result.error());
  }
  [[nodiscard]] json::value number(Reply<std::int64_t> reply) {
    return value(std::move(reply), [](std::int64_t n) { return ok(n); });
  }
  [[nodiscard]] json::value refused(const Error& failure) {
    error_text = failure.text;
    return error_word(failure);
  }

  const Queue& queue() const { return queue_; }

  Args args;
  std::string error_text;

 private:
  Queue queue_;
};

[[nodiscard]] inline json::value ids(const std::vector<JobId>& list) {
  json::array out;
  for (const JobId& id : list)
    out.push_back(json::string(id.text()));
  return out;
}

/// A job as a claim tells it: id, payload, token, and the group of a lane job.
[[nodiscard]] json::array job_tuple(const ClaimedJob& job);

}  // namespace echomq::conformance
