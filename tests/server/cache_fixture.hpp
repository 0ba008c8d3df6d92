// What the tests of the cache share: a server of their own, clients, and a loader that can be held.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "echomq/cache.hpp"
#include "echomq/client.hpp"
#include "echomq/testing/private_server.hpp"
#include "support/bounds.hpp"

namespace echomq::test {

using namespace std::chrono_literals;

inline constexpr BrandedId kUserA{"USR0NgWEfAE00A"};
inline constexpr BrandedId kUserB{"USR0NgWEfAE00B"};
inline constexpr BrandedId kOrder{"ORD0NgWEfAE00A"};
inline constexpr BrandedId kV1{"USR0NgWEfAEJf1"};
inline constexpr BrandedId kV2{"USR0NgWEfAEJf2"};
inline constexpr BrandedId kV3{"EVT0NgWEfAEJf3"};

/// The source of truth: a map, whose reads can be held after they have read.
class Source {
 public:
  void set(const BrandedId& id, std::string value, std::optional<BrandedId> version = {}) {
    const std::lock_guard lock(mutex_);
    values_[std::string(id.text())] = Loaded<std::string>{std::move(value), version};
  }
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  /// Waits until that many loads have read.
  [[nodiscard]] bool wait_loads(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] { return loads_ >= count; });
  }
  [[nodiscard]] int loads() {
    const std::lock_guard lock(mutex_);
    return loads_;
  }
  [[nodiscard]] LoadBytes loader() {
    return [this](const BrandedId& id) -> Result<std::optional<Loaded<std::string>>> {
      std::unique_lock lock(mutex_);
      std::optional<Loaded<std::string>> found;
      if (const auto at = values_.find(std::string(id.text())); at != values_.end())
        found = at->second;
      ++loads_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !held_; });
      return found;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Loaded<std::string>> values_;
  int loads_ = 0;
  bool held_ = false;
};

class CacheServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = echomq::testing::PrivateServer::start({.listen = echomq::testing::Listen::unix_socket});
    ASSERT_TRUE(started) << started.error().message();
    server_.emplace(*std::move(started));
    client_.emplace(open(server_->url()));
  }
  [[nodiscard]] static Client open(const std::string& url, ClientOptions options = {}) {
    auto opened = Client::open(url, std::move(options));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] static CacheOptions options(Coherence coherence = Coherence::none) {
    return {.table = "t", .kind = "USR", .ttl = 60s, .coherence = coherence};
  }
  [[nodiscard]] static ByteCache table(const Client& on, CacheOptions with, LoadBytes load = {}) {
    auto opened = ByteCache::open(on, std::move(with), std::move(load));
    if (!opened)
      throw std::runtime_error(opened.error().message());
    return *std::move(opened);
  }
  [[nodiscard]] Client& client() { return *client_; }
  [[nodiscard]] echomq::testing::PrivateServer& server() { return *server_; }

  template <typename... Parts>
  Value raw(const Parts&... parts) {
    auto reply = client_->command(parts...).get();
    EXPECT_TRUE(reply) << reply.error().message();
    return reply ? *std::move(reply) : Value();
  }
  [[nodiscard]] static std::string key(const BrandedId& id) { return "ecc:{t}:" + std::string(id.text()); }
  [[nodiscard]] std::string stored(const BrandedId& id) {
    return std::string(raw("GET", key(id)).as_text().value_or("(none)"));
  }
  [[nodiscard]] static std::string frame(const BrandedId& version, const std::string& value) {
    return std::string(version.text()) + value;
  }
  /// `value/from`, `(absent)/from` or the error.
  [[nodiscard]] static std::string said(const Result<CachedBytes>& answer) {
    if (!answer)
      return answer.error().message();
    return answer->value.value_or("(absent)") + "/" + std::string(to_string(answer->from));
  }
  [[nodiscard]] static std::string got(const ByteCache& cache, const BrandedId& id) {
    return said(cache.get(id).get());
  }
  [[nodiscard]] static bool eventually(const std::function<bool()>& what, std::chrono::milliseconds limit = 10s) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!what()) {
      if (std::chrono::steady_clock::now() > until)
        return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

 private:
  std::optional<echomq::testing::PrivateServer> server_;
  std::optional<Client> client_;
};

}  // namespace echomq::test
