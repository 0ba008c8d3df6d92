// The boot conversation: order, RESP2 fallback, the version fence, what is final and what may pass.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "wire/boot.hpp"

namespace echomq {
namespace {

wire::BootSettings settings() {
  wire::BootSettings out;
  out.client_name = "echomq";
  out.wire_version = "echomq:3.0.0";
  out.accepted_versions = {"echomq:3.0.0"};
  return out;
}

std::string words(const std::string& command) {  // "*2\r\n$3\r\nGET..." -> "GET key"
  std::string out;
  for (std::size_t at = 0; (at = command.find("\r\n", at)) != std::string::npos; at += 2) {
    const std::size_t end = command.find("\r\n", at + 2);
    if (end == std::string::npos || command[at + 2] == '$')
      continue;
    out += (out.empty() ? "" : " ") + command.substr(at + 2, end - at - 2);
  }
  return out;
}

wire::Boot::Step answer(wire::Boot& boot, const std::string& reply) { return boot.take(resp::View(reply)); }

constexpr const char* kHello = "%1\r\n$5\r\nproto\r\n:3\r\n";

TEST(Boot, GoesInOrderAndClaimsAnAbsentVersion) {
  wire::BootSettings all = settings();
  all.user = "app";
  all.password = "pw";
  all.database = 4;
  wire::Boot boot(all);
  EXPECT_EQ(words(boot.next()), "HELLO 3 AUTH app pw");
  EXPECT_EQ(answer(boot, kHello), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "SELECT 4");
  EXPECT_EQ(answer(boot, "+OK\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "CLIENT SETNAME echomq");
  EXPECT_EQ(answer(boot, "+OK\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "CLIENT ID");
  EXPECT_EQ(answer(boot, ":17\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "GET {emq}:version");
  EXPECT_EQ(answer(boot, "_\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "SET {emq}:version echomq:3.0.0 NX");
  EXPECT_EQ(answer(boot, "+OK\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "GET {emq}:version");
  EXPECT_EQ(answer(boot, "$12\r\nechomq:3.0.0\r\n"), wire::Boot::Step::live);
  EXPECT_EQ(boot.protocol(), 3);
  EXPECT_EQ(boot.connection_id(), 17);
}

TEST(Boot, LeavesTheFenceToTheNodeOfAClusterThatHasIt) {
  for (const bool in_cluster : {true, false}) {
    wire::BootSettings node = settings();
    node.in_cluster = in_cluster;
    wire::Boot boot(node);
    for (const char* reply : {kHello, "+OK\r\n", ":3\r\n"}) {
      (void)boot.next();
      ASSERT_EQ(answer(boot, reply), wire::Boot::Step::more);
    }
    EXPECT_EQ(words(boot.next()), "GET {emq}:version");
    EXPECT_EQ(answer(boot, "-MOVED 9051 127.0.0.1:7001\r\n"),
              in_cluster ? wire::Boot::Step::live : wire::Boot::Step::failed);
    EXPECT_FALSE(boot.final());
  }
}

TEST(Boot, FallsBackToRespTwo) {
  wire::BootSettings with_password = settings();
  with_password.password = "pw";
  wire::Boot boot(with_password);
  (void)boot.next();
  EXPECT_EQ(answer(boot, "-ERR unknown command 'HELLO'\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "AUTH pw");
  EXPECT_EQ(answer(boot, "+OK\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(words(boot.next()), "CLIENT SETNAME echomq");
  EXPECT_EQ(boot.protocol(), 2);
}

TEST(Boot, OnlyAnotherVersionStringIsAMismatch) {
  struct Row {
    const char* reply;
    Errc code;
    bool final;
  };
  for (const Row& row :
       {Row{"$12\r\nechomq:2.0.0\r\n", Errc::version_mismatch, true},
        Row{"-LOADING the dataset\r\n", Errc::loading, false}, Row{"-NOPERM no\r\n", Errc::no_permission, false},
        Row{"-MASTERDOWN link\r\n", Errc::loading, false}}) {
    const wire::BootSettings plain = settings();
    wire::Boot boot(plain);
    (void)answer(boot, kHello);
    (void)answer(boot, "+OK\r\n");
    (void)answer(boot, ":1\r\n");
    EXPECT_EQ(answer(boot, row.reply), wire::Boot::Step::failed) << row.reply;
    EXPECT_TRUE(boot.error().is(row.code)) << boot.error().message();
    EXPECT_EQ(boot.final(), row.final) << row.reply;
  }
}

TEST(Boot, AReadOnlyServerWithoutAVersionIsNotAMismatch) {
  const wire::BootSettings plain = settings();
  wire::Boot boot(plain);
  (void)answer(boot, kHello);
  (void)answer(boot, "+OK\r\n");
  (void)answer(boot, ":1\r\n");
  EXPECT_EQ(answer(boot, "_\r\n"), wire::Boot::Step::more);
  EXPECT_EQ(answer(boot, "-READONLY You can't write against a read only replica.\r\n"), wire::Boot::Step::failed);
  EXPECT_TRUE(boot.error().is(Errc::read_only));
  EXPECT_FALSE(boot.final());
}

TEST(Boot, RefusedCredentialsAndDatabasesAreFinal) {
  const wire::BootSettings plain = settings();
  wire::Boot auth(plain);
  EXPECT_EQ(answer(auth, "-WRONGPASS invalid\r\n"), wire::Boot::Step::failed);
  EXPECT_TRUE(auth.error().is(Errc::auth_refused));
  EXPECT_TRUE(auth.final());

  wire::BootSettings database = settings();
  database.database = 99;
  wire::Boot select(database);
  (void)answer(select, kHello);
  EXPECT_EQ(answer(select, "-ERR DB index is out of range\r\n"), wire::Boot::Step::failed);
  EXPECT_TRUE(select.error().is(Errc::boot_refused));
  EXPECT_TRUE(select.final());
}

}  // namespace
}  // namespace echomq
