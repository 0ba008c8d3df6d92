// What `WorkerMetrics` counts, how exact its percentiles are, and the text that a scraper gets.
#include "echomq/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/histogram.hpp"
#include "queue_fake_core.hpp"
#include "worker/job.hpp"

namespace {

using namespace std::chrono_literals;
using echomq::Done;
using echomq::Job;
using echomq::JobId;
using echomq::JobVerdict;
using echomq::Latencies;
using echomq::LeaseLost;
using echomq::QueueMetrics;
using echomq::QueueName;
using echomq::WorkerMetrics;
using echomq::client::FineBuckets;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;

/// A job of the queue, minted so long ago.
Job job(const QueueName& name, std::uint64_t attempt = 1, std::chrono::milliseconds age = 0ms) {
  static const auto core = std::make_shared<echomq::test::FakeCore>();
  const auto minted = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now()) - age;
  echomq::ClaimedJob claimed;
  claimed.id = JobId::parse(echomq::BrandedId::smallest_for("JOB", minted).value().text()).value();
  claimed.token = echomq::Token(attempt);
  const echomq::Queue queue(std::make_shared<echomq::Queue::State>(name, core));
  return Job(std::make_shared<echomq::worker::JobState>(queue, std::move(claimed)));
}

QueueMetrics only(const WorkerMetrics& metrics) {
  auto all = metrics.snapshot();
  EXPECT_EQ(all.size(), 1U);
  return all.at(0);
}

TEST(FineBuckets, EveryValueIsInTheBucketThatEndsWithItOrLittleLater) {
  std::vector<std::uint64_t> values;
  for (unsigned bit = 0; bit < 63; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    values.insert(values.end(), {power - 1, power, power + 1, power + power / 3, power + power / 8 * 7});
  }
  std::sort(values.begin(), values.end());
  std::size_t before = 0;
  for (const std::uint64_t value : values) {
    const std::size_t index = FineBuckets::index_of(value);
    ASSERT_LT(index, FineBuckets::kCount);
    EXPECT_GE(index, before);
    before = index;
    EXPECT_GE(FineBuckets::last_of(index), value);
    EXPECT_LE(FineBuckets::last_of(index) - value, value / 8);
    if (index > 0) {
      EXPECT_LT(FineBuckets::last_of(index - 1), value);
    }
  }
  EXPECT_LT(FineBuckets::index_of(UINT64_MAX), FineBuckets::kCount);
}

TEST(WorkerMetrics, PercentilesAreAtMostAnEighthAboveTheTrueOnes) {
  WorkerMetrics metrics;
  const Job run = job("q");
  std::mt19937_64 random(7);  // NOLINT: the same values each time
  std::lognormal_distribution<double> spread(13, 2);
  std::vector<std::int64_t> took;
  for (int i = 0; i < 20'000; ++i) {
    took.push_back(static_cast<std::int64_t>(spread(random)));
    metrics.started(run);
    metrics.ended(run, Done(), nanoseconds{took.back()});
  }
  std::sort(took.begin(), took.end());
  const Latencies seen = only(metrics).run;
  EXPECT_EQ(seen.count, took.size());
  EXPECT_EQ(seen.max.count(), took.back());
  for (const double share : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(share * 20'000)));
    const std::int64_t exact = took[rank - 1];
    EXPECT_GE(seen.percentile(share).count(), exact) << share;
    EXPECT_LE(seen.percentile(share).count(), exact + exact / 8 + 1) << share;
  }
  for (std::size_t bound = 0; bound < Latencies::bounds().size(); ++bound) {
    const std::int64_t limit = Latencies::bounds()[bound].count();
    EXPECT_EQ(seen.at_most(bound), std::count_if(took.begin(), took.end(), [&](auto t) { return t <= limit; }));
  }
  EXPECT_EQ(Latencies().percentile(0.5), 0ns);
}

TEST(WorkerMetrics, CountsWhatItIsToldByQueue) {
  WorkerMetrics metrics;
  EXPECT_TRUE(metrics.snapshot().empty());
  EXPECT_TRUE(metrics.prometheus().empty());
  const Job a = job("a");
  const std::array<Job, 2> both = {a, a};
  metrics.claimed(both);
  metrics.started(a);
  metrics.started(a);
  metrics.ended(a, Done(), 3ms);
  metrics.settled(a, {JobVerdict::done, {}});
  metrics.settled(a, {JobVerdict::unsettled, "x"});
  metrics.settled(a, {JobVerdict::unsettled, "x"});
  metrics.lease_lost(a, LeaseLost::running);
  metrics.lease_lost(a, LeaseLost::waiting);
  metrics.timed_out(a);
  metrics.cancelled(a);
  metrics.leaked(a);
  metrics.leaked(a);
  metrics.leak_returned(a);
  const std::array<JobId, 3> ids{};
  metrics.recovered("b", ids, std::span(ids).first(1));

  const auto all = metrics.snapshot();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].queue, QueueName("a"));
  EXPECT_EQ(all[0].claimed, 2U);
  EXPECT_EQ(all[0].running, 1);
  EXPECT_EQ(all[0].ended(JobVerdict::done), 1U);
  EXPECT_EQ(all[0].ended(JobVerdict::unsettled), 2U);
  EXPECT_EQ(all[0].ended(JobVerdict::retry), 0U);
  EXPECT_EQ(all[0].leases_lost, 2U);
  EXPECT_EQ(all[0].timed_out, 1U);
  EXPECT_EQ(all[0].cancelled, 1U);
  EXPECT_EQ(all[0].leaked, 2U);
  EXPECT_EQ(all[0].leaked_now, 1);
  EXPECT_EQ(all[0].run.count, 1U);
  EXPECT_EQ(all[0].run.sum, 3ms);
  EXPECT_EQ(all[0].recovered, 0U);
  EXPECT_EQ(all[1].recovered, 3U);
  EXPECT_EQ(all[1].dead_stalled, 1U);
}

TEST(WorkerMetrics, TheWaitIsFromTheMintToTheFirstRun) {
  WorkerMetrics metrics;
  metrics.started(job("q", 1, 5s));
  metrics.started(job("q", 2, 1h));   // a later run: its wait is no wait for a worker
  metrics.started(job("q", 1, -1h));  // of a host whose clock is ahead
  const Latencies wait = only(metrics).wait;
  EXPECT_EQ(wait.count, 2U);
  EXPECT_GE(wait.max, 5s);
  EXPECT_LT(wait.max, 20s);
  EXPECT_EQ(wait.percentile(0.5), 0ns);
}

TEST(WorkerMetrics, ManyThreadsLoseNothing) {
  WorkerMetrics metrics;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&metrics, i] {
      const Job mine = job(i % 2 == 0 ? QueueName("even") : QueueName("odd"));
      for (int n = 0; n < 5'000; ++n) {
        metrics.started(mine);
        metrics.ended(mine, Done(), nanoseconds{n});
        metrics.settled(mine, {JobVerdict::done, {}});
        if (n % 1000 == 0)
          (void)metrics.prometheus();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const QueueMetrics& queue : metrics.snapshot()) {
    EXPECT_EQ(queue.ended(JobVerdict::done), 10'000U);
    EXPECT_EQ(queue.run.count, 10'000U);
    EXPECT_EQ(queue.run.max, 4999ns);
    EXPECT_EQ(queue.run.sum.count(), 2 * 4999LL * 5000 / 2 * 1);
    EXPECT_EQ(queue.running, 0);
  }
}

// The text format: https://prometheus.io/docs/instrumenting/exposition_formats (version 0.0.4).
TEST(WorkerMetrics, TheTextIsWellFormedAndSaysWhatWasCounted) {
  WorkerMetrics metrics;
  for (const char* name : {"mail", "a.b-c_9"}) {
    const Job one = job(QueueName::parse(name).value());
    metrics.claimed({&one, 1});
    metrics.started(one);
    metrics.ended(one, Done(), 30ms);
    metrics.ended(one, Done(), 1h);
    metrics.settled(one, {JobVerdict::dead, "no"});
  }
  const std::string text = metrics.prometheus();
  for (const char* line :
       {"# TYPE echomq_jobs_claimed_total counter\n", "\necho", "\nechomq_jobs_claimed_total{queue=\"mail\"} 1\n",
        "\nechomq_jobs_settled_total{queue=\"mail\",verdict=\"dead\"} 1\n",
        "\nechomq_jobs_settled_total{queue=\"a.b-c_9\",verdict=\"done\"} 0\n",
        "\nechomq_handlers_running{queue=\"mail\"} -1\n", "# TYPE echomq_job_run_seconds histogram\n",
        "\nechomq_job_run_seconds_bucket{queue=\"mail\",le=\"0.025\"} 0\n",
        "\nechomq_job_run_seconds_bucket{queue=\"mail\",le=\"0.05\"} 1\n",
        "\nechomq_job_run_seconds_bucket{queue=\"mail\",le=\"1800\"} 1\n",
        "\nechomq_job_run_seconds_bucket{queue=\"mail\",le=\"+Inf\"} 2\n",
        "\nechomq_job_run_seconds_sum{queue=\"mail\"} 3600.03\n", "\nechomq_job_run_seconds_count{queue=\"mail\"} 2\n"})
    EXPECT_THAT(text, HasSubstr(line));

  const std::regex sample(R"re(([a-z_]+)\{queue="[A-Za-z0-9._-]+"(,[a-z]+="[a-zA-Z0-9.+_]+")?\} -?[0-9.e+-]+)re");
  const std::regex comment(R"(# (HELP [a-z_]+ [A-Z][^\n]*\.|TYPE [a-z_]+ (counter|gauge|histogram)))");
  std::istringstream lines(text);
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.starts_with('#')) {
      ASSERT_TRUE(std::regex_match(line, comment)) << line;
      if (line.starts_with("# TYPE ")) {
        family = line.substr(7, line.rfind(' ') - 7);
        EXPECT_TRUE(families.insert(family).second) << family << " is headed twice";
      }
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    EXPECT_TRUE(match[1].str().starts_with(family)) << line << " under " << family;
  }
  EXPECT_EQ(families.size(), 12U);
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
