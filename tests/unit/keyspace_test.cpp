// Keys of a queue and of the deployment, there and back.
#include "keyspace/keys.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

namespace {

using echomq::BrandedId;
using echomq::DedupId;
using echomq::JobId;
using echomq::LaneId;
using echomq::QueueName;
using namespace echomq::keyspace;

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  if (const auto at = text.find(what); at != std::string::npos)
    text.replace(at, what.size(), with);
  return text;
}

/// A key of that type in queue `orders`.
std::string sample(const KeySpec& spec) {
  std::string key(spec.key);
  key = replaced(key, "{q}", "{orders}");
  key = replaced(key, "<id>", "JOB0KHTOWnGLuC");
  key = replaced(key, "<group>", "USR0KHTOWnGLuC");
  key = replaced(key, "<dedup id>", "invoice-42");
  key = replaced(key, "<table>", "orders");
  key = replaced(key, "<name>", "daily");
  return replaced(key, "<q>", "orders");
}

TEST(Keyspace, TheProtocolsLiterals) {
  const QueueKeys keys(QueueName("q1"));
  EXPECT_EQ(keys.base(), "emq:{q1}:");
  EXPECT_EQ(keys.job_prefix(), "emq:{q1}:job:");
  EXPECT_EQ(keys.pending(), "emq:{q1}:pending");
  EXPECT_EQ(keys.job(JobId{"JOB0NgWEfAE00A"}).view(), "emq:{q1}:job:JOB0NgWEfAE00A");
  EXPECT_EQ(keys.job(BrandedId{"ORD0NgWEfAE00A"}).view(), "emq:{q1}:job:ORD0NgWEfAE00A");
  EXPECT_EQ(keys.slot(), 7450);
  EXPECT_EQ(QueueKeys(QueueName("orders")).job_prefix().size(), 17U);
  EXPECT_EQ(kVersionKey, "{emq}:version");
  EXPECT_EQ(kLocksKey, "{emq}:locks");
}

TEST(Keyspace, EveryFixedKeyIsItsTemplate) {
  const QueueKeys keys(QueueName("orders"));
  std::set<std::string> seen;
  for (const KeySpec& row : key_table().first(kFixedKeys)) {
    EXPECT_EQ(keys.fixed(row.type), sample(row));
    seen.insert(keys.fixed(row.type));
    EXPECT_EQ(slot(keys.fixed(row.type)), keys.slot());
  }
  EXPECT_EQ(seen.size(), kFixedKeys);
  // The accessors, each under its own name.
  EXPECT_EQ(keys.pending(), "emq:{orders}:pending");
  EXPECT_EQ(keys.active(), "emq:{orders}:active");
  EXPECT_EQ(keys.schedule(), "emq:{orders}:schedule");
  EXPECT_EQ(keys.dead(), "emq:{orders}:dead");
  EXPECT_EQ(keys.ring(), "emq:{orders}:ring");
  EXPECT_EQ(keys.wake(), "emq:{orders}:wake");
  EXPECT_EQ(keys.paused(), "emq:{orders}:paused");
  EXPECT_EQ(keys.glimit(), "emq:{orders}:glimit");
  EXPECT_EQ(keys.gactive(), "emq:{orders}:gactive");
  EXPECT_EQ(keys.gweight(), "emq:{orders}:gweight");
  EXPECT_EQ(keys.meta(), "emq:{orders}:meta");
  EXPECT_EQ(keys.limiter(), "emq:{orders}:limiter");
  EXPECT_EQ(keys.metrics_completed(), "emq:{orders}:metrics:completed");
  EXPECT_EQ(keys.metrics_failed(), "emq:{orders}:metrics:failed");
  EXPECT_EQ(keys.metrics_completed_data(), "emq:{orders}:metrics:completed:data");
  EXPECT_EQ(keys.metrics_failed_data(), "emq:{orders}:metrics:failed:data");
  EXPECT_EQ(keys.repeat(), "emq:{orders}:repeat");
  EXPECT_EQ(keys.flow_outbox(), "emq:{orders}:flow:outbox");
  EXPECT_EQ(keys.events(), "emq:{orders}:events");
  EXPECT_EQ(keys.parked(), "emq:{orders}:parked");
  EXPECT_EQ(keys.ended(), "emq:{orders}:ended");
  EXPECT_EQ(keys.streams(), "emq:{orders}:streams");
}

TEST(Keyspace, VariableKeysAreTheirTemplates) {
  const QueueKeys keys(QueueName("orders"));
  const JobId id{"JOB0KHTOWnGLuC"};
  const auto expect = [](KeyType type, std::string_view key) { EXPECT_EQ(key, sample(spec(type))); };
  expect(KeyType::job, keys.job(id));
  expect(KeyType::job_logs, keys.job_sub(id, Subkey::logs));
  expect(KeyType::job_lock, keys.job_sub(id, Subkey::lock));
  expect(KeyType::job_dependencies, keys.job_sub(id, Subkey::dependencies));
  expect(KeyType::job_processed, keys.job_sub(id, Subkey::processed));
  expect(KeyType::job_failed, keys.job_sub(id, Subkey::failed));
  expect(KeyType::job_unsuccessful, keys.job_sub(id, Subkey::unsuccessful));
  expect(KeyType::lane, keys.lane(LaneId{"USR0KHTOWnGLuC"}));
  expect(KeyType::dedup, keys.dedup(DedupId("invoice-42")));
  expect(KeyType::repeat_record, keys.repeat_record("daily"));
  expect(KeyType::stream, keys.stream("daily"));
  expect(KeyType::result, keys.result(id));
  expect(KeyType::stream_archived, keys.stream_archived("daily"));
  expect(KeyType::once, keys.once("daily"));
  expect(KeyType::once_ages, keys.once_ages("daily"));
  expect(KeyType::archive, keys.archive("daily"));
  expect(KeyType::result, keys.result(id));
  expect(KeyType::migration, migration_key(QueueName("orders")));
}

TEST(Keyspace, LongKeysLiveOnTheHeapAndCopiesAreWhole) {
  const QueueKeys keys(QueueName::parse(std::string(128, 'q')).value());
  const std::string name(5000, 'n');
  KeyText large = keys.stream(name);
  EXPECT_EQ(large.view(), keys.base() + "stream:" + name);
  KeyText small = keys.job(JobId{"JOB0KHTOWnGLuC"});
  const KeyText large_copy = large;
  const KeyText small_copy = small;
  EXPECT_EQ(large_copy.view(), large.view());
  EXPECT_EQ(small_copy.view(), keys.job_prefix() + "JOB0KHTOWnGLuC");
  large = small_copy;
  small = large_copy;
  EXPECT_EQ(large.view(), small_copy.view());
  EXPECT_EQ(small.view(), large_copy.view());
  // The longest usual key is inline; one byte past the buffer is not lost.
  for (const std::size_t size : {KeyText::kInline - 1, KeyText::kInline, KeyText::kInline + 1}) {
    EXPECT_EQ(KeyText::of(std::string(size, 'x')).view(), std::string(size, 'x'));
  }
}

TEST(Keyspace, EveryKeyIsReadBack) {
  for (const KeySpec& row : key_table()) {
    const std::string key = sample(row);
    const KeyInfo info = classify(key);
    EXPECT_EQ(info.type, row.type) << key;
    EXPECT_EQ(info.queue, key.starts_with("{emq}") ? "" : "orders") << key;
    const std::string_view part = row.key.find("<group>") != std::string_view::npos      ? "USR0KHTOWnGLuC"
                                  : row.key.find("<id>") != std::string_view::npos       ? "JOB0KHTOWnGLuC"
                                  : row.key.find("<dedup id>") != std::string_view::npos ? "invoice-42"
                                  : row.key.find("<name>") != std::string_view::npos     ? "daily"
                                  : row.key.find("<q>") != std::string_view::npos        ? "orders"
                                                                                         : "";
    EXPECT_EQ(info.part, part) << key;
  }
}

TEST(Keyspace, AnythingElseIsUnclassified) {
  for (const std::string_view key : {"",
                                     "emq",
                                     "emq:",
                                     "emq:{",
                                     "emq:{orders}",
                                     "emq:{orders}:",
                                     "emq:{orders}:pending:",
                                     "emq:{orders}:Pending",
                                     "emq:{orders}:pending ",
                                     "emq:{}:pending",
                                     "emq:{emq}:pending",
                                     "emq:{a b}:pending",
                                     "emq:{a}b}:pending",
                                     "emq:orders:pending",
                                     "emq:{orders}:job:",
                                     "emq:{orders}:job:12345678901234",
                                     "emq:{orders}:job:JOB0KHTOWnGLu",
                                     "emq:{orders}:job:JOB0KHTOWnGLuCx",
                                     "emq:{orders}:job:JOB0KHTOWnGLuC:",
                                     "emq:{orders}:job:JOB0KHTOWnGLuC:log",
                                     "emq:{orders}:job:JOB0KHTOWnGLuC:logs:",
                                     "emq:{orders}:g:USR0KHTOWnGLuC",
                                     "emq:{orders}:g:nobody:pending",
                                     "emq:{orders}:g:USR0KHTOWnGLuC:active",
                                     "emq:{orders}:g:",
                                     "emq:{orders}:de:",
                                     "emq:{orders}:de:a:b",
                                     "emq:{orders}:repeat:",
                                     "emq:{orders}:stream:",
                                     "emq:{orders}:metrics:other",
                                     "emq:{orders}:metrics:failed:",
                                     "{emq}:",
                                     "{emq}:other",
                                     "{emq}:version2",
                                     "{emq}:migration:",
                                     "{emq}:migration:emq",
                                     "ecc:{t}:coh",
                                     "ecc:{}:USR0KHTOWnGLuC",
                                     "ecc:{t}:USR0KHTOWnGLu",
                                     "ecc:{t}}:USR0KHTOWnGLuC"}) {
    EXPECT_EQ(classify(key).type, KeyType::unclassified) << key;
  }
  EXPECT_EQ(spec(KeyType::unclassified).key, "");
}

TEST(Keyspace, NamesOfOtherRuntimesMayHoldAnything) {
  EXPECT_EQ(classify("emq:{q}:repeat:every day: 5").type, KeyType::repeat_record);
  EXPECT_EQ(classify("emq:{q}:stream:a:b").part, "a:b");
  EXPECT_EQ(classify("emq:{q}:stream:a:archived").type, KeyType::stream_archived);
  EXPECT_EQ(classify("emq:{q}:stream:a:archived").part, "a");
  EXPECT_EQ(classify("emq:{q}:stream::archived").type, KeyType::stream);
  EXPECT_EQ(classify("emq:{q}:archive:a:b").part, "a:b");
  EXPECT_EQ(classify("emq:{q}:archive:").type, KeyType::unclassified);
}

TEST(Keyspace, ValueTypesAreTheServersWords) {
  EXPECT_EQ(to_string(spec(KeyType::pending).holds), "zset");
  EXPECT_EQ(to_string(spec(KeyType::stream).holds), "stream");
  EXPECT_EQ(to_string(spec(KeyType::events).holds), "channel");
  EXPECT_EQ(to_string(spec(KeyType::locks).holds), "none");
  EXPECT_TRUE(spec(KeyType::parked).extension);
  EXPECT_FALSE(spec(KeyType::job).extension);
}

}  // namespace
