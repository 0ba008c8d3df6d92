// The demo's checker finds what it is there to find: a job that is lost, one that is accepted twice, a result that is
// wrong. It is fed with the bytes of a conversation, as the proxy would.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

// The checker is no part of the library, so it is compiled in here.
#include "../../demo/ledger.cpp"
#include "../../demo/verdict.cpp"

namespace demo {
namespace {

constexpr const char* kJob = "JOB0KHTOWnGLuC";
const std::string kGood(64, 'a');
const std::string kBad(64, 'b');

class DemoChecker : public ::testing::Test {
 protected:
  DemoChecker() {
    char pattern[] = "/tmp/echomq-checker-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  ~DemoChecker() override { std::filesystem::remove_all(folder_); }

  void ask(std::uint64_t connection, std::string_view script, std::vector<std::string> keys,
           const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"EVALSHA", std::string(echomq::script::find_script(script)->sha1),
                                      std::to_string(keys.size())};
    words.insert(words.end(), keys.begin(), keys.end());
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
      bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    // In two pieces, as the wire may cut it anywhere.
    ledger_.request_bytes(connection, std::string_view(bytes).substr(0, bytes.size() / 2));
    ledger_.request_bytes(connection, std::string_view(bytes).substr(bytes.size() / 2));
  }
  void answer(std::uint64_t connection, std::string_view bytes) { ledger_.reply_bytes(connection, bytes); }

  void claim(std::uint64_t connection, int token) {
    ask(connection, "claim", {"emq:{q}:pending", "emq:{q}:active"}, {"emq:{q}:job:", "1000"});
    answer(connection, ">2\r\n+noise\r\n:1\r\n*3\r\n$14\r\n" + std::string(kJob) +
                           "\r\n$1\r\nx\r\n:" + std::to_string(token) + "\r\n");
  }
  void complete(std::uint64_t connection, int token) {
    ask(connection, "complete", {"emq:{q}:active", "emq:{q}:job:x"}, {kJob, std::to_string(token), "emq:{q}:"});
  }
  void result(int token, const std::string& digest) {
    std::ofstream(folder_ + "/results", std::ios::app) << kJob << ' ' << token << ' ' << digest << '\n';
  }
  [[nodiscard]] Verdicts verdicts() const {
    EXPECT_EQ(ledger_.misread(), 0U);
    return judge({kJob}, {"/a/file"}, {kGood}, ledger_.entries(), Effects::read(folder_ + "/results"));
  }

  Ledger ledger_;
  std::string folder_;
};

TEST_F(DemoChecker, AnOrdinaryRunIsClean) {
  claim(1, 1);
  result(1, kGood);
  complete(1, 1);
  answer(1, ":1\r\n");
  const Verdicts found = verdicts();
  EXPECT_TRUE(found.clean());
  EXPECT_EQ(found.redelivered, 0U);
  EXPECT_EQ(found.equal, 1U);
}

TEST_F(DemoChecker, CallsOfManyJobsAreReadOneByOne) {
  const std::vector<std::string> keys = {"emq:{q}:pending", "emq:{q}:active"};
  ask(1, "take", keys, {"emq:{q}:", "2", "1000", "fl"});
  answer(1, "*5\r\n:0\r\n:0\r\n:1\r\n:0\r\n*1\r\n*4\r\n$14\r\n" + std::string(kJob) + "\r\n$1\r\nx\r\n:1\r\n_\r\n");
  result(1, kGood);
  ask(1, "settle_and_take", keys,
      {"emq:{q}:", "2", "1000", "fl", "JOB0KHTOWnGLuD", "1", "r", "no", "5", "3", "0", kJob, "1", "D", "yes", "0"});
  answer(1, "*2\r\n*2\r\n:-1\r\n:1\r\n*5\r\n:0\r\n:0\r\n:0\r\n:0\r\n*0\r\n");
  ask(1, "settle", keys, {"emq:{q}:", kJob, "1", "d"});
  answer(1, "*1\r\n:0\r\n");
  const std::vector<Entry> entries = ledger_.entries();
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].verdict, Verdict::claimed);
  EXPECT_EQ(entries[1].verb, Verb::retry);
  EXPECT_EQ(entries[1].verdict, Verdict::refused);
  EXPECT_EQ(entries[2].verb, Verb::complete);
  EXPECT_EQ(entries[2].verdict, Verdict::accepted);
  EXPECT_EQ(entries[3].verdict, Verdict::gone);
  EXPECT_TRUE(verdicts().clean());
}

TEST_F(DemoChecker, ASettleOfManyWithoutAnAnswerIsUncertainForEach) {
  claim(1, 1);
  result(1, kGood);
  ask(1, "settle", {"emq:{q}:pending", "emq:{q}:active"}, {"emq:{q}:", kJob, "1", "d", "JOB0KHTOWnGLuD", "1", "d"});
  ledger_.ended(1);
  std::size_t unanswered = 0;
  for (const Entry& entry : ledger_.entries()) {
    unanswered += entry.verdict == Verdict::unanswered ? 1 : 0;
  }
  EXPECT_EQ(unanswered, 2U);
}

TEST_F(DemoChecker, AJobWithoutACompletionIsLost) {
  EXPECT_EQ(verdicts().lost, 1U);
  claim(1, 1);
  result(1, kGood);
  EXPECT_EQ(verdicts().lost, 1U);
  complete(1, 1);
  answer(1, "-EMQSTALE complete token mismatch\r\n");
  EXPECT_EQ(verdicts().lost, 1U);
}

TEST_F(DemoChecker, ACompletionWithoutAResultIsLost) {
  claim(1, 1);
  complete(1, 1);
  answer(1, ":1\r\n");
  EXPECT_EQ(verdicts().lost, 1U);
}

TEST_F(DemoChecker, TwoAcceptedCompletionsAreTold) {
  claim(1, 1);
  result(1, kGood);
  complete(1, 1);
  answer(1, ":1\r\n");
  complete(2, 1);
  answer(2, ":1\r\n");
  EXPECT_EQ(verdicts().accepted_twice, 1U);
}

TEST_F(DemoChecker, ACompletionByAnOvertakenTokenIsTold) {
  claim(1, 1);
  claim(2, 2);
  result(1, kGood);
  result(2, kGood);
  complete(1, 1);
  answer(1, ":1\r\n");
  const Verdicts found = verdicts();
  EXPECT_EQ(found.accepted_twice, 1U);
  EXPECT_EQ(found.redelivered, 1U);
}

TEST_F(DemoChecker, TheResultOfTheAcceptedTokenIsTheOneThatCounts) {
  claim(1, 1);
  claim(2, 2);
  result(1, kGood);
  result(2, kBad);
  complete(1, 1);
  complete(2, 2);
  answer(1, "-EMQSTALE complete token mismatch\r\n");
  answer(2, ":1\r\n");
  const Verdicts found = verdicts();
  EXPECT_EQ(found.lost, 0U);
  EXPECT_EQ(found.accepted_twice, 0U);
  EXPECT_EQ(found.equal, 0U);
  EXPECT_EQ(found.discarded, 1U);
  EXPECT_FALSE(found.clean());
}

TEST_F(DemoChecker, ALostAnswerIsSettledByItsRepeat) {
  claim(1, 1);
  result(1, kGood);
  complete(1, 1);
  ledger_.ended(1);
  EXPECT_EQ(verdicts().lost, 1U);
  complete(2, 1);
  answer(2, ":0\r\n");
  const Verdicts found = verdicts();
  EXPECT_TRUE(found.clean());
  EXPECT_EQ(found.settled_unheard, 1U);
}

TEST_F(DemoChecker, ARepeatThatFindsTheJobGoneProvesNothingByItself) {
  claim(1, 1);
  result(1, kGood);
  complete(1, 1);
  answer(1, ":0\r\n");
  EXPECT_EQ(verdicts().lost, 1U);
}

TEST_F(DemoChecker, AnUnknownScriptIsNoVerdict) {
  claim(1, 1);
  result(1, kGood);
  complete(1, 1);
  answer(1, "-NOSCRIPT No matching script.\r\n");
  EXPECT_EQ(verdicts().lost, 1U);
  complete(1, 1);
  answer(1, ":1\r\n");
  EXPECT_TRUE(verdicts().clean());
}

TEST_F(DemoChecker, RepliesOutOfLineAreMisread) {
  answer(1, ":1\r\n");
  EXPECT_EQ(ledger_.misread(), 1U);
}

}  // namespace
}  // namespace demo
