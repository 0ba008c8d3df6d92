// Payloads and results as values: `TypedQueue<T>`, handlers that take a `T`, results of any type with a codec.
//
//   const echomq::TypedQueue<Thumbnail> thumbnails(client.queue("thumbnails"));
//   thumbnails.enqueue({"cat.png", 128}).get();
//   auto worker = thumbnails.start_worker([](const Thumbnail& job) { return echomq::Done(make(job)); }, {}).value();
//
// How a type becomes bytes is said by `Codec<T>` (codec.hpp). On the wire there is nothing of it: a peer sees bytes.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "echomq/codec.hpp"
#include "echomq/error.hpp"
#include "echomq/queue.hpp"
#include "echomq/reply.hpp"
#include "echomq/task.hpp"
#include "echomq/worker.hpp"

namespace echomq {
inline namespace v1 {

/// Complete, with a result of any type that has a codec; a text is its bytes. One that the codec refuses makes the run `Dead`, since the same
/// run would give the same again: `last_error` says why.
template <typename T>
  requires(!std::same_as<T, std::string> && Encodable<T>)
[[nodiscard]] Outcome Done(const T& result) {
  Result<std::string> bytes = encode_payload(result);
  return bytes ? Done(*std::move(bytes)) : Dead("the result cannot be encoded: " + bytes.error().message());
}

/// The result of an ended job as a value. Errors: handler_failed with its last error for a dead one; job_gone when nothing
/// is kept of it; timeout when it has not ended; and those of `decode_payload`.
template <typename T>
[[nodiscard]] Result<T> decode_result(const Ended& ended) {
  switch (ended.how) {
    case EndedAs::completed: return decode_payload<T>(ended.text);
    case EndedAs::dead: return fail(Errc::handler_failed, ended.text);
    case EndedAs::gone: return fail(Errc::job_gone, "nothing is kept of job " + std::string(ended.id.text()));
    case EndedAs::timeout: break;
  }
  return fail(Errc::timeout, "job " + std::string(ended.id.text()) + " has not ended yet", Repeat::safe);
}

namespace detail {

/// What a job comes to whose payload is no `T`: no further run would read it better.
[[nodiscard]] inline Outcome unreadable(const Error& error) {
  return Dead("the payload cannot be decoded: " + error.message());
}

template <typename F, typename T>
struct TypedAnswer {
  using type = void;
};
template <typename F, typename T>
  requires std::is_invocable_v<F&, const T&, Job&>
struct TypedAnswer<F, T> {
  using type = std::invoke_result_t<F&, const T&, Job&>;
};
template <typename F, typename T>
  requires(std::is_invocable_v<F&, const T&> && !std::is_invocable_v<F&, const T&, Job&>)
struct TypedAnswer<F, T> {
  using type = std::invoke_result_t<F&, const T&>;
};

template <typename F, typename T>
decltype(auto) call_typed(F& function, const T& value, Job& job) {
  if constexpr (std::is_invocable_v<F&, const T&, Job&>) {
    return function(value, job);
  } else {
    return function(value);
  }
}

/// The value lives in this frame for as long as the handler's coroutine does.
template <typename T, typename F>
Task<Outcome> run_typed(F& function, Job& job) {
  const Result<T> value = decode_payload<T>(job.payload());
  if (!value)
    co_return unreadable(value.error());
  co_return co_await call_typed(function, *value, job);
}

}  // namespace detail

/// A handler for `Worker::start` out of a function of a `T`: `f(const T&)` or `f(const T&, Job&)`, which gives an `Outcome`,
/// or a `Task<Outcome>` when it is a coroutine; there both arguments live until it ends. A payload that is no `T` makes the
/// job dead at once, with `last_error` "the payload cannot be decoded: ...", and `f` is not called.
template <typename T, typename F>
[[nodiscard]] auto typed_handler(F function) {
  static_assert(Decodable<T>, "no echomq::Codec<T> with a decode: specialise it, or include echomq/with/json.hpp");
  using Answer = typename detail::TypedAnswer<F, T>::type;
  constexpr bool kPlain = std::is_convertible_v<Answer, Outcome>;
  constexpr bool kCoroutine = std::is_same_v<Answer, Task<Outcome>>;
  static_assert(kPlain || kCoroutine,
                "a handler takes (const T&) or (const T&, Job&) and gives an echomq::Outcome or an echomq::Task of it");
  if constexpr (kCoroutine) {
    return AsyncHandler(detail::copyable([function = std::move(function)](Job& job) mutable -> Task<Outcome> {
      return detail::run_typed<T>(function, job);
    }));
  } else {
    return Handler(detail::copyable([function = std::move(function)](Job& job) mutable -> Outcome {
      const Result<T> value = decode_payload<T>(job.payload());
      return value ? Outcome(detail::call_typed(function, *value, job)) : detail::unreadable(value.error());
    }));
  }
}

/// A queue whose payloads are of one type. Cheap to copy, thread-safe. Its verbs are those of `Queue`, with its errors and
/// `codec_failed` (or what the codec gives) for a value that cannot be encoded: then nothing was sent. All other verbs are
/// those of `untyped()`.
template <typename T>
class TypedQueue {
 public:
  explicit TypedQueue(Queue queue) noexcept : queue_(std::move(queue)) {}

  [[nodiscard]] const QueueName& name() const noexcept { return queue_.name(); }
  [[nodiscard]] const Queue& untyped() const noexcept { return queue_; }

  Reply<Admission> enqueue(const T& payload, EnqueueOptions options = {}) const {
    Result<std::string> bytes = encode_payload(payload);
    return bytes ? queue_.enqueue(*bytes, options) : Reply<Admission>(std::unexpected(std::move(bytes).error()));
  }
  Reply<Admission> enqueue_at(const T& payload, Instant at, EnqueueOptions options = {}) const {
    Result<std::string> bytes = encode_payload(payload);
    return bytes ? queue_.enqueue_at(*bytes, at, options) : Reply<Admission>(std::unexpected(std::move(bytes).error()));
  }
  Reply<Admission> enqueue_in(const T& payload, Milliseconds in, EnqueueOptions options = {}) const {
    Result<std::string> bytes = encode_payload(payload);
    return bytes ? queue_.enqueue_in(*bytes, in, options) : Reply<Admission>(std::unexpected(std::move(bytes).error()));
  }
  /// One value that cannot be encoded refuses the whole call; its error names its place, from 0.
  Reply<std::vector<Result<Admission>>> enqueue_many(std::span<const T> payloads,
                                                     EnqueueManyOptions options = {}) const {
    std::vector<std::string> bytes;
    std::vector<NewJob> jobs;
    bytes.reserve(payloads.size());
    jobs.reserve(payloads.size());
    for (const T& payload : payloads) {
      Result<std::string> encoded = encode_payload(payload);
      if (!encoded) {
        Error error = std::move(encoded).error();
        error.text = "payload " + std::to_string(bytes.size()) + ": " + error.text;
        return std::unexpected(std::move(error));
      }
      bytes.push_back(*std::move(encoded));
      jobs.push_back({.payload = bytes.back(), .id = {}});
    }
    return queue_.enqueue_many(jobs, options);
  }
  /// What the answer holds is read by `decode_result`.
  Reply<Ended> enqueue_and_wait(const T& payload, EnqueueOptions options = {}, WaitOptions wait = {}) const {
    Result<std::string> bytes = encode_payload(payload);
    return bytes ? queue_.enqueue_and_wait(*bytes, options, wait)
                 : Reply<Ended>(std::unexpected(std::move(bytes).error()));
  }

  /// `Worker::start` with `typed_handler<T>(function)`.
  template <typename F>
  [[nodiscard]] Result<Worker> start_worker(F function, WorkerOptions options = {}) const {
    return Worker::start(queue_, typed_handler<T>(std::move(function)), std::move(options));
  }

 private:
  Queue queue_;
};

}  // namespace v1
}  // namespace echomq
