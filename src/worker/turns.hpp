// Whose turn it is to be claimed from: the lanes or the flat set.
//
// A state machine without I/O. Both sources are asked in turns while both give jobs. One that answered empty is left
// out, but asked again every few claims and every few milliseconds, so that neither starves while the other has a
// backlog. When both are dry the round is over, and the caller looks for another reason to go on.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "worker/alarms.hpp"

namespace echomq {
inline namespace v1 {
namespace worker {

enum class Source : std::uint8_t { lanes, flat };

class Turns {
 public:
  /// How many claims in a row pass over a dry source, and for how long at most.
  static constexpr unsigned kPassOver = 7;
  static constexpr std::chrono::milliseconds kPassOverFor{5};

  /// Where the next claim goes; nothing when both are dry or the window is full. The caller sends it.
  [[nodiscard]] std::optional<Source> next(TimePoint now);
  /// What a claim said.
  void answered(Source source, bool job, TimePoint now);
  /// A claim whose answer is lost says nothing.
  void failed(Source source);
  /// There may be jobs again. After a dry spell the source of the last job is asked first: a queue that uses only one
  /// of the two finds its next job with one claim.
  void refresh();

  [[nodiscard]] std::size_t in_flight() const { return sources_[0].in_flight + sources_[1].in_flight; }
  /// Both have nothing: the round is over once nothing is in flight.
  [[nodiscard]] bool dry() const { return sources_[0].dry && sources_[1].dry; }

 private:
  struct State {
    bool dry = false;
    unsigned passed_over = 0;
    std::size_t in_flight = 0;
    TimePoint asked{};
  };

  [[nodiscard]] State& state(Source source) { return sources_[static_cast<std::size_t>(source)]; }
  [[nodiscard]] static Source other(Source source) { return source == Source::lanes ? Source::flat : Source::lanes; }
  Source send(Source source, TimePoint now);

  std::array<State, 2> sources_;
  Source last_ = Source::flat;
  Source gave_ = Source::lanes;  ///< the last job
  /// Claims side by side: two to begin with, two more for each that gave a job. So a lone job costs two claims, and a
  /// backlog fills all slots within a few round trips.
  std::size_t window_ = 2;
};

}  // namespace worker
}  // namespace v1
}  // namespace echomq
