// What the tool's commands hold of lines: those that wait to be printed, and the numbers of those that failed. No server.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "../../tools/emq/line_ranges.hpp"
#include "../../tools/emq/lines.hpp"

namespace emq {
namespace {

TEST(ToolLines, WhoeverHearsWaitsForWhoeverPrints) {
  Lines lines(Lines::kMost);
  for (std::size_t i = 0; i < Lines::kMost; ++i)
    lines.put(std::to_string(i), true);
  std::atomic<bool> put = false;
  std::thread hears([&] {
    lines.put("one too many", false);
    put = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(put);
  for (std::size_t i = 0; i < Lines::kMost; ++i)
    ASSERT_EQ(lines.take(), std::pair(std::to_string(i), true));
  EXPECT_EQ(lines.take(), std::pair(std::string("one too many"), false));
  hears.join();
}

TEST(ToolLines, NobodyWaitsAnyMoreOnceItIsClosed) {
  Lines lines(Lines::kMost);
  std::thread hears([&] {
    for (std::size_t i = 0; i < 2 * Lines::kMost; ++i)
      lines.put("line", true);
  });
  (void)lines.take();
  lines.close();
  hears.join();
  lines.put("line", true);
}

TEST(ToolLineRanges, AreToldAsText) {
  LineRanges ranges;
  EXPECT_EQ(ranges.text(), "");
  for (const std::uint64_t line : {3, 7, 8, 9, 12})
    ranges.add(line);
  EXPECT_EQ(ranges.text(), "3, 7-9, 12");
  EXPECT_EQ(boost::json::serialize(ranges.json()), "[[3,3],[7,9],[12,12]]");
  EXPECT_EQ(ranges.count(), 5U);
  for (std::uint64_t line = 100; line < 200; line += 2)
    ranges.add(line);
  EXPECT_TRUE(ranges.text().ends_with(" and more"));
  EXPECT_EQ(ranges.json().size(), 53U);
}

}  // namespace
}  // namespace emq
