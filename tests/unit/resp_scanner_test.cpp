// The frame finder: every type, every cut, every malformed byte, every limit, and never looking back.
#include "resp/scanner.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace echomq::resp;

struct Frame {
  std::string bytes;
  bool push;
  bool operator==(const Frame&) const = default;
};
struct Outcome {
  std::vector<Frame> frames;
  Step last = Step::need_more;
  bool operator==(const Outcome&) const = default;
};

/// Feeds the stream in chunks of `chunk` bytes, as a connection does: what is consumed is dropped, the rest moves to
/// the front of a fresh buffer.
Outcome feed(std::string_view stream, std::size_t chunk, Limits limits = {}) {
  Scanner scanner(limits);
  Outcome outcome;
  std::string buffer;
  for (std::size_t at = 0; at < stream.size();) {
    const std::string_view part = stream.substr(at, chunk);
    at += part.size();
    buffer = std::string(buffer.begin(), buffer.end()).append(part);
    for (;;) {
      outcome.last = scanner.scan(buffer);
      if (outcome.last != Step::frame)
        break;
      outcome.frames.push_back({buffer.substr(0, scanner.frame_size()), scanner.is_push()});
      buffer.erase(0, scanner.frame_size());
    }
    if (outcome.last == Step::error)
      return outcome;
  }
  return outcome;
}

/// The outcome, the same however the stream is cut.
Outcome scanned(std::string_view stream, Limits limits = {}) {
  const Outcome whole = feed(stream, stream.size() + 1, limits);
  for (std::size_t chunk = 1; chunk <= 7; ++chunk) {
    EXPECT_EQ(feed(stream, chunk, limits), whole) << "in chunks of " << chunk;
  }
  return whole;
}

/// One frame that is all of the stream.
void expect_frame(std::string_view stream, bool push = false) {
  SCOPED_TRACE(stream);
  const Outcome outcome = scanned(stream);
  ASSERT_EQ(outcome.frames.size(), 1U);
  EXPECT_EQ(outcome.frames[0].bytes, stream);
  EXPECT_EQ(outcome.frames[0].push, push);
  EXPECT_EQ(outcome.last, Step::need_more);
  // Any part of it is a part of a frame, not a frame and not an error.
  for (std::size_t size = 0; size < stream.size(); ++size) {
    EXPECT_EQ(scanned(stream.substr(0, size)), Outcome{}) << size;
  }
}

void expect_error(std::string_view stream, Limits limits = {}) {
  SCOPED_TRACE(stream);
  const Outcome outcome = scanned(stream, limits);
  EXPECT_EQ(outcome.last, Step::error);
  EXPECT_TRUE(outcome.frames.empty());
  Scanner scanner(limits);
  EXPECT_EQ(scanner.scan(stream), Step::error);
  EXPECT_FALSE(scanner.error().empty());
  EXPECT_EQ(scanner.scan("+OK\r\n"), Step::error) << "an error ends the stream";
  scanner.reset();
  EXPECT_EQ(scanner.scan("+OK\r\n"), Step::frame);
}

TEST(RespScanner, TheProtocolsVectors) {
  for (const std::string_view frame : {"+OK\r\n",
                                       ":42\r\n",
                                       "$2\r\nhi\r\n",
                                       "*2\r\n$1\r\na\r\n:1\r\n",
                                       "-ERR boom\r\n",
                                       "%1\r\n$1\r\na\r\n:1\r\n",
                                       "~3\r\n:1\r\n:2\r\n$1\r\nx\r\n",
                                       ",3.25\r\n",
                                       ",0\r\n",
                                       ",inf\r\n",
                                       ",-inf\r\n",
                                       ",nan\r\n",
                                       "#t\r\n",
                                       "#f\r\n",
                                       "_\r\n",
                                       "(3492890328409238509324850943850943825024385\r\n",
                                       "=15\r\ntxt:Some string\r\n",
                                       "=2\r\nab\r\n",
                                       "$-1\r\n",
                                       "*-1\r\n"}) {
    expect_frame(frame);
  }
  expect_frame(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", true);
  for (const std::string_view part :
       {"", "+OK", ",3.2", "#", "_", "*2\r\n:1\r\n", "%1\r\n$1\r\na", "~2\r\n:1", "=15\r\ntxt:Some str", "$5\r\nhe"}) {
    EXPECT_EQ(scanned(part), Outcome{}) << part;
  }
  expect_error("?nope\r\n");
  // What stands behind a frame is not its business.
  EXPECT_EQ(scanned("$2\r\nhi\r\ntail").frames, (std::vector<Frame>{{"$2\r\nhi\r\n", false}}));
  EXPECT_EQ(scanned("*-1\r\n+tail").frames, (std::vector<Frame>{{"*-1\r\n", false}}));
}

TEST(RespScanner, EveryOtherShape) {
  for (const std::string_view frame : {"+\r\n",
                                       "-\r\n",
                                       ":0\r\n",
                                       ":-1\r\n",
                                       ":+7\r\n",
                                       ":9223372036854775807\r\n",
                                       ":-9223372036854775808\r\n",
                                       ":000000000000000007\r\n",
                                       "$0\r\n\r\n",
                                       "$4\r\n\r\n\r\n\r\n",
                                       "!0\r\n\r\n",
                                       "!5\r\nERR x\r\n",
                                       "=4\r\ntxt:\r\n",
                                       "*0\r\n",
                                       "%0\r\n",
                                       "~0\r\n",
                                       "*3\r\n*0\r\n*1\r\n*-1\r\n_\r\n",
                                       ",1e10\r\n",
                                       ",-1.5E-3\r\n",
                                       ",.5\r\n",
                                       ",5.\r\n",
                                       ",-nan\r\n",
                                       ",1e999\r\n",
                                       "(-7\r\n",
                                       "(+7\r\n",
                                       "%2\r\n+a\r\n%1\r\n:1\r\n*2\r\n#t\r\n#f\r\n+b\r\n_\r\n",
                                       "+a\nb\r\n",
                                       "*2\r\n-ERR in an array\r\n+x\r\n"}) {
    expect_frame(frame);
  }
  expect_frame(">0\r\n", true);
}

TEST(RespScanner, AnAttributeBelongsToTheValueBehindIt) {
  expect_frame("|1\r\n+ttl\r\n:3600\r\n+value\r\n");
  expect_frame("|0\r\n+value\r\n");
  expect_frame("|1\r\n+a\r\n:1\r\n|2\r\n+b\r\n:2\r\n+c\r\n:3\r\n*1\r\n+x\r\n");
  expect_frame("*3\r\n:1\r\n|1\r\n+ttl\r\n:3600\r\n:2\r\n:3\r\n");
  expect_frame("%1\r\n|1\r\n+k\r\n+v\r\n+key\r\n|1\r\n+k\r\n*1\r\n|1\r\n:1\r\n:2\r\n:3\r\n+value\r\n");
  expect_frame("|1\r\n+a\r\n:1\r\n>1\r\n+pushed\r\n", true);
  expect_frame("*?\r\n|1\r\n+a\r\n:1\r\n:2\r\n.\r\n");
  expect_error("*?\r\n|1\r\n+a\r\n:1\r\n.\r\n");
  expect_error("*?\r\n|0\r\n.\r\n");
  expect_error("|?\r\n");
  expect_error("|-1\r\n");
}

TEST(RespScanner, StreamedStringsAndAggregates) {
  expect_frame("$?\r\n;4\r\nHell\r\n;5\r\no wor\r\n;1\r\nd\r\n;0\r\n");
  expect_frame("$?\r\n;0\r\n");
  expect_frame("*?\r\n:1\r\n:2\r\n:3\r\n.\r\n");
  expect_frame("*?\r\n.\r\n");
  expect_frame("%?\r\n+a\r\n:1\r\n+b\r\n*?\r\n%?\r\n.\r\n.\r\n.\r\n");
  expect_frame("~?\r\n+a\r\n$?\r\n;1\r\nx\r\n;0\r\n.\r\n");
  expect_frame("*2\r\n*?\r\n:1\r\n.\r\n$?\r\n;0\r\n");
  expect_error("%?\r\n+a\r\n.\r\n");
  expect_error(">?\r\n");
  expect_error("!?\r\n");
  expect_error("=?\r\n");
  expect_error(";1\r\nx\r\n");
  expect_error("*1\r\n;1\r\nx\r\n");
  expect_error("$?\r\n+a\r\n");
  expect_error("$?\r\n.\r\n");
  expect_error("$?\r\n;?\r\n");
  expect_error("$?\r\n;-1\r\n");
  expect_error("$?\r\n;1\r\nxy\r\n");
  expect_error(".\r\n");
  expect_error("*1\r\n.\r\n");
  expect_error("*?\r\n*1\r\n.\r\n");
  expect_error("*?x\r\n");
}

TEST(RespScanner, AWrongByteIsAnErrorAtOnce) {
  for (const std::string_view stream : {"\r\n",        "\n",         " ",
                                        "OK\r\n",      "?\r\n",      "#x",
                                        "#1\r\n",      "#tt",        "#t\n",
                                        "_x",          "_\rx",       "__",
                                        ":",           ":x",         ":\r\n",
                                        ":-",          ":--1\r\n",   ":1x",
                                        ":1 \r\n",     ":1\rx",      ":1\n",
                                        ":1.0\r\n",    "$",          "$x",
                                        "$\r\n",       "$-2\r\n",    "$-0\r\n",
                                        "$--1",        "$-1x",       "$+1\r\n",
                                        "$1x",         "$1\rx",      "$1\r\nabc",
                                        "$1\r\na\rx",  "$-1\rx",     "*-2\r\n",
                                        "*x",          "*\r\n",      "*1x",
                                        "*+1\r\n",     "%-1\r\n",    "~-1\r\n",
                                        ">-1\r\n",     "!-1\r\n",    "=-1\r\n",
                                        "%x",          "~x",         ">x",
                                        "!x",          "=x",         "|x",
                                        ",\r\n",       ",x\r\n",     ",1e\r\n",
                                        ",1..2\r\n",   ",0x1p3\r\n", ",infinity\r\n",
                                        ",--1\r\n",    ",1 \r\n",    ", 1\r\n",
                                        ",nan(1)\r\n", "(\r\n",      "(x\r\n",
                                        "(1.0\r\n",    "(-\r\n",     "+a\rb",
                                        "-a\rb",       "*1\r\nx",    "*2\r\n:1\r\n?"}) {
    const bool unfinished = stream == ":" || stream == ":-" || stream == "$";
    if (unfinished) {
      EXPECT_EQ(scanned(stream), Outcome{}) << stream;
    } else {
      expect_error(stream);
    }
  }
  expect_error(std::string(1, '\0'));
  expect_error("*1\r\n>1\r\n+a\r\n");
}

TEST(RespScanner, NumbersBeyondTheirRange) {
  expect_error(":9223372036854775808\r\n");
  expect_error(":-9223372036854775809\r\n");
  expect_error(":99999999999999999999\r\n");
  expect_error(":999999999999999999999999999999");
  expect_error("$18446744073709551616\r\n");
  expect_error("$99999999999999999999\r\n");
  expect_error("$000000000000000000000000");
  expect_error("*18446744073709551615\r\n");
  expect_error("%9223372036854775808\r\n");
}

TEST(RespScanner, Limits) {
  EXPECT_EQ(scanned("$10\r\n0123456789\r\n", {.bulk = 10}).frames.size(), 1U);
  expect_error("$11\r\n", {.bulk = 10});
  expect_error("$1073741825\r\n");
  EXPECT_EQ(scanned("*2\r\n:1\r\n:2\r\n", {.elements = 2}).frames.size(), 1U);
  expect_error("*3\r\n", {.elements = 2});
  expect_error("%3\r\n", {.elements = 2});
  expect_error("*268435457\r\n");

  EXPECT_EQ(scanned("+12345678\r\n", {.line = 8}).frames.size(), 1U);
  expect_error("+123456789\r\n", {.line = 8});
  expect_error("-123456789", {.line = 8});
  expect_error("(123456789", {.line = 8});
  Scanner usual;
  const std::string line = "+" + std::string(65537, 'x');
  EXPECT_EQ(usual.scan(line.data(), line.size() - 1), Step::need_more);
  EXPECT_EQ(usual.scan(line), Step::error);

  EXPECT_EQ(scanned("*3\r\n:1\r\n:2\r\n:3\r\n", {.frame = 16}).frames.size(), 1U);
  expect_error("*3\r\n:1\r\n:2\r\n:3\r\n", {.frame = 15});
  expect_error("$100\r\n", {.frame = 15});

  const auto nested = [](std::size_t depth) {
    std::string stream;
    for (std::size_t i = 0; i < depth; ++i)
      stream += "*1\r\n";
    return stream + "_\r\n";
  };
  expect_frame(nested(32));
  expect_error(nested(33));
  EXPECT_EQ(scanned(nested(3), {.depth = 3}).frames.size(), 1U);
  expect_error(nested(4), {.depth = 3});
  expect_error("|1\r\n|1\r\n|1\r\n", {.depth = 2});
  expect_error("*?\r\n*?\r\n$?\r\n", {.depth = 2});
  expect_error(nested(65), {.depth = 1000});
  expect_frame("*2\r\n" + nested(31) + nested(31));
  expect_error(std::string(1 << 20, '*'));
}

TEST(RespScanner, ManyFramesInOneBuffer) {
  std::string stream;
  std::vector<Frame> frames;
  for (int i = 0; i < 300; ++i) {
    frames.push_back({":" + std::to_string(i) + "\r\n", false});
    frames.push_back({">2\r\n+message\r\n$3\r\nabc\r\n", true});
    frames.push_back(
        {"*2\r\n$" + std::to_string(i) + "\r\n" + std::string(static_cast<std::size_t>(i), '\r') + "\r\n*0\r\n",
         false});
  }
  for (const Frame& frame : frames)
    stream += frame.bytes;
  const Outcome outcome = scanned(stream);
  EXPECT_EQ(outcome.frames, frames);
  EXPECT_EQ(outcome.last, Step::need_more);
}

/// Feeds byte by byte and destroys all that the scanner says it has passed: a look back would end in an error.
void expect_never_looks_back(const std::string& stream) {
  Scanner scanner;
  std::string buffer;
  std::size_t steps = 0;
  std::size_t destroyed = 0;
  for (const char byte : stream) {
    buffer += byte;
    const Step step = scanner.scan(buffer);
    ++steps;
    if (step == Step::frame) {
      EXPECT_EQ(scanner.frame_size(), stream.size());
      EXPECT_EQ(steps, stream.size());
      return;
    }
    ASSERT_EQ(step, Step::need_more) << scanner.error() << " at " << steps;
    ASSERT_GT(scanner.wanted(), buffer.size());
    for (; destroyed < scanner.position(); ++destroyed)
      buffer[destroyed] = '\r';
  }
  FAIL() << "no frame";
}

TEST(RespScanner, NeverLooksAtWhatItHasPassed) {
  std::string stream = "*4000\r\n";
  for (int i = 0; i < 1000; ++i)
    stream += "*1\r\n:" + std::to_string(i) + "\r\n$3\r\nabc\r\n+text\r\n|1\r\n+a\r\n,1.5\r\n#t\r\n";
  expect_never_looks_back(stream);
  expect_never_looks_back("*?\r\n%?\r\n+a\r\n$?\r\n;4\r\nHell\r\n;0\r\n.\r\n(123\r\n!3\r\nerr\r\n.\r\n");
}

TEST(RespScanner, ALargeStringInSmallChunksIsNotLookedAtAtAll) {
  // Each call while the string is on its way returns for want of bytes; what it would cost to look is not paid.
  const std::size_t size = 1 << 20;
  const std::string header = "$1048576\r\n";
  std::string buffer = header + std::string(size, 'x') + "\r\n";
  Scanner scanner;
  ASSERT_EQ(scanner.scan(buffer.data(), header.size()), Step::need_more);
  EXPECT_EQ(scanner.wanted(), buffer.size()) << "the caller can make room for all of it at once";
  // Nothing from here to the end may be read: the bytes are not there.
  std::vector<char> nothing(1);
  for (std::size_t have = header.size() + 1; have < buffer.size(); ++have) {
    ASSERT_EQ(scanner.scan(nothing.data(), have), Step::need_more);
  }
  EXPECT_EQ(scanner.scan(buffer), Step::frame);
  EXPECT_EQ(scanner.frame_size(), buffer.size());
}

TEST(RespScanner, ALongLineInSmallChunksIsSearchedOnce) {
  std::string buffer = "+";
  Scanner scanner;
  for (int i = 0; i < 60'000; ++i) {
    buffer += 'x';
    ASSERT_EQ(scanner.scan(buffer), Step::need_more) << scanner.error();
    buffer.back() = '\r';  // found only by looking again
  }
  buffer += "\r\n";
  EXPECT_EQ(scanner.scan(buffer), Step::frame);
  EXPECT_EQ(scanner.frame_size(), buffer.size());
}

TEST(RespScanner, ResetForgetsHalfAFrame) {
  Scanner scanner;
  EXPECT_EQ(scanner.scan("*3\r\n:1\r\n$10\r\nab"), Step::need_more);
  scanner.reset();
  EXPECT_EQ(scanner.scan("+OK\r\n"), Step::frame);
  EXPECT_EQ(scanner.frame_size(), 5U);
  scanner.reset();
  EXPECT_EQ(scanner.scan(":1\r\n"), Step::frame);
}

}  // namespace
