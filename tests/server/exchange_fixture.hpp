// What the tests of settle, take and settle_and_take share: a queue on a server of its own, and the calls by `exchange`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "queue/exchange.hpp"
#include "server/queue_fixture.hpp"

namespace echomq::test {

inline const std::string kP = "emq:{q}:";

class ExchangeTest : public QueueServerTest {
 protected:
  std::vector<JobId> fill(std::optional<LaneId> lane, int count) {
    const std::vector<NewJob> jobs(static_cast<std::size_t>(count), NewJob{.payload = "p"});
    std::vector<JobId> ids;
    const auto admitted = queue().enqueue_many(jobs, {.lane = lane}).get().value();
    for (const auto& one : admitted)
      ids.push_back(one.value().id);
    return ids;
  }
  echomq::queue::Exchanged take(echomq::queue::TakeRequest request) {
    auto answer = echomq::queue::exchange(this->queue(), {}, request).get();
    EXPECT_TRUE(answer) << answer.error().message();
    return answer ? *std::move(answer) : echomq::queue::Exchanged{};
  }
  echomq::queue::Exchanged settle(std::vector<echomq::queue::Settlement> settlements) {
    auto answer = echomq::queue::exchange(this->queue(), settlements, std::nullopt).get();
    EXPECT_TRUE(answer) << answer.error().message();
    return answer ? *std::move(answer) : echomq::queue::Exchanged{};
  }
  [[nodiscard]] std::string row(JobId id) const { return kP + "job:" + std::string(id.text()); }
};

}  // namespace echomq::test
