// The archive's files: lines, frames, the index, torn tails, and reading by place and time. No server.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "archive/catalog.hpp"
#include "archive/frame.hpp"
#include "archive/line.hpp"
#include "archive/owner.hpp"
#include "archive/range.hpp"
#include "echomq/archive.hpp"

namespace echomq {
namespace {

using namespace archive;
using Fields = std::vector<std::pair<std::string, std::string>>;

Entry entry_of(std::uint64_t ms, std::uint64_t tail, Fields fields) {
  return {.number = {ms, tail}, .id = std::to_string(ms) + "-" + std::to_string(tail), .fields = std::move(fields)};
}
std::string line_of(const Entry& entry) {
  std::string line;
  append_line(line, entry);
  return line;
}
Record back(const Entry& entry) {
  const std::string line = line_of(entry);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  auto record = read_line(std::string_view(line).substr(0, line.size() - 1));
  EXPECT_TRUE(record) << record.error().message();
  EXPECT_EQ(record->first, entry.number);
  return record->second;
}

TEST(ArchiveLine, IsTheDocumentedOne) {
  EXPECT_EQ(line_of(entry_of(1'704'117'200'000, 1'620'567,
                             {{"id", "EVT000xY9Wvvcd"}, {"type", "paid"}, {"raw", std::string("\xff\0", 2)}})),
            R"({"id":"EVT000xY9Wvvcd","entry":"1704117200000-1620567","ms":1704117200000,)"
            R"("fields":[["type","paid"],["raw",{"base64":"/wA="}]]})"
            "\n");
  EXPECT_EQ(line_of(entry_of(5, 0, {})), "{\"id\":null,\"entry\":\"5-0\",\"ms\":5,\"fields\":[]}\n");
}

TEST(ArchiveLine, AnyBytesSurvive) {
  std::mt19937 dice{7};
  for (int round = 0; round < 2000; ++round) {
    Fields fields;
    for (std::size_t i = dice() % 4; i > 0; --i) {
      std::string name, value;
      for (std::size_t n = dice() % 6; n > 0; --n)
        name += static_cast<char>(dice() % 2 == 0 ? dice() % 256 : 'a' + dice() % 26);
      for (std::size_t n = dice() % 40; n > 0; --n)
        value += static_cast<char>(dice() % 3 == 0 ? dice() % 256 : ' ' + dice() % 90);
      fields.emplace_back(name, value);
    }
    EXPECT_EQ(back(entry_of(9, 9, fields)).fields, fields);
  }
  // Repeated names, order, text beyond ASCII, every control byte.
  std::string controls;
  for (char byte = 0; byte < 32; ++byte)
    controls += byte;
  const Fields fields = {
      {"k", "1"}, {"k", "2"}, {"", ""}, {"größe", "日本\xF0\x9F\x98\x80"}, {"c", controls + "\"\\\x7F"}};
  EXPECT_EQ(back(entry_of(9, 9, fields)).fields, fields);
}

TEST(ArchiveLine, TheReceiptIsReadAsOnTheStream) {
  const Record record = back(entry_of(1, 2, {{"id", "EVT000xY9Wvvcd"}, {"id", "mine"}, {"k", "v"}}));
  EXPECT_EQ(record.id->text(), "EVT000xY9Wvvcd");
  EXPECT_EQ(record.fields, (Fields{{"k", "v"}}));
  const Record foreign = back(entry_of(1, 2, {{"id", "no id"}, {"k", "v"}}));
  EXPECT_FALSE(foreign.id);
  EXPECT_EQ(foreign.fields, (Fields{{"id", "no id"}, {"k", "v"}}));
  // What a reader hides is in the file all the same.
  EXPECT_NE(line_of(entry_of(1, 2, {{"id", "EVT000xY9Wvvcd"}, {"id", "mine"}})).find("mine"), std::string::npos);
}

TEST(ArchiveLine, WhatIsNoneIsRefused) {
  for (const char* const line :
       {"", "{}", "[]", R"({"id":null,"entry":"x","fields":[]})", R"({"id":null,"entry":"1-1"})",
        R"({"id":"nope","entry":"1-1","fields":[]})", R"({"id":null,"entry":"1-1","fields":[["a"]]})",
        R"({"id":null,"entry":"1-1","fields":[["a",1]]})",
        R"({"id":null,"entry":"1-1","fields":[["a",{"base64":"?"}]]})"}) {
    const auto record = read_line(line);
    ASSERT_FALSE(record) << line;
    EXPECT_TRUE(record.error().code == ArchiveErrc::broken);
  }
}

TEST(ArchiveLine, Base64) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfd", "//79"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(base64(bytes), text);
    std::string decoded;
    EXPECT_TRUE(base64_decode(text, decoded));
    EXPECT_EQ(decoded, bytes);
  }
  std::string decoded;
  for (const char* const text : {"Z", "Zg=", "Zg===", "=Zg=", "Zg==Zg==", "Z===", "Zg=a"})
    EXPECT_FALSE(base64_decode(text, decoded)) << text;
}

TEST(ArchiveIndex, ReadsBackAsFarAsItIsWhole) {
  const Frame a{
      .at = 0, .size = 10, .raw = 30, .records = 2, .first = {1, 0}, .last = {1, 5}, .xxh64 = 0xFEDC'BA98'7654'3210};
  const Frame b{.at = 10, .size = 5, .raw = 9, .records = 1, .first = {2, 0}, .last = {2, 0}, .xxh64 = 1};
  const std::string text = index_line(a) + index_line(b) + seal_line({.size = 15, .records = 3, .xxh64 = 7});
  const Index all = read_index(text, 15);
  EXPECT_EQ(all.frames, (std::vector<Frame>{a, b}));
  ASSERT_TRUE(all.seal);
  EXPECT_EQ(all.seal->records, 3U);
  EXPECT_EQ(all.sound, text.size());
  for (std::size_t size = 0; size < text.size(); ++size) {
    const Index part = read_index(text.substr(0, size), 15);
    EXPECT_LE(part.sound, size);
    EXPECT_FALSE(part.seal);
    EXPECT_LE(part.frames.size(), 2U);
  }
  EXPECT_EQ(read_index(text, 12).frames.size(), 1U) << "the segment is shorter than the index says";
  EXPECT_EQ(read_index(index_line(b), 15).frames.size(), 0U) << "a gap";
  EXPECT_EQ(read_index(index_line(a) + index_line(a), 30).frames.size(), 1U) << "the same records twice";
}

TEST(ArchiveRange, BoundsAreThoseOfReads) {
  const auto span = [](std::string from, std::string to) {
    return span_of({.from = std::move(from), .to = std::move(to), .direction = Direction::oldest_first}).value();
  };
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  EXPECT_EQ(span("5", "7")->low, (bus::EntryNumber{5, 0}));
  EXPECT_EQ(span("5", "7")->high, (bus::EntryNumber{7, kMax}));
  EXPECT_EQ(span("(5-3", "(7-0")->low, (bus::EntryNumber{5, 4}));
  EXPECT_EQ(span("(5-3", "(7-0")->high, (bus::EntryNumber{6, kMax}));
  EXPECT_FALSE(span("7", "5"));
  EXPECT_FALSE(span("-", "(0-0"));
  EXPECT_FALSE(span_of({.from = "x", .to = "+", .direction = Direction::oldest_first}));
}

class ArchiveFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/echomq-archive-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    store_ = LocalSegments::open(folder_).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Records `first` to `last` of one millisecond each, as a frame; with its index line or without.
  void add(std::string_view behind, std::uint64_t first, std::uint64_t last, bool indexed = true) {
    std::string lines;
    for (std::uint64_t i = first; i <= last; ++i)
      append_line(lines, entry_of(kBase + i, 0, {{"n", std::to_string(i)}}));
    const std::string bytes = compress(lines, 3);
    const std::string name = std::string(behind) + ".jsonl.zst";
    std::uint64_t at = size_of(name);
    ASSERT_TRUE(store_->append(name, at, bytes));
    if (!indexed)
      return;
    Frame frame = describe(lines).value();
    frame.at = at;
    frame.size = bytes.size();
    frame.xxh64 = digest_of(bytes);
    const std::string index = std::string(behind) + ".index";
    ASSERT_TRUE(store_->append(index, size_of(index), index_line(frame)));
  }
  [[nodiscard]] std::uint64_t size_of(const std::string& name) {
    const auto objects = store_->list();
    for (const auto& object : *objects) {
      if (object.name == name)
        return object.size;
    }
    return 0;
  }
  static std::string id_behind(std::uint64_t number) {
    return std::string(EventId::from_entry_id(std::to_string(kBase + number) + "-0")->text());
  }
  [[nodiscard]] std::vector<int> read(const HistoryRange& range = {}) {
    std::vector<int> out;
    auto reader = ArchiveReader::open(store_, range);
    EXPECT_TRUE(reader) << reader.error().message();
    for (auto record = reader->next(); record && *record; record = reader->next())
      out.push_back(std::stoi(*(*record)->find("n")));
    return out;
  }
  /// What is read before the reader says that the archive is broken.
  [[nodiscard]] std::vector<int> read_to_hole(const HistoryRange& range = {}) {
    std::vector<int> out;
    auto reader = ArchiveReader::open(store_, range);
    EXPECT_TRUE(reader) << reader.error().message();
    for (;;) {
      const auto record = reader->next();
      if (!record) {
        EXPECT_TRUE(record.error().code == ArchiveErrc::broken) << record.error().message();
        EXPECT_FALSE(reader->next()) << "it stays so";
        return out;
      }
      if (!*record) {
        ADD_FAILURE() << "it has read over the hole";
        return out;
      }
      out.push_back(std::stoi(*(*record)->find("n")));
    }
  }
  static std::vector<int> numbers(int first, int last) {
    std::vector<int> out;
    for (int i = first; first <= last ? i <= last : i >= last; first <= last ? ++i : --i)
      out.push_back(i);
    return out;
  }

  static constexpr std::uint64_t kBase = 1'750'000'000'000;
  std::string folder_;
  std::shared_ptr<LocalSegments> store_;
};

const std::string kFirst(EventId().text());

TEST_F(ArchiveFiles, ReadsRangesInBothDirections) {
  add(kFirst, 1, 10);
  add(kFirst, 11, 20);
  add(id_behind(20), 21, 30);
  add(id_behind(30), 31, 40);
  EXPECT_EQ(read(), numbers(1, 40));
  EXPECT_EQ(read({.direction = Direction::newest_first}), numbers(40, 1));
  const auto at = [](int n) { return std::to_string(kBase + static_cast<std::uint64_t>(n)); };
  for (int from = 1; from <= 40; from += 3) {
    for (int to = from; to <= 40; to += 4) {
      EXPECT_EQ(read({.from = at(from), .to = at(to)}), numbers(from, to));
      EXPECT_EQ(read({.from = at(from), .to = at(to), .direction = Direction::newest_first}), numbers(to, from));
    }
    if (from > 1) {
      EXPECT_EQ(read({.from = "(" + at(from - 1) + "-0", .to = "+"}), numbers(from, 40));
    }
  }
  EXPECT_TRUE(read({.from = at(41)}).empty());
  const auto range = HistoryRange::between(Instant(Milliseconds(kBase + 5)), Instant(Milliseconds(kBase + 7)));
  EXPECT_EQ(read(*range), numbers(5, 7));
}

TEST_F(ArchiveFiles, WhatTheIndexLacksIsFoundAndATornTailIsNotThere) {
  add(kFirst, 1, 10);
  add(kFirst, 11, 20, false);
  EXPECT_EQ(read(), numbers(1, 20));
  const std::string name = kFirst + ".jsonl.zst";
  const std::uint64_t whole = size_of(name);
  add(kFirst, 21, 30, false);
  const std::uint64_t end = size_of(name);
  for (std::uint64_t size = end - 1; size > whole; --size) {
    ASSERT_TRUE(store_->cut(name, size));
    EXPECT_EQ(read(), numbers(1, 20));
  }
  std::filesystem::remove(folder_ + "/" + kFirst + ".index");
  EXPECT_EQ(read(), numbers(1, 20)) << "no index at all";
}

TEST_F(ArchiveFiles, DamageIsToldNotRead) {
  add(kFirst, 1, 10);
  add(kFirst, 11, 20);
  EXPECT_TRUE(verify_archive(*store_)->faults.empty());
  EXPECT_EQ(verify_archive(*store_)->records, 20U);
  const std::string path = folder_ + "/" + kFirst + ".jsonl.zst";
  std::FILE* const file = std::fopen(path.c_str(), "r+b");
  std::fseek(file, 30, SEEK_SET);
  std::fputc('!', file);
  std::fclose(file);
  auto reader = ArchiveReader::open(store_);
  const auto record = reader->next();
  ASSERT_FALSE(record);
  EXPECT_TRUE(record.error().code == ArchiveErrc::broken);
  EXPECT_EQ(verify_archive(*store_)->faults.size(), 1U);
}

TEST_F(ArchiveFiles, AMissingSegmentIsAFault) {
  add(kFirst, 1, 10);
  add(id_behind(10), 11, 20);
  add(id_behind(20), 21, 30);
  EXPECT_TRUE(verify_archive(*store_)->faults.empty());
  std::filesystem::remove(folder_ + "/" + id_behind(10) + ".jsonl.zst");
  EXPECT_EQ(verify_archive(*store_)->faults.size(), 1U);
}

// A reader that went on behind a hole as if nothing were there would show a history that never was.
TEST_F(ArchiveFiles, AHoleIsToldNotReadOver) {
  add(kFirst, 1, 10);
  add(id_behind(10), 11, 20);
  add(id_behind(20), 21, 30);
  std::filesystem::remove(folder_ + "/" + id_behind(10) + ".jsonl.zst");
  const auto at = [](int n) { return std::to_string(kBase + static_cast<std::uint64_t>(n)); };
  using Numbers = std::vector<int>;
  EXPECT_EQ(read_to_hole(), numbers(1, 10));
  EXPECT_EQ(read_to_hole({.direction = Direction::newest_first}), numbers(30, 21));
  EXPECT_EQ(read_to_hole({.from = at(12), .to = at(15)}), Numbers());
  EXPECT_EQ(read_to_hole({.from = at(12), .to = at(15), .direction = Direction::newest_first}), Numbers());
  EXPECT_EQ(read_to_hole({.from = at(20)}), Numbers());
  // Where nobody asks for it there is none.
  EXPECT_EQ(read({.from = at(21), .to = at(25)}), numbers(21, 25));
  EXPECT_EQ(read({.from = at(2), .to = at(9)}), numbers(2, 9));
  EXPECT_EQ(read({.from = at(2), .to = at(9), .direction = Direction::newest_first}), numbers(9, 2));
  EXPECT_EQ(read({.from = at(21), .direction = Direction::newest_first}), numbers(30, 21));
}

TEST_F(ArchiveFiles, DamageInFrontOfAnotherSegmentIsNoTornTail) {
  add(kFirst, 1, 10, false);
  const std::string name = kFirst + ".jsonl.zst";
  const std::uint64_t first = size_of(name);
  add(kFirst, 11, 20, false);
  add(id_behind(20), 21, 30);
  EXPECT_EQ(read(), numbers(1, 30));
  const std::string path = folder_ + "/" + name;
  std::FILE* const file = std::fopen(path.c_str(), "r+b");
  std::fseek(file, static_cast<long>(first) + 20, SEEK_SET);
  std::fputc('!', file);
  std::fclose(file);
  EXPECT_EQ(read_to_hole(), numbers(1, 10));
  EXPECT_EQ(read_to_hole({.direction = Direction::newest_first}), numbers(30, 21));
}

/// As a folder that is listed while an archiver writes: the first list has an old size, and lacks a file that is older than one it has.
class HastyStore final : public SegmentStore {
 public:
  explicit HastyStore(std::shared_ptr<SegmentStore> inner) : inner_(std::move(inner)) {}
  Result<std::vector<Object>> list() override {
    auto all = inner_->list();
    if (lists_++ == 0) {
      std::erase_if(*all, [&](const Object& one) { return one.name.starts_with(missing); });
      for (Object& one : *all)
        one.size = one.name == old ? old_size : one.size;
    }
    return all;
  }
  Result<std::string> get(std::string_view name, std::uint64_t offset, std::uint64_t size) override {
    return inner_->get(name, offset, size);
  }
  Result<bool> put(std::string_view name, std::string_view bytes, Put how) override {
    return inner_->put(name, bytes, how);
  }
  Result<void> remove(std::string_view name) override { return inner_->remove(name); }

  std::string missing;
  std::string old;
  std::uint64_t old_size = 0;

 private:
  const std::shared_ptr<SegmentStore> inner_;
  int lists_ = 0;
};

TEST_F(ArchiveFiles, AListThatIsNotOfOneMomentIsMadeAgain) {
  add(kFirst, 1, 10);
  const std::uint64_t size = size_of(kFirst + ".jsonl.zst");
  add(kFirst, 11, 20);
  add(id_behind(20), 21, 30);
  add(id_behind(30), 31, 40);
  add(id_behind(40), 41, 50);
  for (const auto direction : {Direction::oldest_first, Direction::newest_first}) {
    auto store = std::make_shared<HastyStore>(store_);
    store->missing = id_behind(20);
    store->old = kFirst + ".jsonl.zst";
    store->old_size = size;
    std::vector<int> out;
    auto reader = ArchiveReader::open(store, {.direction = direction});
    ASSERT_TRUE(reader);
    for (;;) {
      const auto record = reader->next();
      ASSERT_TRUE(record) << record.error().message();
      if (!*record)
        break;
      out.push_back(std::stoi(*(*record)->find("n")));
    }
    EXPECT_EQ(out, direction == Direction::oldest_first ? numbers(1, 50) : numbers(50, 1));
  }
}

TEST_F(ArchiveFiles, TheOwnerIsNamedOnce) {
  EXPECT_EQ(owner_text("q", "a\"b"), "{\"queue\":\"q\",\"stream\":\"a\\\"b\"}\n");
  EXPECT_EQ(owner_text("q", "\xff"), "{\"queue\":\"q\",\"stream\":{\"base64\":\"/w==\"}}\n");
  EXPECT_FALSE(check_owner(*store_, *store_->list(), owner_text("q", "a")).value());
  ASSERT_TRUE(claim(*store_, owner_text("q", "a")));
  ASSERT_TRUE(claim(*store_, owner_text("q", "a")));
  EXPECT_TRUE(claim(*store_, owner_text("q", "b")).error().code == ArchiveErrc::broken);
  EXPECT_TRUE(check_owner(*store_, *store_->list(), owner_text("q", "a")).value());
  EXPECT_TRUE(check_owner(*store_, *store_->list(), owner_text("r", "a")).error().code == ArchiveErrc::broken);
}

TEST_F(ArchiveFiles, AnObjectIsMadeWholeAndOnce) {
  EXPECT_TRUE(store_->put("a", "one", SegmentStore::Put::if_absent).value());
  EXPECT_FALSE(store_->put("a", "two", SegmentStore::Put::if_absent).value());
  EXPECT_EQ(store_->get("a", 0, 100).value(), "one");
  EXPECT_TRUE(store_->put("a", "three", SegmentStore::Put::replace).value());
  EXPECT_EQ(store_->get("a", 1, 3).value(), "hre");
  EXPECT_EQ(store_->get("a", 9, 3).value(), "");
  EXPECT_FALSE(store_->append("a", 4, "x")) << "it has five bytes";
  EXPECT_TRUE(store_->append("a", 5, "!"));
  EXPECT_TRUE(store_->sync("a"));
  EXPECT_EQ(store_->list()->size(), 1U) << "nothing temporary is left or listed";
  ASSERT_TRUE(store_->remove("a"));
  ASSERT_TRUE(store_->remove("a"));
  EXPECT_TRUE(store_->get("a", 0, 1).error().code == ArchiveErrc::storage_failed);
  for (const char* const name : {"", "../a", "a/b", ".hidden"})
    EXPECT_FALSE(store_->put(name, "x", SegmentStore::Put::replace)) << name;
}

TEST_F(ArchiveFiles, OneArchiverHasTheFolder) {
  auto mine = store_->lock();
  ASSERT_TRUE(mine);
  auto other = LocalSegments::open(folder_).value();
  EXPECT_TRUE(other->lock().error().code == ArchiveErrc::held);
  mine->reset();
  EXPECT_TRUE(other->lock());
}

}  // namespace
}  // namespace echomq
