// Admission of many jobs: chunks of the `admit` script, all in flight at once, and one answer when the last is in.
//
// A chunk is small enough for its script to take a millisecond or two, so that no other client waits longer for its
// turn. Chunks fail each on its own: a lost connection leaves an error with the jobs of the chunks it took, not with
// the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "client/core.hpp"
#include "echomq/detail/call.hpp"
#include "echomq/queue.hpp"
#include "queue/start.hpp"
#include "wire/request.hpp"

namespace echomq {
inline namespace v1 {
namespace queue {

/// Bounds of one script: jobs, and bytes of ids and payloads (a larger payload is a chunk of its own).
inline constexpr std::size_t kChunkJobs = 250;
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;

/// One job with its id.
struct AdmitItem {
  JobId id;
  std::string_view payload;
  bool minted = false;
};

/// What follows a job's payload when each has its own target and fields (`admit` in its mode `each`).
using AdmitTail = std::span<const std::string_view>;

/// The keys of `admit`.
[[nodiscard]] inline Views<8> admit_keys(const keyspace::QueueKeys& keys) {
  return views(keys.pending(), keys.schedule(), keys.ring(), keys.paused(), keys.glimit(), keys.gactive(), keys.wake(),
               keys.parked());
}

/// What is the same for all chunks of a batch: keys, then base, group, mode and value.
using AdmitFrame = std::span<const std::string_view>;

/// The answer of a batch. Never on the wire itself: it waits for its chunks, each of which holds a reference.
class AdmitMany final : public detail::CallOf<std::vector<Result<Admission>>> {
 public:
  /// Sends `items` in chunks. `frame` are the first parts of every chunk's script call, up to the first id. `tails` is
  /// empty, or has one for each item.
  [[nodiscard]] static Reply<std::vector<Result<Admission>>> start(client::Core& core, AdmitFrame frame,
                                                                   std::span<const AdmitItem> items,
                                                                   std::span<const AdmitTail> tails,
                                                                   wire::CallSettings settings);

  void accept(const resp::View&) noexcept override {}

 private:
  class Chunk;

  AdmitMany(client::Core& core, std::size_t jobs);
  ~AdmitMany() override = default;
  void destroy() noexcept override { delete this; }
  /// One chunk less to wait for.
  void part_done() noexcept;

  client::Core& core_;
  /// Chunks write to their own places only. Until its chunk is answered, a place holds the verdict of a repetition:
  /// what a "duplicate" means when an answer was lost.
  std::vector<Result<Admission>> results_;
  std::atomic<std::size_t> left_{1};
};

}  // namespace queue
}  // namespace v1
}  // namespace echomq
