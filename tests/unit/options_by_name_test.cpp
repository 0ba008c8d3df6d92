// Whoever names one member of an option struct and compiles with -Wextra was warned of all the others.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"

#include <gtest/gtest.h>

#include "echomq/archiver.hpp"
#include "echomq/batch.hpp"
#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "echomq/event_log.hpp"
#include "echomq/events.hpp"
#include "echomq/flow.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/hydration.hpp"
#include "echomq/lock_plane.hpp"
#include "echomq/queue.hpp"
#include "echomq/retention.hpp"
#include "echomq/stream.hpp"
#include "echomq/tail.hpp"
#include "echomq/worker.hpp"

namespace echomq {
namespace {

using namespace std::chrono_literals;

template <typename... Options>
constexpr std::size_t count(const Options&... /*options*/) {
  return sizeof...(Options);
}

TEST(OptionsByName, OneMemberIsEnough) {
  EXPECT_EQ(count(ClientOptions{.name = "x"}, SubscriptionHandlers{.on_message = {}}, LockPlaneOptions{.lease = 5s}),
            3U);
  EXPECT_EQ(count(RunOptions{.keep = 5s}, EnqueueOptions{.in = 5s}, NewJob{.payload = "x"},
                  EnqueueManyOptions{.in = 5s}, MixedJob{.payload = "x"}, WaitOptions{.timeout = 5s},
                  ClaimOptions{.lease = 5s}, ClaimBatchOptions{.size = 5}, CompleteOptions{.result = "x"},
                  RetryOptions{.delay = 5s}, SweepOptions{.limit = 5}, DrainOptions{.include_schedule = true},
                  ObliterateOptions{.force = true}, RepeatOptions{.every = 5s}),
            14U);
  EXPECT_EQ(count(WorkerOptions{.concurrency = 2}, BatchWorkerOptions{.max_size = 5}, BatchShape{.min_size = 5},
                  FlowJob{.payload = "x"}, FlowOptions{.deadline = 5s}),
            5U);
  EXPECT_EQ(count(CacheOptions{.table = "x", .kind = "USR"}, Loaded<std::string>{.value = "v"},
                  CachePutOptions{.ttl = 5s}, CachePutItem{.id = {}, .value = "x"}, HydrationOptions{.behind = "x"}),
            5U);
  EXPECT_EQ(count(AppendOptions{.once = "x"}, NewRecord{.once = "x"}, AppendManyOptions{.max_skew = 5s},
                  ReadOptions{.count = 5}, GroupReadOptions{.count = 5}, PendingOptions{.count = 5},
                  OnceWindow{.most = 5}, GroupConsumerOptions{.count = 5}, TailOptions{.on_gap = {}}),
            9U);
  EXPECT_EQ(count(EventListenerOptions{.on_event = {}}, EventFilter{.kinds = {}}, LogOptions{.most = 5},
                  LogReadOptions{.count = 5}, LogTailOptions{.on_entry = {}}),
            5U);
  EXPECT_EQ(count(ArchiverOptions{.period = 5s}, RetentionLimits{.count = 5}, RetentionPolicy{.keep = {.count = 5}},
                  StreamSweeperOptions{.period = 5s}),
            4U);
}

}  // namespace
}  // namespace echomq
#pragma GCC diagnostic pop
