// Typed payloads and results, from `TypedQueue` to a handler that takes a value and back to who waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "echomq/typed.hpp"
#include "echomq/with/json.hpp"
#include "support/worker_harness.hpp"

namespace echomq::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct Sum {
  std::vector<int> terms;
};
void tag_invoke(boost::json::value_from_tag, boost::json::value& out, const Sum& in) {
  if (in.terms.empty())
    throw std::invalid_argument("a sum of nothing");
  out = {{"terms", boost::json::value_from(in.terms)}};
}
Sum tag_invoke(boost::json::value_to_tag<Sum>, const boost::json::value& in) {
  return {boost::json::value_to<std::vector<int>>(in.as_object().at("terms"))};
}

[[nodiscard]] int total(const Sum& sum) {
  int out = 0;
  for (const int term : sum.terms)
    out += term;
  return out;
}

class WorkerTyped : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    sums_.emplace(*queue_);
  }
  std::optional<TypedQueue<Sum>> sums_;
};

TEST_F(WorkerTyped, AValueGoesThereAndItsResultComesBack) {
  auto worker = sums_->start_worker([](const Sum& sum) { return Done(total(sum)); }, quick_options());
  ASSERT_TRUE(worker) << worker.error().message();
  const auto ended = sums_->enqueue_and_wait({{1, 2, 39}}).get();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(decode_result<int>(*ended).value(), 42);
  EXPECT_TRUE(decode_result<Sum>(*ended).error().is(Errc::codec_failed)) << "another type than was given";
}

TEST_F(WorkerTyped, OnTheWireItIsTheTextOfItsCodec) {
  const auto admitted = sums_->enqueue({{1, 2}}).get();
  ASSERT_TRUE(admitted);
  EXPECT_EQ(field(admitted->id, "payload"), R"({"terms":[1,2]})");
  EXPECT_EQ(sums_->name(), queue_->name());
}

TEST_F(WorkerTyped, EveryWayOfAdmissionTakesValues) {
  const std::vector<Sum> many = {{{1}}, {{2}}};
  const auto all = sums_->enqueue_many(many).get();
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2U);
  ASSERT_TRUE(sums_->enqueue_in({{3}}, 30ms).get());
  ASSERT_TRUE(sums_->enqueue_at({{4}}, Instant{}).get());
  std::mutex mutex;
  std::vector<int> seen;
  auto worker = sums_->start_worker(
      [&](const Sum& sum, Job& job) {
        const std::lock_guard lock(mutex);
        seen.push_back(total(sum) + static_cast<int>(job.attempt()) * 100);
        return Done();
      },
      quick_options());
  ASSERT_TRUE(worker);
  ASSERT_TRUE(eventually([&] { return counts().completed == 4; }));
  EXPECT_THAT(seen, UnorderedElementsAre(101, 102, 103, 104));
}

TEST_F(WorkerTyped, AValueThatCannotBeEncodedIsRefusedAndNothingIsSent) {
  const auto one = sums_->enqueue({}).get();
  ASSERT_FALSE(one);
  EXPECT_TRUE(one.error().is(Errc::codec_failed));
  EXPECT_EQ(one.error().text, "a sum of nothing");
  EXPECT_FALSE(sums_->enqueue_in({}, 1ms).get());
  EXPECT_FALSE(sums_->enqueue_at({}, Instant{}).get());
  EXPECT_FALSE(sums_->enqueue_and_wait({}).get());
  const std::vector<Sum> many = {{{1}}, {}};
  const auto all = sums_->enqueue_many(many).get();
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().text, "payload 1: a sum of nothing");
  EXPECT_EQ(counts().pending + counts().scheduled, 0);
}

TEST_F(WorkerTyped, APayloadThatCannotBeDecodedIsDeadAtOnceAndTheHandlerIsNotCalled) {
  std::atomic<int> calls{0};
  WorkerOptions options = quick_options();
  options.max_attempts = 5;
  std::vector<JobId> ids;
  for (const char* payload : {"no json", R"({"terms":"secret"})", "", R"({"terms":[1]} more)"})
    ids.push_back(enqueue(payload));
  const JobId good = enqueue(R"({"terms":[1]})");
  auto worker = sums_->start_worker(
      [&](const Sum&) {
        ++calls;
        return Done();
      },
      options);
  ASSERT_TRUE(worker);
  for (const JobId& id : ids) {
    ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; })) << id.text();
    EXPECT_EQ(field(id, "attempts"), "1");
    EXPECT_THAT(field(id, "last_error"), HasSubstr("the payload cannot be decoded: codec failed: "));
    EXPECT_THAT(field(id, "last_error"), ::testing::Not(HasSubstr("secret")));
  }
  ASSERT_TRUE(eventually([&] { return state(good) == JobState::absent; }));
  EXPECT_EQ(calls, 1);
}

// The value and the job live until the coroutine ends, not until its first await.
TEST_F(WorkerTyped, ACoroutineHasItsValueToItsEnd) {
  auto worker = sums_->start_worker(
      [this](const Sum& sum, Job& job) -> Task<Outcome> {
        for (int i = 0; i < 10; ++i) {
          if (const auto counted = co_await queue_->counts(); !counted)
            co_return Retry(counted.error().message());
        }
        co_return Done(total(sum) + static_cast<int>(job.payload().size()) * 1000);
      },
      quick_options(100));
  ASSERT_TRUE(worker);
  std::vector<Reply<Ended>> waits;
  for (int i = 0; i < 50; ++i)
    waits.push_back(sums_->enqueue_and_wait({{i, 100, 100'000}}));
  for (int i = 0; i < 50; ++i) {
    const auto ended = waits[static_cast<std::size_t>(i)].get();
    ASSERT_TRUE(ended);
    const int size = i < 10 ? 24 : 25;
    EXPECT_EQ(decode_result<int>(*ended).value(), i + 100'100 + size * 1000);
  }
  const JobId bad = enqueue("[]");
  ASSERT_TRUE(eventually([&] { return state(bad) == JobState::dead; }));
  EXPECT_THAT(field(bad, "last_error"), HasSubstr("cannot be decoded"));
}

TEST_F(WorkerTyped, AnExceptionOfTheHandlerIsARetryAsEver) {
  WorkerOptions options = quick_options();
  options.max_attempts = 2;
  auto worker = sums_->start_worker([](const Sum&) -> Outcome { throw std::runtime_error("no luck"); }, options);
  ASSERT_TRUE(worker);
  const JobId id = sums_->enqueue({{1}}).get().value().id;
  ASSERT_TRUE(eventually([&] { return state(id) == JobState::dead; }));
  EXPECT_EQ(field(id, "attempts"), "2");
  EXPECT_EQ(field(id, "last_error"), "no luck");
}

TEST_F(WorkerTyped, AHandlerThatKeepsStateAndTextPayloadsNeedNoCodecOfOnesOwn) {
  const TypedQueue<std::string> texts(*queue_);
  auto worker = texts.start_worker(
      [n = 0](const std::string& text) mutable { return Done(text + std::to_string(++n)); }, quick_options());
  ASSERT_TRUE(worker);
  EXPECT_EQ(texts.enqueue_and_wait("a").get().value().text, "a1");
  EXPECT_EQ(decode_result<std::string>(texts.enqueue_and_wait("b").get().value()).value(), "b2");
}

// Beside the JSON codecs, too.
TEST_F(WorkerTyped, ATextIsItsBytesAsAPayloadAndAsAResult) {
  auto worker = Worker::start(*queue_, [](Job& job) { return Done(job.payload()); }, quick_options());
  ASSERT_TRUE(worker);
  const TypedQueue<std::string> texts(*queue_);
  for (const char* text : {"plain", R"("quoted")", R"({"a":"b"})", ""}) {
    const Ended ended = texts.enqueue_and_wait(text, {.run = {.keep = 1min}}).get().value();
    EXPECT_EQ(ended.text, text);
    EXPECT_EQ(decode_result<std::string>(ended).value(), text);
  }
}

// One expression, as the address sanitizer's test of all verbs has it.
Task<std::pair<Result<Admission>, Result<Ended>>> await_both(const TypedQueue<Sum>& sums, const Sum& sum) {
  auto admitted = co_await sums.enqueue(sum, {.run = {.keep = 1min}});
  auto ended = co_await sums.enqueue_and_wait(sum, {.run = {.keep = 1min}}, {.timeout = 10s});
  co_return std::pair(std::move(admitted), std::move(ended));
}

TEST_F(WorkerTyped, ItsVerbsCanBeAwaited) {
  auto worker = sums_->start_worker([](const Sum& sum) { return Done(total(sum)); }, quick_options());
  ASSERT_TRUE(worker);
  const auto [admitted, ended] = await_both(*sums_, {{1, 2}}).get();
  ASSERT_TRUE(admitted);
  ASSERT_TRUE(ended);
  EXPECT_EQ(decode_result<int>(*ended).value(), 3);
}

}  // namespace
}  // namespace echomq::test
