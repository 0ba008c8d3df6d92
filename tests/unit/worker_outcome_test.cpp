#include "worker/outcome.hpp"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace {

using echomq::Handler;
using echomq::Job;
using echomq::Milliseconds;
using echomq::Outcome;
using echomq::worker::last_bytes;
using echomq::worker::run_handler;

Outcome run(const Handler& handler) {
  Job job(nullptr);
  return run_handler(handler, job);
}

TEST(Outcome, IsDoneByDefault) {
  EXPECT_EQ(Outcome().kind, Outcome::Kind::done);
  EXPECT_FALSE(Outcome().has_result);
}

TEST(Outcome, AnEmptyResultIsStillAResult) {
  EXPECT_TRUE(echomq::Done("").has_result);
  EXPECT_FALSE(echomq::Done().has_result);
}

TEST(Outcome, CarriesWhatItsMakerSaid) {
  const Outcome retry = echomq::Retry("no route", Milliseconds{50});
  EXPECT_EQ(retry.kind, Outcome::Kind::retry);
  EXPECT_EQ(retry.text, "no route");
  EXPECT_EQ(retry.after, Milliseconds{50});
  EXPECT_EQ(echomq::Delay(Milliseconds{9}).after, Milliseconds{9});
  EXPECT_EQ(echomq::Dead("bad").kind, Outcome::Kind::dead);
  EXPECT_EQ(echomq::HandBack().kind, Outcome::Kind::hand_back);
}

TEST(Outcome, AnExceptionOfTheHandlerIsARetryWithItsMessage) {
  const Outcome thrown = run([](Job&) -> Outcome { throw std::runtime_error("disk full"); });
  EXPECT_EQ(thrown.kind, Outcome::Kind::retry);
  EXPECT_EQ(thrown.text, "disk full");
  EXPECT_EQ(run([](Job&) -> Outcome { throw std::bad_alloc(); }).text, "std::bad_alloc");
}

TEST(Outcome, AnExceptionOfAnyOtherTypeIsARetryThatSaysSo) {
  const Outcome thrown = run([](Job&) -> Outcome { throw 42; });
  EXPECT_EQ(thrown.kind, Outcome::Kind::retry);
  EXPECT_NE(thrown.text.find("exception"), std::string::npos);
}

TEST(LastBytes, KeepsAShortTextAndTheEndOfALongOne) {
  EXPECT_EQ(last_bytes("abc", 3), "abc");
  EXPECT_EQ(last_bytes("abcdef", 3), "def");
  EXPECT_EQ(last_bytes("abc", 0), "");
  EXPECT_EQ(last_bytes("", 5), "");
}

TEST(LastBytes, NeverCutsAUtf8SequenceInTwo) {
  EXPECT_EQ(last_bytes("xéy", 3), "éy");
  EXPECT_EQ(last_bytes("xéy", 2), "y");
  EXPECT_EQ(last_bytes("a\xF0\x9F\x98\x80z", 4), "z");
  EXPECT_EQ(last_bytes("a\xF0\x9F\x98\x80z", 5), "\xF0\x9F\x98\x80z");
}

TEST(LastBytes, LeavesBytesThatAreNotUtf8AsTheyAre) {
  const std::string junk(64, '\x80');
  EXPECT_EQ(last_bytes(junk, 32).size(), 32U);
}

}  // namespace
