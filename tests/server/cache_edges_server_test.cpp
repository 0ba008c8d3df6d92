// The cache's edges: codecs and loaders that throw, the client's own bound, refreshes of short rows, late loaders, sizes.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/cache_fixture.hpp"

namespace echomq::test {
namespace {

class CacheEdges : public CacheServerTest {};

struct Note {
  std::string text;
};
/// Throws what its value says.
struct ThrowingCodec {
  static void throw_for(const std::string& text) {
    if (text.starts_with("throw"))
      throw std::runtime_error("no " + text);
    if (text == "number")
      throw 7;  // NOLINT(hicpp-exception-baseclass)
  }
  static std::string encode(const Note& note) {
    throw_for(note.text);
    return note.text;
  }
  static Note decode(const std::string& bytes) {
    throw_for(bytes);
    return {bytes};
  }
};
using Notes = Cache<Note, ThrowingCodec>;

[[nodiscard]] std::string said(const Result<Cached<Note>>& answer) {
  if (!answer)
    return answer.error().message();
  return answer->value ? answer->value->text : "(absent)";
}
constexpr const char* kRefused = "codec failed: no throw";

TEST_F(CacheEdges, WhatADecodeThrowsIsAnError) {
  raw("SET", key(kUserA), frame(kV1, "throw"), "PX", "60000");
  raw("SET", key(kUserB), frame(kV1, "number"), "PX", "60000");
  auto opened = Notes::open(client(), options());
  ASSERT_TRUE(opened);
  EXPECT_EQ(said(opened->get(kUserA).get()), kRefused) << "of L2";
  EXPECT_EQ(said(opened->get(kUserA).get()), kRefused) << "of L1";
  EXPECT_EQ(said(opened->get(kUserB).get()), "codec failed: an exception that is not a std::exception");
  opened->bytes().flush();
  const std::array<BrandedId, 2> both = {kUserA, kUserB};
  for (int i = 0; i < 2; ++i) {
    const auto many = opened->get_many(both).get();
    ASSERT_TRUE(many);
    EXPECT_EQ(said((*many)[0]), kRefused);
    EXPECT_TRUE((*many)[1].error().is(Errc::codec_failed));
  }
  const auto load = [](const BrandedId&) { return Result<std::optional<Loaded<Note>>>(std::optional<Loaded<Note>>()); };
  EXPECT_EQ(said(opened->get_or_load(kUserA, load).get()), kRefused);
}

TEST_F(CacheEdges, WhatAnEncodeThrowsIsAnError) {
  auto opened = Notes::open(client(), options(), [](const BrandedId&) {
    return Result<std::optional<Loaded<Note>>>(std::optional<Loaded<Note>>({Note{"throw"}, kV1}));
  });
  ASSERT_TRUE(opened);
  const auto refused = [](const Result<CachePut>& outcome) {
    return outcome ? std::string("stored") : outcome.error().message();
  };
  EXPECT_EQ(refused(opened->put(kUserA, {"throw"}).get()), kRefused);
  EXPECT_EQ(refused(opened->put(kUserA, {"throw"}, CachePutOptions{.ttl = 10s}).get()), kRefused);
  const std::vector<Notes::PutItem> items = {{kUserA, {"throw"}}, {kUserB, {"good"}}};
  const auto many = opened->put_many(items).get();
  ASSERT_TRUE(many);
  EXPECT_EQ(refused((*many)[0]), kRefused);
  EXPECT_EQ(refused((*many)[1]), "stored");
  EXPECT_EQ(said(opened->get(kUserA).get()), kRefused) << "of what the loader gave";
  EXPECT_EQ(stored(kUserA), "(none)");

  auto task =
      Notes::open_task(client(), options(), [](BrandedId, CancelToken) -> Task<Result<std::optional<Loaded<Note>>>> {
        co_return std::optional<Loaded<Note>>({Note{"throw"}, kV1});
      });
  ASSERT_TRUE(task);
  EXPECT_EQ(said(task->get(kUserA).get()), kRefused);
}

}  // namespace
}  // namespace echomq::test
