// Calls that are due a fixed time later.
#include "cache/deadlines.hpp"

#include <gtest/gtest.h>

#include <future>
#include <memory>

namespace echomq::cache {
namespace {

using namespace std::chrono_literals;

struct AddsWhenItGoes {
  AddsWhenItGoes(Deadlines& its_deadlines, std::promise<void>& its_promise)
      : deadlines(its_deadlines), ran(its_promise) {}
  AddsWhenItGoes(const AddsWhenItGoes&) = delete;
  AddsWhenItGoes& operator=(const AddsWhenItGoes&) = delete;
  ~AddsWhenItGoes() {
    deadlines.add([this_one = &ran] { this_one->set_value(); });
  }
  Deadlines& deadlines;
  std::promise<void>& ran;
};

// It went under the lock that `add` and `shutdown` take: the thread waited for itself.
TEST(CacheDeadlines, WhatACallHoldsMayAddAnotherWhenItGoes) {
  auto deadlines = std::make_unique<Deadlines>(5ms);
  std::promise<void> ran;
  deadlines->add([held = std::make_shared<AddsWhenItGoes>(*deadlines, ran)] {});
  const bool in_time = ran.get_future().wait_for(10s) == std::future_status::ready;
  EXPECT_TRUE(in_time);
  if (!in_time)
    (void)deadlines.release();  // its destructor would wait too
}

}  // namespace
}  // namespace echomq::cache
