// `Subjects`: streams of a queue by dotted names, appended to and followed by patterns: `orders.eu.placed`, `orders.*.placed`,
// `orders.>`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/error.hpp"
#include "echomq/names.hpp"
#include "echomq/reply.hpp"
#include "echomq/stream.hpp"
#include "echomq/tail.hpp"

namespace echomq {
inline namespace v1 {

/// A pattern of names: words between dots. `*` stands for one word, `>` at the end for one or more.
class SubjectPattern {
 public:
  /// Errors: invalid_argument for an empty word, for `*` or `>` within a word, and for `>` that is not the last.
  [[nodiscard]] static Result<SubjectPattern> parse(std::string_view text);
  [[nodiscard]] bool matches(std::string_view name) const noexcept;
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  explicit SubjectPattern(std::string text) noexcept : text_(std::move(text)) {}
  std::string text_;
};

struct SubjectTailOptions {
  /// Of streams that are there when it starts, as `TailSource::behind`. Streams that come later are read from their beginning.
  std::string behind = {};
  /// Of single streams: `SubjectTail::positions` of an earlier run, also when that knew none yet. Streams that are not named here are read
  /// from `behind`, and when that is empty from their beginning: they have come since.
  std::optional<std::map<std::string, std::string>> resume = {};
  TailErrorHandler on_error = {};
  TailGapHandler on_gap = {};
};

/// Follows what matches. Move-only; the destructor stops it.
class SubjectTail {
 public:
  SubjectTail(SubjectTail&&) noexcept;
  SubjectTail& operator=(SubjectTail&&) noexcept;
  ~SubjectTail();
  /// As `Tail::stop`.
  void stop();
  /// The streams that it follows, and where it is in each.
  [[nodiscard]] std::map<std::string, std::string> positions() const;
  [[nodiscard]] TailStats stats() const;

  struct State;

 private:
  friend class Subjects;
  explicit SubjectTail(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

/// The subjects of a queue. Cheap to copy; thread-safe.
class Subjects {
 public:
  Subjects(const Client& client, const QueueName& queue);

  /// `Stream::append` to the stream of that name, which is listed first (`emq:{q}:streams`, extension script `stream_list`; once a minute
  /// and stream by this client), so that whoever follows a pattern learns of it. Errors: also invalid_argument for a name that has
  /// an empty word, `*` or `>`.
  Reply<EventId> append(std::string_view subject, std::span<const Field> fields, AppendOptions options = {}) const;
  /// Names of listed streams that match, sorted.
  [[nodiscard]] Reply<std::vector<std::string>> list(const SubjectPattern& pattern) const;
  /// Follows all streams that match, and those that come later. They share the reading of all tails of the client; the pattern is looked
  /// at once for each name, not for each record. The list of names is asked for once a second, for all tails of the client on this queue
  /// together; streams that others appended to without listing them are found at the start, and once a minute, by SCAN.
  /// Records of one stream come in its order, those of different streams in any. Errors: as of `Tail::start`.
  [[nodiscard]] Result<SubjectTail> tail(const SubjectPattern& pattern, TailHandler handler,
                                         SubjectTailOptions options = {}) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace v1
}  // namespace echomq
