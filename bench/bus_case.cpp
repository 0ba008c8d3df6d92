// The cases of the bus. Both sides write the same commands with the same payload: what a record is made of is the protocol's.
#include "bus_case.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "echomq/group_consumer.hpp"
#include "echomq/id.hpp"
#include "echomq/stream.hpp"
#include "must.hpp"

namespace echomq_bench {
namespace {

using namespace std::chrono_literals;
using echomq::EventId;

const std::string kKey = "emq:{bench}:stream:log";
const std::string kPayload(100, 'x');
constexpr std::size_t kWindow = 1024;  // appends that are not answered
constexpr std::size_t kMany = 1000;    // of one append_many
constexpr std::size_t kHundred = 100;
constexpr std::string_view kGroup = "g";
constexpr std::string_view kConsumer = "c";

[[nodiscard]] EventId mint(Bed& bed) { return EventId::from(must(bed.minter().next("EVT"))).value(); }

/// One record as the protocol has it: the receipt, and one field of 100 bytes.
[[nodiscard]] std::string append_request(EventId id) {
  const auto entry = id.entry_id();
  const std::string_view parts[] = {"XADD", kKey, entry.text(), "id", id.text(), "k", kPayload};
  return encode(parts);
}

/// A stream of `records` records, and its group, which has seen none of them.
std::vector<std::string> fill(Bed& bed, std::size_t records) {
  bed.flush();
  std::vector<std::string> requests;
  std::vector<std::string> entries;
  for (std::size_t i = 0; i < records; ++i) {
    const EventId id = mint(bed);
    requests.push_back(append_request(id));
    entries.emplace_back(id.entry_id().text());
  }
  bed.floor().run(requests, 256);
  const std::string_view group[] = {"XGROUP", "CREATE", kKey, kGroup, "0"};
  (void)bed.control().command(group);
  return entries;
}

struct Prepared {
  std::vector<std::string> requests;
  std::optional<echomq::GroupConsumer> consumer;
};

Case append_case(Bed& bed, std::size_t records, bool many) {
  auto prepared = std::make_shared<Prepared>();
  const echomq::Stream stream = bed.client().stream("bench", "log");
  Case one;
  one.name = many ? "append_many of 1,000" : "append, pipelined";
  one.must_be = 0.9;
  one.jobs = records;
  one.more_pairs = 3;
  one.prepare = [&bed, prepared, records](std::size_t) {
    bed.flush();
    prepared->requests.clear();
    for (std::size_t i = 0; i < records; ++i)
      prepared->requests.push_back(append_request(mint(bed)));
  };
  one.floor = [&bed, prepared](std::size_t window) { bed.floor().run(prepared->requests, window); };
  one.prepare_contender = [&bed] { bed.flush(); };
  if (many) {
    one.contender = [stream, records] {
      const echomq::Field field{"k", kPayload};
      const std::vector<echomq::NewRecord> batch(kMany, echomq::NewRecord{{&field, 1}});
      std::deque<echomq::Reply<std::vector<echomq::Result<EventId>>>> window;
      const auto take_one = [&] {
        for (auto& receipt : must(window.front().get()))
          (void)must(std::move(receipt));
        window.pop_front();
      };
      for (std::size_t at = 0; at < records; at += kMany) {
        window.push_back(stream.append_many(batch));
        if (window.size() >= 3)
          take_one();
      }
      while (!window.empty())
        take_one();
    };
  } else {
    one.contender = [stream, records] {
      const echomq::Field field{"k", kPayload};
      std::deque<echomq::Reply<EventId>> window;
      const auto take = [&](std::size_t keep) {
        while (window.size() > keep) {
          (void)must(window.front().get());
          window.pop_front();
        }
      };
      for (std::size_t i = 0; i < records; ++i) {
        window.push_back(stream.append({&field, 1}));
        if (window.size() >= kWindow)
          take(kWindow / 2);
      }
      take(0);
    };
  }
  return one;
}

/// The floor keeps `window` pairs of a read and the acknowledgement of an earlier read on their way, as a consumer that reads
/// ahead would.
Case group_case(Bed& bed, std::size_t records) {
  auto prepared = std::make_shared<Prepared>();
  const echomq::StreamGroup group = must(bed.client().stream("bench", "log").group(kGroup));
  Case one;
  one.name = "group, read and acknowledged by 100";
  one.must_be = 0.9;
  one.jobs = records;
  one.more_pairs = 3;
  one.windows = {2, 4, 8, 16};
  one.prepare = [&bed, prepared, records](std::size_t window) {
    prepared->consumer.reset();
    const std::vector<std::string> entries = fill(bed, records);
    prepared->requests.clear();
    const std::string_view read_parts[] = {"XREADGROUP", "GROUP",   kGroup, kConsumer, "COUNT",
                                           "100",        "STREAMS", kKey,   ">"};
    const std::string read = encode(read_parts);
    // The acknowledgement of what was read so many reads ago, when the socket has it.
    const std::size_t lag = std::max<std::size_t>(window / 2, 1);
    for (std::size_t at = 0; at < records + lag * kHundred; at += kHundred) {
      if (at < records)
        prepared->requests.push_back(read);
      if (at < lag * kHundred)
        continue;
      std::vector<std::string_view> ack = {"XACK", kKey, kGroup};
      const std::size_t from = at - lag * kHundred;
      ack.insert(ack.end(), entries.begin() + static_cast<std::ptrdiff_t>(from),
                 entries.begin() + static_cast<std::ptrdiff_t>(std::min(from + kHundred, records)));
      prepared->requests.push_back(encode(ack));
    }
  };
  one.floor = [&bed, prepared](std::size_t window) { bed.floor().run(prepared->requests, window); };
  one.prepare_contender = [&bed, prepared, records] {
    prepared->consumer.reset();
    (void)fill(bed, records);
  };
  one.contender = [&bed, prepared, group, records] {
    auto handled = std::make_shared<std::atomic<std::size_t>>(0);
    prepared->consumer.emplace(must(echomq::GroupConsumer::start(group, kConsumer,
                                                                 [handled](const echomq::StreamMessage&) {
                                                                   handled->fetch_add(1, std::memory_order_relaxed);
                                                                   return echomq::Handled::done;
                                                                 },
                                                                 {.count = kHundred})));
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (handled->load(std::memory_order_relaxed) < records) {
      if (std::chrono::steady_clock::now() > until)
        give_up("the consumer has not handled its records in a minute");
      std::this_thread::sleep_for(200us);
    }
    // Ends when the last acknowledgement is answered.
    prepared->consumer->stop();
    const std::string_view pending[] = {"XPENDING", kKey, kGroup};
    if (!bed.control().command(pending).starts_with("*4\r\n:0\r\n"))
      give_up("the consumer has left records unacknowledged");
  };
  one.clean = [prepared] { prepared->consumer.reset(); };
  return one;
}

}  // namespace

std::vector<Case> make_bus_cases(Bed& bed, double scale) {
  const std::size_t records = std::max<std::size_t>(static_cast<std::size_t>(100 * scale), 4) * kMany;
  std::vector<Case> cases;
  cases.push_back(append_case(bed, records, false));
  cases.push_back(append_case(bed, records, true));
  cases.push_back(group_case(bed, records));
  return cases;
}

}  // namespace echomq_bench
