// Meter and CancelToken: what passes between parts of one process.
#include "echomq/meter.hpp"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "echomq/cancel.hpp"

namespace echomq {
namespace {

TEST(Meter, HandsAnEventToItsListenersOnly) {
  const Meter meter;
  std::vector<std::string> heard;
  const auto one = meter.attach("job.complete", [&](const Measured& measured) {
    heard.push_back(std::string(measured.label("job_id")) + " " + std::to_string(*measured.value("duration")));
    EXPECT_EQ(measured.value("delay"), nullptr);
    EXPECT_EQ(measured.label("worker"), "");
  });
  auto other = meter.attach("job.fail", [&](const Measured&) { heard.emplace_back("other"); });
  const std::array<std::pair<std::string_view, std::int64_t>, 1> values = {{{"duration", 1234}}};
  const std::array<std::pair<std::string_view, std::string_view>, 1> labels = {{{"job_id", "J"}}};
  EXPECT_EQ(meter.emit({"job.complete", values, labels}), 1U);
  EXPECT_EQ(meter.emit({"job.start", values, labels}), 0U);
  EXPECT_EQ(heard, std::vector<std::string>{"J 1234"});

  {
    const auto ends_here = std::move(other);
  }
  EXPECT_EQ(meter.emit({"job.fail", {}, {}}), 0U);
}

TEST(Meter, AListenerThatThrowsIsCountedAndTheOthersGoOn) {
  const Meter meter;
  int heard = 0;
  const auto bad = meter.attach("job.add", [](const Measured&) { throw std::runtime_error("listener"); });
  const auto good = meter.attach("job.add", [&](const Measured&) { ++heard; });
  EXPECT_EQ(meter.emit({"job.add", {}, {}}), 1U);
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(meter.failures(), 1U);
}

TEST(Meter, AListenerMayAttachAndDetach) {
  const Meter meter;
  Meter::Attachment inner;
  int heard = 0;
  const auto outer = meter.attach(
      "job.add", [&](const Measured&) { inner = meter.attach("job.add", [&](const Measured&) { ++heard; }); });
  EXPECT_EQ(meter.emit({"job.add", {}, {}}), 1U);
  EXPECT_EQ(meter.emit({"job.add", {}, {}}), 2U);
  EXPECT_EQ(heard, 1);
}

TEST(CancelToken, IsTakenOnce) {
  const CancelToken token;
  EXPECT_EQ(token.take(), std::nullopt);
  EXPECT_NO_THROW(token.throw_if_cancelled());
  token.cancel("stop");
  EXPECT_EQ(token.take(), "stop");
  EXPECT_EQ(token.take(), std::nullopt);
}

TEST(CancelToken, ThrowsItsReasonAndCopiesShareIt) {
  const CancelToken token;
  const CancelToken other;
  const CancelToken copy = token;
  copy.cancel("first");
  copy.cancel("again");
  EXPECT_NO_THROW(other.throw_if_cancelled());
  try {
    token.throw_if_cancelled();
    FAIL() << "nothing was thrown";
  } catch (const Cancelled& cancelled) {
    EXPECT_EQ(cancelled.reason(), "again");
    EXPECT_STREQ(cancelled.what(), "job cancelled: again");
  }
  EXPECT_EQ(copy.take(), std::nullopt);
}

}  // namespace
}  // namespace echomq
