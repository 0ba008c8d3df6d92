// Verbs of several requests by a client with few places in flight: what follows from an answer waits for none, since whoever brings
// the answer may be the only one who reads.
#include <string>
#include <string_view>
#include <vector>

#include "echomq/flow.hpp"
#include "server/queue_fixture.hpp"
#include "support/bounds.hpp"

namespace echomq::test {
namespace {

class QueueBoundServerTest : public QueueServerTest {
 protected:
  void SetUp() override {
    QueueServerTest::SetUp();
    auto opened = Client::open(server().url(), {.deadline = 4s, .max_in_flight = 4, .overflow = Overflow::block});
    ASSERT_TRUE(opened) << opened.error().message();
    narrow_.emplace(*std::move(opened));
  }
  void expect_quick() const {
    EXPECT_LT(std::chrono::steady_clock::now() - begun_, bound(2s)) << "a thread has waited for itself";
  }

  std::optional<Client> narrow_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/// The caller, which read the records, waited for room to bring the fifth: for an answer that nobody but itself could read.
TEST_F(QueueBoundServerTest, AnOutboxOfManyRecordsIsDelivered) {
  for (int i = 0; i < 8; ++i) {
    const std::string child(client().mint_job().value().text());
    const std::string_view parts[] = {"p", kJobA.text(), child, "result"};
    std::string record;
    for (const std::string_view part : parts)
      record.append(record.empty() ? "" : std::string_view("\0", 1)).append(part);
    raw("RPUSH", "emq:{q}:flow:outbox", record);
  }
  const auto pass = Flow(narrow_->queue("q")).deliver().get();
  ASSERT_TRUE(pass) << pass.error().message();
  EXPECT_EQ(pass->delivered, 8);
  EXPECT_EQ(pass->failed, 0) << (pass->error ? pass->error->message() : "");
  EXPECT_EQ(raw("LLEN", "emq:{q}:flow:outbox").as_integer(), 0);
  expect_quick();
}

/// The levels below the first were refused as `overloaded` where the library's thread read the answers, and left a root without children.
TEST_F(QueueBoundServerTest, AFlowOfThreeLevelsIsAdmittedWhole) {
  const std::vector<FlowJob> leaves(3, FlowJob{.payload = "leaf"});
  const std::vector<FlowJob> middles(6, FlowJob{.payload = "middle", .children = leaves});
  const FlowJob root{.payload = "root", .children = middles};
  auto reply = Flow(narrow_->queue("q")).add(root);
  for (int i = 0; i < 200 && !reply.ready(); ++i)
    std::this_thread::sleep_for(10ms);
  const auto added = reply.get();
  ASSERT_TRUE(added) << added.error().message();
  EXPECT_EQ(added->ids.size(), 25U);
  EXPECT_EQ(queue().counts().get()->pending, 18);
  expect_quick();
}

TEST_F(QueueBoundServerTest, ADuplicateIsLookedAt) {
  ASSERT_TRUE(queue().enqueue("p", {.id = kJobA}).get());
  std::vector<Reply<Admission>> replies;
  for (int i = 0; i < 20; ++i)
    replies.push_back(narrow_->queue("q").enqueue("p", {.id = kJobA}));
  for (Reply<Admission>& reply : replies) {
    const auto admission = reply.get();
    ASSERT_TRUE(admission) << admission.error().message();
    EXPECT_EQ(admission->verdict, Admitted::duplicate);
  }
  expect_quick();
}

}  // namespace
}  // namespace echomq::test
