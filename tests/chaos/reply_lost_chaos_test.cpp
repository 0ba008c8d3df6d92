// The reply of a settle or of an admission is lost: its repeat reports success, and the job is counted once. Elsewhere a
// lost "done" made a batch wait for ever, or ran the job again.
#include "wire_chaos.hpp"

#include <functional>
#include <thread>

namespace echomq::test {
namespace {

class ReplyLost : public WireChaos {
 protected:
  // Calls `run(number)` once for each offset of the conversation that `sample` measures, each cut there.
  template <typename Prepare, typename Call, typename Check>
  void at_every_offset(Prepare prepare, Call call, Check check) {
    auto sample = prepare(9998);
    call(sample);  // scripts are loaded now
    auto measured = prepare(9999);
    const auto [request, reply] = measure([&] { call(measured); });
    ASSERT_GT(request, 60U);
    ASSERT_GT(reply, 3U);
    int number = 0;
    for (const auto& [direction, size] :
         {std::pair(Direction::to_server, request), std::pair(Direction::to_client, reply)}) {
      for (std::uint64_t offset = 0; offset <= size; ++offset) {
        SCOPED_TRACE("direction " + std::to_string(static_cast<int>(direction)) + " offset " + std::to_string(offset));
        auto subject = prepare(++number);
        ready();
        const std::uint64_t struck = proxy().counters().cut;
        proxy().cut_after(direction, offset);
        call(subject);
        ASSERT_TRUE(proxy().wait_struck(struck + 1));
        ASSERT_TRUE(proxy().wait_drained());
        check(subject);
        if (HasFailure()) {
          return;
        }
      }
    }
  }

  struct Subject {
    Queue through;
    Queue past;
    JobId id{};
    Token token{};
  };
  Subject claimed(int number) {
    const QueueName name = numbered("settle", number);
    Subject out{.through = client().queue(name), .past = direct().queue(name)};
    const auto admitted = out.past.enqueue("payload").get();
    EXPECT_TRUE(admitted);
    const auto job = out.past.claim().get();
    EXPECT_TRUE(job && *job);
    if (job && *job) {
      out.id = (*job)->id;
      out.token = (*job)->token;
    }
    return out;
  }
  std::string key(const Subject& subject, std::string_view member) {
    return "emq:{" + std::string(subject.past.name().text()) + "}:" + std::string(member);
  }
};

TEST_F(ReplyLost, CompleteSucceedsAndIsCountedOnce) {
  at_every_offset([&](int number) { return claimed(number); },
                  [&](Subject& subject) {
                    const auto done = subject.through.complete(subject.id, subject.token).get();
                    EXPECT_TRUE(done) << done.error().message();
                  },
                  [&](Subject& subject) {
                    const auto counts = subject.past.counts().get();
                    ASSERT_TRUE(counts);
                    EXPECT_EQ(counts->completed, 1);
                    EXPECT_EQ(counts->active, 0);
                    EXPECT_EQ(*subject.past.state(subject.id).get(), JobState::absent);
                  });
}

TEST_F(ReplyLost, CompleteOfAChildTellsItsParentOnce) {
  constexpr std::string_view kParent = "JOB0KHTOWnGLuC";
  at_every_offset(
      [&](int number) {
        Subject subject = claimed(number);
        // A parent that waits for two children, as a flow leaves it.
        const std::string row = key(subject, "job:" + std::string(kParent));
        (void)ask("HSET", row, "state", "awaiting_children", "attempts", "0", "payload", "parent");
        (void)ask("SET", row + ":dependencies", "2");
        (void)ask("HSET", key(subject, "job:" + std::string(subject.id.text())), "parent", kParent);
        return subject;
      },
      [&](Subject& subject) {
        EXPECT_TRUE(subject.through.complete(subject.id, subject.token, {.result = "42", .deadline = {}}).get());
      },
      [&](Subject& subject) {
        const std::string row = key(subject, "job:" + std::string(kParent));
        EXPECT_EQ(ask_number("GET", row + ":dependencies"), 1);
        EXPECT_EQ(ask("HGET", row + ":processed", subject.id.text()).as_text(), "42");
      });
}

TEST_F(ReplyLost, RetrySchedulesOnce) {
  at_every_offset([&](int number) { return claimed(number); },
                  [&](Subject& subject) {
                    const auto retried = subject.through
                                             .retry(subject.id, subject.token,
                                                    {.delay = 1h, .max_attempts = 3, .error = "failed", .deadline = {}})
                                             .get();
                    ASSERT_TRUE(retried) << retried.error().message();
                    EXPECT_EQ(*retried, Retried::scheduled);
                  },
                  [&](Subject& subject) {
                    EXPECT_EQ(places(subject.past.name(), subject.id), std::multiset<std::string>{"schedule"});
                  });
}

TEST_F(ReplyLost, DeadLetterIsCountedOnce) {
  at_every_offset([&](int number) { return claimed(number); },
                  [&](Subject& subject) {
                    const auto retried = subject.through
                                             .retry(subject.id, subject.token,
                                                    {.delay = 1h, .max_attempts = 1, .error = "failed", .deadline = {}})
                                             .get();
                    ASSERT_TRUE(retried) << retried.error().message();
                    EXPECT_EQ(*retried, Retried::dead);
                  },
                  [&](Subject& subject) {
                    EXPECT_EQ(places(subject.past.name(), subject.id), std::multiset<std::string>{"dead"});
                    const auto counts = subject.past.counts().get();
                    ASSERT_TRUE(counts);
                    EXPECT_EQ(counts->failed, 1);
                  });
}

TEST_F(ReplyLost, HandBackIsDoneOnce) {
  at_every_offset([&](int number) { return claimed(number); },
                  [&](Subject& subject) {
                    const auto back = subject.through.hand_back(subject.id, subject.token).get();
                    EXPECT_TRUE(back) << back.error().message();
                  },
                  [&](Subject& subject) {
                    EXPECT_EQ(places(subject.past.name(), subject.id), std::multiset<std::string>{"pending"});
                    EXPECT_EQ(ask("HGET", key(subject, "job:" + std::string(subject.id.text())), "handbacks").as_text(),
                              "1");
                  });
}

struct Admitting {
  Queue through;
  Queue past;
  std::vector<JobId> ids;
};

class AdmissionReplyLost : public ReplyLost {
 protected:
  Admitting fresh(int number) {
    const QueueName name = numbered("admit", number);
    return {.through = client().queue(name), .past = direct().queue(name), .ids = {}};
  }
  // Exactly these jobs, each with one row, each pending once.
  void expect_admitted(Admitting& subject, std::size_t count) {
    ASSERT_EQ(subject.ids.size(), count);
    const std::string base = "emq:{" + std::string(subject.past.name().text()) + "}:";
    EXPECT_EQ(ask_number("ZCARD", base + "pending"), static_cast<std::int64_t>(count));
    for (const JobId& id : subject.ids) {
      EXPECT_FALSE(ask("ZSCORE", base + "pending", id.text()).is_null());
      EXPECT_EQ(ask("HGET", base + "job:" + std::string(id.text()), "payload").as_text(), "payload");
    }
    const auto keys = ask("KEYS", base + "job:*");  // a private server: nobody waits for it
    EXPECT_EQ(keys.size(), count);
  }
};

TEST_F(AdmissionReplyLost, EnqueueAdmitsOnce) {
  at_every_offset([&](int number) { return fresh(number); },
                  [&](Admitting& subject) {
                    const auto admitted = subject.through.enqueue("payload").get();
                    ASSERT_TRUE(admitted) << admitted.error().message();
                    EXPECT_NE(admitted->verdict, Admitted::duplicate);
                    subject.ids = {admitted->id};
                  },
                  [&](Admitting& subject) { expect_admitted(subject, 1); });
}

TEST_F(AdmissionReplyLost, EnqueueManyAdmitsEachOnce) {
  const std::vector<NewJob> jobs(3, NewJob{.payload = "payload", .id = {}});
  at_every_offset([&](int number) { return fresh(number); },
                  [&](Admitting& subject) {
                    const auto admitted = subject.through.enqueue_many(jobs).get();
                    ASSERT_TRUE(admitted) << admitted.error().message();
                    for (const auto& one : *admitted) {
                      ASSERT_TRUE(one) << one.error().message();
                      EXPECT_NE(one->verdict, Admitted::duplicate);
                      subject.ids.push_back(one->id);
                    }
                  },
                  [&](Admitting& subject) { expect_admitted(subject, 3); });
}

TEST_F(AdmissionReplyLost, AnIdOfTheCallersStaysOneJob) {
  at_every_offset([&](int number) { return fresh(number); },
                  [&](Admitting& subject) {
                    const JobId id{"JOB0KHTOWnGLuC"};
                    const auto admitted = subject.through.enqueue("payload", {.id = id}).get();
                    ASSERT_TRUE(admitted) << admitted.error().message();
                    subject.ids = {admitted->id};
                  },
                  [&](Admitting& subject) { expect_admitted(subject, 1); });
}

// A reply that never comes, on a link that stays: the heartbeat finds it dead and the call is repeated.
class ReplySwallowed : public ReplyLost {
 protected:
  [[nodiscard]] ClientOptions client_options() const override {
    ClientOptions options = hasty();
    options.heartbeat = 500ms;  // a link that is only slow stays
    return options;
  }
};

TEST_F(ReplySwallowed, CompleteSucceedsAndIsCountedOnce) {
  Subject warm = claimed(0);
  ASSERT_TRUE(warm.through.complete(warm.id, warm.token).get());
  for (int offset = 0; offset < 4; ++offset) {
    SCOPED_TRACE(offset);
    Subject subject = claimed(offset + 1);
    ready();
    const std::uint64_t struck = proxy().counters().swallowing;
    proxy().swallow_after(Direction::to_client, static_cast<std::uint64_t>(offset));
    const auto done = subject.through.complete(subject.id, subject.token).get();
    EXPECT_TRUE(done) << done.error().message();
    EXPECT_EQ(proxy().counters().swallowing, struck + 1);
    const auto counts = subject.past.counts().get();
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->completed, 1);
  }
}

TEST_F(ReplySwallowed, AClaimSaysThatItsOutcomeIsUnknown) {
  Subject warm = claimed(0);
  ASSERT_TRUE(warm.past.enqueue("payload").get());
  ready();
  proxy().swallow_after(Direction::to_client, 0);
  const auto job = warm.through.claim().get();
  ASSERT_FALSE(job);
  EXPECT_TRUE(job.error().is(Errc::outcome_unknown)) << job.error().message();
}

}  // namespace
}  // namespace echomq::test
