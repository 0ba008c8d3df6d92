// Archives: folding, trimming by the watermark, histories over archive and live stream, and archivers that stand by.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "bus_fixture.hpp"
#include "echomq/archive.hpp"
#include "echomq/archiver.hpp"

namespace echomq::test {
namespace {

/// Counts how often the bytes of segments are read.
class CountedStore final : public SegmentStore {
 public:
  explicit CountedStore(std::shared_ptr<SegmentStore> inner) : inner_(std::move(inner)) {}
  Result<std::vector<Object>> list() override { return inner_->list(); }
  Result<std::string> get(std::string_view name, std::uint64_t offset, std::uint64_t size) override {
    data_reads += name.ends_with(".zst") ? 1 : 0;
    return inner_->get(name, offset, size);
  }
  Result<bool> put(std::string_view name, std::string_view bytes, Put how) override {
    return inner_->put(name, bytes, how);
  }
  Result<void> remove(std::string_view name) override { return inner_->remove(name); }
  bool appends() const noexcept override { return inner_->appends(); }
  Result<void> append(std::string_view name, std::uint64_t at, std::string_view bytes) override {
    return inner_->append(name, at, bytes);
  }
  Result<void> cut(std::string_view name, std::uint64_t size) override { return inner_->cut(name, size); }
  Result<void> sync(std::string_view name) override { return inner_->sync(name); }
  Result<std::shared_ptr<void>> lock() override { return inner_->lock(); }

  std::atomic<std::size_t> data_reads{0};

 private:
  const std::shared_ptr<SegmentStore> inner_;
};

class BusArchive : public BusServerTest {
 protected:
  void SetUp() override {
    BusServerTest::SetUp();
    char pattern[] = "/tmp/echomq-archive-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    store_ = LocalSegments::open(folder_).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void send(int count) {
    std::vector<Reply<EventId>> sent;
    for (int i = 0; i < count; ++i) {
      const std::string text = std::to_string(sent_++);
      const Field field{"k", text};
      sent.push_back(stream().append({&field, 1}));
    }
    for (auto& reply : sent) {
      const auto id = reply.get();
      ASSERT_TRUE(id) << id.error().message();
      last_ = *id;
    }
  }
  [[nodiscard]] Archiver archiver(ArchiverOptions options = {}) {
    auto made = Archiver::make(stream(), store_, std::move(options));
    EXPECT_TRUE(made) << made.error().message();
    return *std::move(made);
  }
  static ArchiverOptions keeping(std::uint64_t count) {
    ArchiverOptions options;
    options.retention.emplace();
    options.retention->keep.count = count;
    options.retention->how = Trim::exact;
    return options;
  }
  FoldReport fold(Archiver& archiver) {
    const auto done = archiver.fold();
    EXPECT_TRUE(done) << done.error().message();
    return done.value_or(FoldReport());
  }
  [[nodiscard]] std::vector<std::string> history(const HistoryRange& range = {}) {
    return drain(HistoryReader::open(stream(), store_, range));
  }
  [[nodiscard]] std::vector<std::string> archived(const HistoryRange& range = {}) {
    return drain(ArchiveReader::open(store_, range));
  }
  template <typename Reader>
  static std::vector<std::string> drain(Result<Reader> reader) {
    std::vector<std::string> out;
    EXPECT_TRUE(reader) << reader.error().message();
    for (;;) {
      auto record = reader->next();
      EXPECT_TRUE(record) << record.error().message();
      if (!record || !*record)
        return out;
      out.push_back(*(*record)->find("k"));
    }
  }
  [[nodiscard]] std::vector<std::string> sent(bool backwards = false) const {
    std::vector<std::string> out;
    for (int i = 0; i < sent_; ++i)
      out.push_back(std::to_string(i));
    if (backwards)
      std::reverse(out.begin(), out.end());
    return out;
  }
  void expect_sound() {
    const auto report = verify_archive(*store_);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_TRUE(report->faults.empty()) << report->faults.front();
  }
  static bool soon(const std::function<bool()>& condition) {
    for (const auto until = std::chrono::steady_clock::now() + 15s; std::chrono::steady_clock::now() < until;) {
      if (condition())
        return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  std::string folder_;
  std::shared_ptr<LocalSegments> store_;
  int sent_ = 0;
  EventId last_;
};

TEST_F(BusArchive, FoldsMarksAndTrims) {
  auto one = archiver(keeping(100));
  EXPECT_EQ(fold(one).folded, 0U);
  EXPECT_FALSE(stream().archived().get().value());
  send(2500);
  const FoldReport report = fold(one);
  EXPECT_EQ(report.folded, 2500U);
  EXPECT_EQ(report.trimmed, 2400U);
  EXPECT_EQ(stream().archived().get().value(), last_);
  EXPECT_EQ(stream().length().get().value(), 100U);
  EXPECT_EQ(archived(), sent());
  EXPECT_EQ(history(), sent());
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
  send(10);
  EXPECT_EQ(archived().size(), 2500U);
  EXPECT_EQ(history(), sent());
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
  EXPECT_EQ(fold(one).folded, 10U);
  EXPECT_EQ(fold(one).folded, 0U);
  expect_sound();
}

TEST_F(BusArchive, GoesOnWhereAnotherHasEnded) {
  for (int round = 0; round < 5; ++round) {
    auto one = archiver(keeping(3));
    send(50);
    EXPECT_EQ(fold(one).folded, 50U);
    one.stop();
  }
  EXPECT_EQ(archived(), sent());
  expect_sound();
}

TEST_F(BusArchive, SegmentsAreSealedAndFollowOneAnother) {
  ArchiverOptions options = keeping(0);
  options.segment_bytes = 2000;
  options.frame_records = 20;
  auto one = archiver(options);
  for (int round = 0; round < 10; ++round) {
    send(100);
    ASSERT_EQ(fold(one).trimmed, 100U);
  }
  const auto report = verify_archive(*store_);
  EXPECT_GT(report->segments, 3U);
  EXPECT_EQ(report->frames, 50U);
  expect_sound();
  EXPECT_EQ(history(), sent());
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
  one.stop();
  send(5);
  auto two = archiver(options);
  EXPECT_EQ(fold(two).folded, 5U);
  EXPECT_EQ(history(), sent());
}

TEST_F(BusArchive, AStoreOfWholeObjectsWorksTheSame) {
  store_ = LocalSegments::open(folder_, LocalSegments::Growth::whole).value();
  for (int round = 0; round < 3; ++round) {
    auto one = archiver(keeping(2));
    send(1500);
    EXPECT_EQ(fold(one).folded, 1500U);
    one.stop();
  }
  EXPECT_EQ(history(), sent());
  // One a page: each archiver begins with 100 entries, and reads 1,000 when it knows how small they are.
  EXPECT_EQ(verify_archive(*store_)->segments, 3U * 3);
  expect_sound();
}

TEST_F(BusArchive, ForeignEntriesAndBytesOfAnyKind) {
  raw("XADD", kKey, "*", "k", std::string("\xff\0\n", 3));
  const Field field{"k", "text"};
  ASSERT_TRUE(stream().append({&field, 1}).get());
  auto one = archiver(keeping(0));
  EXPECT_EQ(fold(one).trimmed, 2U);
  EXPECT_EQ(history(), (std::vector<std::string>{std::string("\xff\0\n", 3), "text"}));
}

TEST_F(BusArchive, AnEntryWithoutARecordIdStopsTheFoldBeforeIt) {
  const std::string id = std::to_string(
      std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  raw("XADD", kKey, id + "-1", "k", "0");
  raw("XADD", kKey, id + "-5000000", "k", "no id has such a tail");
  auto one = archiver(keeping(0));
  const auto done = one.fold();
  ASSERT_FALSE(done);
  EXPECT_TRUE(done.error().is(Errc::broken_state)) << done.error().message();
  EXPECT_EQ(stream().length().get().value(), 1U) << "what could not be archived is there, what could is trimmed";
  EXPECT_EQ(archived(), (std::vector<std::string>{"0"}));
}

/// Each fold of a period read and digested the segment anew.
TEST_F(BusArchive, AStuckFoldDoesNotReadItsFilesAgain) {
  send(100);
  auto before = archiver();
  fold(before);
  before.stop();
  const std::string far = std::to_string(last_.minted_at().time_since_epoch().count() + 1);
  raw("XADD", kKey, far + "-5000000", "k", "no id has such a tail");
  const auto counted = std::make_shared<CountedStore>(store_);
  ArchiverOptions often;
  often.period = 10ms;
  auto made = Archiver::make(stream(), counted, often);
  ASSERT_TRUE(made);
  made->start();
  ASSERT_TRUE(soon([&] { return made->stats().errors >= 20; }));
  EXPECT_EQ(counted->data_reads, 1U);
  raw("XDEL", kKey, far + "-5000000");
  ASSERT_TRUE(soon([&] { return made->stats().folds > made->stats().errors; })) << "it goes on when the entry is gone";
  EXPECT_EQ(counted->data_reads, 1U);
  made->stop();
}

TEST_F(BusArchive, FilesThatDoNotFitAreNotReadAgainBeforeTheyChange) {
  send(100);
  auto before = archiver(keeping(0));
  fold(before);
  before.stop();
  const std::string path = folder_ + "/" + std::string(EventId().text()) + ".jsonl.zst";
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::resize_file(path, whole.size() - 1);
  const auto counted = std::make_shared<CountedStore>(store_);
  ArchiverOptions often;
  often.period = 10ms;
  auto made = Archiver::make(stream(), counted, often);
  ASSERT_TRUE(made);
  made->start();
  ASSERT_TRUE(soon([&] { return made->stats().errors >= 5; }));
  const std::size_t reads = counted->data_reads;
  ASSERT_TRUE(soon([&] { return made->stats().errors >= 25; }));
  EXPECT_EQ(counted->data_reads, reads);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  ASSERT_TRUE(soon([&] { return made->stats().folds > made->stats().errors; })) << "mended files are seen";
  made->stop();
  expect_sound();
}

TEST_F(BusArchive, GroupsAreGuardedToo) {
  send(100);
  raw("XGROUP", "CREATE", kKey, "g", "0");
  ArchiverOptions options = keeping(0);
  options.retention->guard = GroupGuard::all;
  auto one = archiver(options);
  EXPECT_EQ(fold(one).trimmed, 0U);
  raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "40", "STREAMS", kKey, ">");
  EXPECT_EQ(fold(one).trimmed, 40U);
  EXPECT_EQ(history(), sent());
}

TEST_F(BusArchive, AWatermarkBeyondTheFilesIsRefused) {
  send(100);
  auto one = archiver(keeping(10));
  fold(one);
  one.stop();
  // Another folder, as another host might have.
  const std::string other = folder_ + "/other";
  store_ = LocalSegments::open(other).value();
  auto two = archiver(keeping(0));
  auto refused = two.fold();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().code == ArchiveErrc::broken) << refused.error().message();
  EXPECT_EQ(stream().length().get().value(), 10U);
  two.stop();
  EXPECT_TRUE(HistoryReader::open(stream(), store_)->next().error().code == ArchiveErrc::broken);
  ArchiverOptions knowing = keeping(0);
  knowing.continue_at_watermark = true;
  auto three = archiver(knowing);
  send(5);
  EXPECT_EQ(fold(three).folded, 5U);
  EXPECT_EQ(archived().size(), 5U);
}

// Nothing but its name says of a record whose it is: those of the second stream would count as archived up to the first one's newest.
TEST_F(BusArchive, AnArchiveIsOneStreams) {
  const Stream other = client().stream("q", "other");
  for (int i = 0; i < 10; ++i)
    append(other, "older");
  send(10);
  auto one = archiver();
  fold(one);
  one.stop();
  auto two = Archiver::make(other, store_, keeping(0));
  ASSERT_TRUE(two);
  const auto refused = two->fold();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().code == ArchiveErrc::broken) << refused.error().message();
  EXPECT_THAT(refused.error().text, ::testing::HasSubstr("other"));
  two->stop();
  EXPECT_EQ(other.length().get().value(), 10U);
  EXPECT_FALSE(other.archived().get().value());
  auto reader = HistoryReader::open(other, store_);
  ASSERT_TRUE(reader);
  EXPECT_TRUE(reader->next().error().code == ArchiveErrc::broken);
  // Its own stream goes on, and so does an archive that does not say whose it is, which says it from then on.
  send(10);
  auto three = archiver(keeping(0));
  EXPECT_EQ(fold(three).folded, 10U);
  three.stop();
  ASSERT_TRUE(std::filesystem::remove(folder_ + "/archive.json"));
  send(10);
  auto four = archiver(keeping(0));
  EXPECT_EQ(fold(four).folded, 10U);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/archive.json"));
  EXPECT_EQ(history(), sent());
}

// A stream that was deleted, or whose server has lost its newest, while ids were minted ahead: what comes next is below what is archived.
TEST_F(BusArchive, WhatComesBelowTheArchivesEndIsNotTrimmed) {
  const auto now = std::chrono::time_point_cast<Milliseconds>(std::chrono::system_clock::now());
  raw("XADD", kKey, std::to_string((now + 1h).time_since_epoch().count()) + "-1", "k", "0");
  auto one = archiver(keeping(0));
  EXPECT_EQ(fold(one).trimmed, 1U);
  raw("DEL", kKey);
  EXPECT_EQ(fold(one).folded, 0U) << "there is nothing that could be lost";
  for (int i = 0; i < 5; ++i)
    append("new");
  const auto refused = one.fold();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().code == ArchiveErrc::broken) << refused.error().message();
  EXPECT_EQ(stream().length().get().value(), 5U);
  // Nor by whoever sweeps.
  RetentionPolicy policy = *keeping(0).retention;
  policy.archived_only = true;
  const auto swept = retain(stream(), policy).get();
  ASSERT_TRUE(swept) << swept.error().message();
  EXPECT_EQ(swept->removed, 0U);
  EXPECT_EQ(swept->held_by, HeldBy::archive);
  policy.keep = {.count = {}, .age = 0ms, .bytes = {}};
  EXPECT_EQ(retain(stream(), policy).get()->removed, 0U);
  EXPECT_EQ(stream().length().get().value(), 5U);
  auto reader = HistoryReader::open(stream(), store_);
  EXPECT_TRUE(reader->next().error().code == ArchiveErrc::broken) << "they are in neither";
  one.stop();
  EXPECT_FALSE(one.fold()) << "nor when the files are opened anew";
  one.stop();
  // In another folder it goes on.
  ASSERT_TRUE(stream().clear_archived().get());
  store_ = LocalSegments::open(folder_ + "/again").value();
  auto two = archiver(keeping(0));
  const FoldReport report = fold(two);
  EXPECT_EQ(report.folded, 5U);
  EXPECT_EQ(report.trimmed, 5U);
  EXPECT_EQ(history().size(), 5U);
}

TEST_F(BusArchive, TheNewestDeletedIsNoNewBeginning) {
  send(10);
  auto one = archiver(keeping(5));
  EXPECT_EQ(fold(one).trimmed, 5U);
  raw("XDEL", kKey, last_.entry_id().text());
  RetentionPolicy policy = *keeping(2).retention;
  policy.archived_only = true;
  EXPECT_EQ(retain(stream(), policy).get()->removed, 2U) << "the top of the stream stays where it was";
  send(1);
  EXPECT_EQ(fold(one).folded, 1U);
}

TEST_F(BusArchive, AHistoryIsWholeWithoutAWatermarkAndWithAnOldOne) {
  send(10);
  auto one = archiver(keeping(0));
  fold(one);
  const EventId early = last_;
  send(90);
  fold(one);
  one.stop();
  send(5);
  ASSERT_TRUE(stream().clear_archived().get());
  EXPECT_EQ(history(), sent());
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
  ASSERT_TRUE(stream().put_archived(early).get()) << "as of a server that was restored";
  EXPECT_EQ(history(), sent());
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
  raw("FLUSHALL");
  sent_ -= 5;
  EXPECT_EQ(history(), sent()) << "all that is left";
  EXPECT_EQ(history({.direction = echomq::Direction::newest_first}), sent(true));
}

TEST_F(BusArchive, TheLastFailureIsToldUntilAllIsWellAgain) {
  send(10);
  auto one = archiver(keeping(0));
  fold(one);
  EXPECT_FALSE(one.stats().failure);
  raw("SET", "emq:{q}:stream:s:archived", "nonsense");
  send(1);
  EXPECT_FALSE(one.fold());
  ASSERT_TRUE(one.stats().failure);
  EXPECT_EQ(one.stats().errors, 1U);
  raw("SET", "emq:{q}:stream:s:archived", stream().read("-", "+").get()->records.at(0).id->text());
  EXPECT_EQ(fold(one).folded, 0U) << "it was written before";
  EXPECT_FALSE(one.stats().failure);
  raw("SET", "emq:{q}:stream:s:archived", "nonsense");
  send(1);
  EXPECT_FALSE(one.fold());
  EXPECT_TRUE(one.stats().failure);
}

TEST_F(BusArchive, ATornTailIsCutAndFoldedAgain) {
  send(100);
  auto one = archiver();
  fold(one);
  one.stop();
  const std::string name = std::string(EventId().text()) + ".jsonl.zst";
  send(100);
  // Written as far as the middle of a frame.
  std::ofstream(folder_ + "/" + name, std::ios::app | std::ios::binary) << "\x28\xB5\x2F\xFD half a frame";
  auto two = archiver(keeping(0));
  const FoldReport report = fold(two);
  EXPECT_EQ(report.cut, 17U);
  EXPECT_EQ(report.folded, 100U);
  EXPECT_EQ(history(), sent());
  expect_sound();
}

// What counts as archived must not be cut off as torn: it may be nowhere else.
TEST_F(BusArchive, DamageBelowTheWatermarkIsNotCut) {
  send(100);
  auto one = archiver(keeping(0));
  fold(one);
  one.stop();
  const std::string path = folder_ + "/" + std::string(EventId().text()) + ".jsonl.zst";
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 1);
  auto two = archiver(keeping(0));
  EXPECT_TRUE(two.fold().error().code == ArchiveErrc::broken);
  EXPECT_EQ(std::filesystem::file_size(path), size - 1);
}

TEST_F(BusArchive, WhatWasWrittenAndNotCountedIsCounted) {
  send(50);
  auto one = archiver();
  fold(one);
  one.stop();
  ASSERT_TRUE(stream().clear_archived().get());
  EXPECT_EQ(history().size(), 50U);
  auto two = archiver(keeping(0));
  EXPECT_EQ(fold(two).folded, 0U);
  EXPECT_EQ(stream().archived().get().value(), last_);
  EXPECT_EQ(history(), sent());
}

TEST_F(BusArchive, TheWatermarkWaitsForTheIntervalOfSyncs) {
  ArchiverOptions options = keeping(0);
  options.durability = Durability::interval;
  options.sync_interval = 1h;
  auto one = archiver(options);
  send(10);
  EXPECT_EQ(fold(one).folded, 10U);  // the first is due at once
  EXPECT_EQ(stream().length().get().value(), 0U);
  send(10);
  EXPECT_EQ(fold(one).trimmed, 0U) << "not durable yet";
  EXPECT_EQ(history(), sent());
  one.stop();
  EXPECT_EQ(stream().archived().get().value(), last_) << "a stop makes it durable";
}

TEST_F(BusArchive, OneOfTwoIsAtWorkAndTheOtherTakesOver) {
  ArchiverOptions options = keeping(5);
  options.lease = 1s;
  auto one = archiver(options);
  Client second = open();
  auto two =
      Archiver::make(second.stream(QueueName{"q"}, StreamName{"s"}), LocalSegments::open(folder_).value(), options);
  ASSERT_TRUE(two);
  send(10);
  EXPECT_EQ(fold(one).folded, 10U);
  EXPECT_TRUE(two->fold().error().code == ArchiveErrc::held);
  one.stop();
  send(10);
  EXPECT_EQ(fold(*two).folded, 10U);
  // The former holder comes back while the other is at work, then when that has said nothing for the length of a lease.
  send(10);
  EXPECT_TRUE(one.fold().error().code == ArchiveErrc::held);
  std::this_thread::sleep_for(1100ms);
  EXPECT_TRUE(one.fold().error().code == ArchiveErrc::held) << "the folder is locked still";
  EXPECT_TRUE(two->fold().error().code == ArchiveErrc::held) << "and the lease is the other's";
  EXPECT_EQ(fold(one).folded, 10U);
  EXPECT_EQ(history(), sent());
  expect_sound();
}

// Two stores of whole objects have no lock: what decides is who makes the object, and the fence.
TEST_F(BusArchive, AnOvertakenArchiverWritesNothingTwice) {
  store_ = LocalSegments::open(folder_, LocalSegments::Growth::whole).value();
  ArchiverOptions options = keeping(0);
  options.lease = 1s;
  std::function<void()> meanwhile;
  options.on_step = [&meanwhile](std::string_view step) {
    if (step == "read" && meanwhile)
      std::exchange(meanwhile, nullptr)();
  };
  auto slow = archiver(options);
  send(10);
  EXPECT_EQ(fold(slow).folded, 10U);
  send(10);
  ArchiverOptions plain = keeping(0);
  plain.lease = 1s;
  auto fast = archiver(plain);
  meanwhile = [&] {
    std::this_thread::sleep_for(1100ms);
    EXPECT_EQ(fold(fast).folded, 10U);
  };
  EXPECT_TRUE(slow.fold().error().code == ArchiveErrc::held);
  send(10);
  EXPECT_TRUE(slow.fold().error().code == ArchiveErrc::held);
  EXPECT_EQ(fold(fast).folded, 10U);
  EXPECT_EQ(history(), sent());
  expect_sound();
}

TEST_F(BusArchive, AHistoryIsWholeWhileAnArchiverFoldsAndTrims) {
  send(3000);
  ArchiverOptions options = keeping(50);
  options.period = 10ms;
  options.segment_bytes = 20'000;
  options.durability = Durability::never;
  auto one = archiver(options);
  one.start();
  std::atomic<bool> over{false};
  std::thread writer([&] {
    Client own = open();
    const Stream to = own.stream(QueueName{"q"}, StreamName{"s"});
    for (int i = 3000; i < 6000; ++i) {
      const std::string text = std::to_string(i);
      const Field field{"k", text};
      EXPECT_TRUE(to.append({&field, 1}).get());
    }
    over = true;
  });
  int readings = 0;
  while (!over) {
    const auto forward = history();
    ASSERT_GE(forward.size(), 3000U);
    for (std::size_t i = 0; i < forward.size(); ++i)
      ASSERT_EQ(forward[i], std::to_string(i));
    const auto backward = history({.direction = echomq::Direction::newest_first});
    for (std::size_t i = 0; i < backward.size(); ++i)
      ASSERT_EQ(backward[i], std::to_string(backward.size() - 1 - i));
    ++readings;
  }
  writer.join();
  sent_ = 6000;
  EXPECT_TRUE(soon([&] { return stream().length().get().value() == 50; }));
  one.stop();
  EXPECT_EQ(history(), sent());
  EXPECT_GE(readings, 1);
  EXPECT_EQ(one.stats().errors, 0U);
  EXPECT_EQ(one.stats().total.folded, 6000U);
  expect_sound();
}

TEST_F(BusArchive, RangesOfAHistory) {
  send(300);
  auto one = archiver(keeping(20));
  fold(one);
  send(50);
  const auto all = [&] {
    std::vector<Record> out;
    auto reader = HistoryReader::open(stream(), store_);
    for (auto record = reader->next(); record && *record; record = reader->next())
      out.push_back(**std::move(record));
    return out;
  }();
  ASSERT_EQ(all.size(), 350U);
  for (const auto& [first, last] :
       {std::pair{0, 349}, {10, 20}, {270, 310}, {299, 300}, {300, 349}, {349, 349}, {0, 0}}) {
    std::vector<std::string> expected;
    for (int i = first; i <= last; ++i)
      expected.push_back(std::to_string(i));
    HistoryRange range{.from = all[static_cast<std::size_t>(first)].entry,
                       .to = all[static_cast<std::size_t>(last)].entry};
    EXPECT_EQ(history(range), expected);
    range.direction = echomq::Direction::newest_first;
    std::reverse(expected.begin(), expected.end());
    EXPECT_EQ(history(range), expected);
  }
}

TEST_F(BusArchive, OptionsAreChecked) {
  EXPECT_TRUE(Archiver::make(stream(), nullptr).error().is(Errc::invalid_argument));
  ArchiverOptions options;
  options.level = 0;
  EXPECT_TRUE(Archiver::make(stream(), store_, options).error().is(Errc::invalid_argument));
  options = {};
  options.frame_records = 0;
  EXPECT_TRUE(Archiver::make(stream(), store_, options).error().is(Errc::invalid_argument));
}

}  // namespace
}  // namespace echomq::test
