// The log of a queue, read to its end and followed: what it says must be possible, and must be all that happened.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "echomq/event_log.hpp"

namespace echomq::test {

/// The whole log.
[[nodiscard]] inline std::vector<LogEntry> all_of(const EventLog& log) {
  std::vector<LogEntry> out;
  LogCursor cursor;
  for (;;) {
    auto page = log.read(cursor, {.count = 500}).get();
    EXPECT_TRUE(page) << page.error().message();
    if (!page)
      return out;
    for (LogEntry& entry : page->entries)
      out.push_back(std::move(entry));
    cursor = page->next;
    if (!page->more)
      return out;
  }
}

/// What the log says about a job, by its entries alone.
struct Told {
  std::string state = "absent";
  std::uint64_t attempts = 0;
};

/// Follows a log that has claims, from its beginning. Each entry must be a step that is possible from where its job was; the number of
/// claims rises by one with each `active` and with nothing else: so a step that is missing or twice there is seen.
[[nodiscard]] inline std::map<std::string, Told> replay(const std::vector<LogEntry>& entries) {
  using Step = std::pair<std::vector<std::string>, std::string>;
  // A late settle finds its job waiting again; a completion by the last holder is taken wherever the job is.
  static const std::map<std::string, Step> steps = {
      {"active", {{"pending"}, "active"}},
      {"completed", {{"active", "pending", "scheduled", "dead"}, "absent"}},
      {"failed", {{"active", "pending"}, "scheduled"}},
      {"delayed", {{"active", "pending"}, "scheduled"}},
      {"handed_back", {{"active"}, "pending"}},
      {"stalled", {{"active"}, "pending"}},
      {"promoted", {{"scheduled"}, "pending"}},
      {"dead", {{"active", "pending", "scheduled"}, "dead"}},
      {"cancelled", {{"pending", "scheduled", "active"}, "dead"}},
      {"reprocessed", {{"dead"}, "pending"}},
      {"removed", {{"pending", "scheduled", "dead", "active"}, "absent"}}};
  std::map<std::string, Told> jobs;
  for (const LogEntry& entry : entries) {
    if (!entry.job || entry.event == "cancel_requested")
      continue;
    Told& job = jobs[std::string(entry.job->text())];
    if (entry.event == "added") {
      EXPECT_EQ(job.state, "absent") << entry.id;
      job.state = entry.find("due") != nullptr ? "scheduled" : "pending";
      job.attempts = 0;
      continue;
    }
    const auto step = steps.find(entry.event);
    if (step == steps.end()) {
      ADD_FAILURE() << entry.event;
      continue;
    }
    EXPECT_THAT(step->second.first, ::testing::Contains(job.state)) << entry.id << ' ' << entry.event;
    job.state = step->second.second;
    if (entry.event == "active")
      ++job.attempts;
    EXPECT_EQ(entry.attempts, job.attempts) << entry.id << ' ' << entry.event;
  }
  return jobs;
}

}  // namespace echomq::test
