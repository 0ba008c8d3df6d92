// Archivers that are killed: at each step of a fold in turn, in the middle of writes, and at random; while records
// come. Afterwards archive and live stream together have every record once, by our reader and by `zstd`.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child_program.hpp"
#include "echomq/archive.hpp"
#include "echomq/archiver.hpp"
#include "server/bus_fixture.hpp"

namespace echomq::test {
namespace {

/// Dies, by SIGKILL, when it is called the n-th time.
class Fuse {
 public:
  explicit Fuse(long left) : left_(left) {}
  void burn() {
    if (--left_ == 0)
      ::kill(::getpid(), SIGKILL);
  }
  /// Whether the next one is the last.
  [[nodiscard]] bool last() const { return left_ == 1; }

 private:
  long left_;
};

/// A folder whose every operation may be the last, before it, in its middle, or after it.
class DyingStore final : public SegmentStore {
 public:
  DyingStore(std::shared_ptr<SegmentStore> inner, Fuse& fuse) : inner_(std::move(inner)), fuse_(fuse) {}

  Result<std::vector<Object>> list() override {
    fuse_.burn();
    return inner_->list();
  }
  Result<std::string> get(std::string_view name, std::uint64_t offset, std::uint64_t size) override {
    return inner_->get(name, offset, size);
  }
  Result<bool> put(std::string_view name, std::string_view bytes, Put how) override {
    fuse_.burn();
    auto done = inner_->put(name, bytes, how);
    fuse_.burn();
    return done;
  }
  Result<void> remove(std::string_view name) override {
    fuse_.burn();
    auto done = inner_->remove(name);
    fuse_.burn();
    return done;
  }
  bool appends() const noexcept override { return inner_->appends(); }
  Result<void> append(std::string_view name, std::uint64_t at, std::string_view bytes) override {
    fuse_.burn();
    if (fuse_.last())
      (void)inner_->append(name, at, bytes.substr(0, bytes.size() / 2));
    fuse_.burn();
    auto done = inner_->append(name, at, bytes);
    fuse_.burn();
    return done;
  }
  Result<void> cut(std::string_view name, std::uint64_t size) override {
    fuse_.burn();
    auto done = inner_->cut(name, size);
    fuse_.burn();
    return done;
  }
  Result<void> sync(std::string_view name) override {
    fuse_.burn();
    auto done = inner_->sync(name);
    fuse_.burn();
    return done;
  }
  Result<std::shared_ptr<void>> lock() override {
    auto done = inner_->lock();
    fuse_.burn();
    return done;
  }

 private:
  const std::shared_ptr<SegmentStore> inner_;
  Fuse& fuse_;
};

ArchiverOptions small_files(std::uint64_t keep) {
  ArchiverOptions options;
  options.retention.emplace();
  options.retention->keep.count = keep;
  options.retention->how = Trim::exact;
  options.frame_records = 7;
  options.segment_bytes = 3000;
  options.lease = 1000ms;
  return options;
}

/// The child: folds until it is killed, or told by the end of its parent.
TEST(ArchiveChild, DISABLED_Fold) {
  const std::string url = variable("ECHOMQ_CHILD_URL");
  if (url.empty())
    GTEST_SKIP() << "started by the tests below, with their server's address";
  const pid_t parent = ::getppid();
  auto client = Client::open(url, {.node_lease = NodeLease::never});
  ASSERT_TRUE(client) << client.error().message();
  Fuse fuse(std::stol(variable("ECHOMQ_CHILD_FUSE")));
  const auto growth =
      variable("ECHOMQ_CHILD_WHOLE").empty() ? LocalSegments::Growth::append : LocalSegments::Growth::whole;
  auto store = std::make_shared<DyingStore>(LocalSegments::open(variable("ECHOMQ_CHILD_FOLDER"), growth).value(), fuse);
  ArchiverOptions options = small_files(20);
  options.on_step = [&fuse](std::string_view) { fuse.burn(); };
  auto archiver = Archiver::make(client->stream(QueueName{"q"}, StreamName{"s"}), store, std::move(options));
  ASSERT_TRUE(archiver) << archiver.error().message();
  while (::getppid() == parent) {
    (void)archiver->fold();
    std::this_thread::sleep_for(2ms);
  }
}

class ArchiveKills : public BusServerTest {
 protected:
  void SetUp() override {
    BusServerTest::SetUp();
    char pattern[] = "/tmp/echomq-archive-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::unique_ptr<ChildProgram> child(long fuse) {
    return std::make_unique<ChildProgram>(
        "ArchiveChild.DISABLED_Fold",
        std::vector<std::pair<std::string, std::string>>{{"ECHOMQ_CHILD_URL", server().url()},
                                                         {"ECHOMQ_CHILD_FOLDER", folder_},
                                                         {"ECHOMQ_CHILD_WHOLE", whole_ ? "1" : ""},
                                                         {"ECHOMQ_CHILD_FUSE", std::to_string(fuse)}});
  }
  void send(int count) {
    std::vector<Reply<EventId>> sent;
    for (int i = 0; i < count; ++i) {
      const std::string text = std::to_string(sent_++);
      const Field fields[] = {{"k", text}, {"bytes", std::string_view("\xff\n\0", 3)}};
      sent.push_back(stream().append(fields));
    }
    for (auto& reply : sent) {
      const auto id = reply.get();
      ASSERT_TRUE(id) << id.error().message();
      entries_.emplace_back(id->entry_id().text());
    }
  }
  /// A dead archiver's lease stands in nobody's way here: that it is waited for is tested elsewhere.
  void forget_lease() { raw("DEL", "emq:{q}:archive:s"); }

  [[nodiscard]] std::shared_ptr<LocalSegments> store() {
    return LocalSegments::open(folder_, whole_ ? LocalSegments::Growth::whole : LocalSegments::Growth::append).value();
  }

  /// Archive and live stream as they were left, then after a fold that nobody disturbs.
  void expect_all_once() {
    ASSERT_NO_FATAL_FAILURE(expect_history());
    forget_lease();
    auto last = Archiver::make(stream(), store(), small_files(20));
    const auto done = last->fold();
    ASSERT_TRUE(done) << done.error().message();
    last->stop();
    ASSERT_NO_FATAL_FAILURE(expect_history());
    const auto files = store();
    const auto report = verify_archive(*files);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_TRUE(report->faults.empty()) << report->faults.front();
    EXPECT_EQ(report->records, entries_.size());
    EXPECT_EQ(stream().length().get().value(), 20U);
    expect_by_zstd();
  }
  void expect_history() {
    auto reader = HistoryReader::open(stream(), store());
    ASSERT_TRUE(reader);
    std::size_t at = 0;
    for (;;) {
      auto record = reader->next();
      ASSERT_TRUE(record) << record.error().message();
      if (!*record)
        break;
      ASSERT_LT(at, entries_.size());
      ASSERT_EQ((*record)->entry, entries_[at]);
      ASSERT_EQ(*(*record)->find("k"), std::to_string(at));
      ASSERT_EQ(*(*record)->find("bytes"), std::string("\xff\n\0", 3));
      ++at;
    }
    ASSERT_EQ(at, entries_.size());
  }
  /// An outside reader: the files in the order of their names are the records in order, one a line.
  void expect_by_zstd() {
    std::vector<std::string> names;
    const auto objects = store()->list();
    ASSERT_TRUE(objects);
    for (const auto& object : *objects) {
      if (object.name.ends_with(".zst") && object.size > 0)
        names.push_back(object.name);
    }
    std::sort(names.begin(), names.end());
    std::string command = "zstd -dcq --";
    for (const std::string& name : names)
      command += " " + folder_ + "/" + name;
    std::FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    char piece[65536];
    for (std::size_t count; (count = std::fread(piece, 1, sizeof(piece), pipe)) > 0;)
      text.append(piece, count);
    const int status = ::pclose(pipe);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
      GTEST_SKIP() << "there is no zstd: only our own reader has looked";
    ASSERT_EQ(status, 0);
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < text.size(); ++at) {
      const std::size_t end = text.find('\n', begin);
      ASSERT_NE(end, std::string::npos);
      ASSERT_LT(at, entries_.size());
      const std::string line = text.substr(begin, end - begin);
      ASSERT_NE(line.find("\"entry\":\"" + entries_[at] + "\""), std::string::npos) << line;
      ASSERT_NE(line.find("[\"bytes\",{\"base64\":\"/woA\"}]"), std::string::npos) << line;
      begin = end + 1;
    }
    ASSERT_EQ(at, entries_.size());
  }

  /// One child for each step: it dies there.
  void each_step(long first, long steps) {
    for (long fuse = first; fuse <= steps; ++fuse) {
      ASSERT_NO_FATAL_FAILURE(send(60));
      forget_lease();
      auto one = child(fuse);
      const auto until = std::chrono::steady_clock::now() + 20s;
      while (!one->ended()) {
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "step " << fuse << " was never reached";
        // With something to do later steps come sooner.
        if (fuse > 60) {
          ASSERT_NO_FATAL_FAILURE(send(20));
        }
        std::this_thread::sleep_for(1ms);
      }
    }
    expect_all_once();
  }

  /// Two archivers at a time, one of which is killed at a random moment.
  void at_random(std::chrono::milliseconds length, unsigned seed) {
    std::mt19937 dice{seed};
    std::unique_ptr<ChildProgram> two[2];
    int kills = 0;
    const auto end = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < end) {
      for (auto& one : two) {
        if (!one || one->ended())
          one = child(dice() % 4 == 0 ? static_cast<long>(20 + dice() % 400) : 1'000'000'000);
      }
      const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(60 + dice() % 200);
      while (std::chrono::steady_clock::now() < next) {
        ASSERT_NO_FATAL_FAILURE(send(5 + static_cast<int>(dice() % 30)));
        std::this_thread::sleep_for(2ms);
      }
      auto& victim = two[dice() % 2];
      victim->kill();
      victim.reset();
      if (dice() % 2 == 0)
        forget_lease();
      ++kills;
    }
    for (auto& one : two)
      one.reset();
    expect_all_once();
    std::printf("[ %u ] %zu records, %d kills, %zu bytes of files\n", seed, entries_.size(), kills,
                static_cast<std::size_t>(verify_archive(*store())->bytes));
  }

  std::string folder_;
  bool whole_ = false;
  int sent_ = 0;
  std::vector<std::string> entries_;
};

TEST_F(ArchiveKills, AtEachStepOfAFold) { each_step(1, 60); }

TEST_F(ArchiveKills, AtEachStepWithWholeObjects) {
  whole_ = true;
  each_step(1, 25);
}

TEST_F(ArchiveKills, AtRandomWithTwoArchivers) { at_random(4s, 1); }

class LongRunArchiveKills : public ArchiveKills, public ::testing::WithParamInterface<unsigned> {};

TEST_P(LongRunArchiveKills, AtRandomWithTwoArchivers) {
  whole_ = GetParam() % 3 == 2;
  at_random(20s, 1000 + GetParam());
}
INSTANTIATE_TEST_SUITE_P(Seeds, LongRunArchiveKills, ::testing::Range(0U, 12U));

class LongRunArchiveSteps : public ArchiveKills {};
TEST_F(LongRunArchiveSteps, AtEachStepOfAFold) { each_step(1, 250); }

}  // namespace
}  // namespace echomq::test
