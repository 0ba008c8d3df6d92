// The server forgets its scripts under load: nobody notices. Elsewhere NOSCRIPT stayed until the process was restarted.
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "wire_chaos.hpp"

namespace echomq::test {
namespace {

class ScriptFlush : public WireChaos {
 protected:
  static constexpr auto kTime = 5s;
  static constexpr auto kLonger = 20s;

  // Ten times a second on average, at random.
  void flush(const std::stop_token& stop) {
    std::mt19937 random(42);
    std::uniform_int_distribution<int> wait(20, 180);
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds{wait(random)});
      if (direct().command("SCRIPT", "FLUSH").get()) {
        ++flushes_;
      }
    }
  }

  std::atomic<int> flushes_{0};
};

TEST_F(ScriptFlush, PipelinedLoadStaysWhole) {
  const QueueName name{"flushed"};
  std::atomic<std::uint64_t> admitted{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<std::uint64_t> mismatched{0};
  std::atomic<std::uint64_t> completed{0};
  // Until the load has raced with the flushes often enough: on a busy machine that takes longer.
  const auto goes_on = [&, until = std::chrono::steady_clock::now() + kTime] {
    const auto now = std::chrono::steady_clock::now();
    const bool raced = flushes_ >= 20 && admitted > 1000U && completed > 0U && client().stats().scripts_resent > 0U;
    return errors < 10 && (now < until || (!raced && now < until + kLonger));
  };

  // Each thread keeps 200 calls on their way, admissions and plain commands in turn, and knows what each must answer.
  const auto produce = [&](int producer) {
    const Queue queue = client().queue(name);
    struct Sent {
      JobId id;
      Reply<Admission> admission;
      std::string word;
      Reply<Value> echo;
    };
    std::deque<Sent> sent;
    const auto take = [&] {
      Sent one = std::move(sent.front());
      sent.pop_front();
      const auto admission = one.admission.get();
      if (!admission) {
        ++errors;
        ADD_FAILURE() << admission.error().message();
      } else {
        mismatched += admission->id != one.id || admission->verdict != Admitted::enqueued ? 1 : 0;
        ++admitted;
      }
      const auto echo = one.echo.get();
      if (!echo) {
        ++errors;
        ADD_FAILURE() << echo.error().message();
      } else {
        mismatched += echo->as_text() != one.word ? 1 : 0;
      }
    };
    for (int number = 0; goes_on(); ++number) {
      const JobId id = *client().mint_job();
      const std::string word = std::to_string(producer) + ":" + std::to_string(number);
      Reply<Admission> admission = queue.enqueue(word, {.id = id});
      sent.push_back({id, std::move(admission), word, client().command("ECHO", word)});
      if (sent.size() >= 200) {
        take();
      }
    }
    while (!sent.empty()) {
      take();
    }
  };
  const auto consume = [&] {
    const Queue queue = client().queue(name);
    while (goes_on()) {
      const auto job = queue.claim().get();
      if (!job) {
        ++errors;
        ADD_FAILURE() << job.error().message();
      } else if (*job) {
        const auto done = queue.complete((*job)->id, (*job)->token).get();
        if (done) {
          ++completed;
        } else {
          ++errors;
          ADD_FAILURE() << done.error().message();
        }
      }
    }
  };
  {
    std::jthread flusher([this](const std::stop_token& stop) { flush(stop); });
    std::vector<std::jthread> threads;
    for (int producer = 0; producer < 3; ++producer) {
      threads.emplace_back(produce, producer);
    }
    threads.emplace_back(consume);
    threads.clear();
  }
  EXPECT_EQ(errors, 0U);
  EXPECT_EQ(mismatched, 0U);
  EXPECT_GE(flushes_, 20);
  EXPECT_GT(admitted, 1000U);
  EXPECT_GT(completed, 0U);
  EXPECT_GT(client().stats().scripts_resent, 0U);
  // No job twice: what was admitted is either done or still there, to the last one.
  const auto counts = direct().queue(name).counts().get();
  ASSERT_TRUE(counts);
  EXPECT_EQ(static_cast<std::uint64_t>(counts->completed), completed);
  EXPECT_EQ(static_cast<std::uint64_t>(counts->completed + counts->pending + counts->active), admitted);
  EXPECT_EQ(counts->active, 0);
}

TEST_F(ScriptFlush, BatchesAndTransactionsStayWhole) {
  const QueueName name{"flushed"};
  const Queue queue = client().queue(name);
  std::jthread flusher([this](const std::stop_token& stop) { flush(stop); });
  const auto until = std::chrono::steady_clock::now() + kTime;
  std::uint64_t admitted = 0;
  const std::vector<NewJob> jobs(50, NewJob{.payload = "payload", .id = {}});
  while (std::chrono::steady_clock::now() < until) {
    std::vector<Reply<std::vector<Result<Admission>>>> replies;
    for (int batch = 0; batch < 10; ++batch) {
      replies.push_back(queue.enqueue_many(jobs));
    }
    for (auto& reply : replies) {
      const auto results = reply.get();
      ASSERT_TRUE(results) << results.error().message();
      for (const auto& result : *results) {
        ASSERT_TRUE(result) << result.error().message();
        EXPECT_EQ(result->verdict, Admitted::enqueued);
        ++admitted;
      }
    }
  }
  EXPECT_EQ(ask_number("ZCARD", "emq:{flushed}:pending"), static_cast<std::int64_t>(admitted));
}

}  // namespace
}  // namespace echomq::test
