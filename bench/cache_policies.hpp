// Eviction policies to compare L1 with: LRU, LFU, ARC, S3-FIFO and W-TinyLFU over ids, all entries of one size, each in
// the plainest form of its paper; and traces to run them on. Nothing here is fast.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/l1.hpp"

namespace echomq::policies {

using Id = std::uint64_t;

/// A cache of a number of entries, told of each request; true: it had it.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual bool request(Id id) = 0;
};

/// A list in the order of use, with places by id.
class Order {
 public:
  [[nodiscard]] bool has(Id id) const { return places_.contains(id); }
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  void push(Id id) {
    ids_.push_back(id);
    places_[id] = std::prev(ids_.end());
  }
  void erase(Id id) {
    const auto at = places_.find(id);
    ids_.erase(at->second);
    places_.erase(at);
  }
  void renew(Id id) {
    erase(id);
    push(id);
  }
  [[nodiscard]] Id oldest() const { return ids_.front(); }
  Id pop() {
    const Id id = oldest();
    erase(id);
    return id;
  }

 private:
  std::list<Id> ids_;
  std::unordered_map<Id, std::list<Id>::iterator> places_;
};

class Lru final : public Policy {
 public:
  explicit Lru(std::size_t most) : most_(most) {}
  bool request(Id id) override {
    if (order_.has(id)) {
      order_.renew(id);
      return true;
    }
    if (order_.size() == most_)
      order_.pop();
    order_.push(id);
    return false;
  }

 private:
  const std::size_t most_;
  Order order_;
};

/// The least used since it came goes; of equals the one longest unused.
class Lfu final : public Policy {
 public:
  explicit Lfu(std::size_t most) : most_(most) {}
  bool request(Id id) override {
    ++clock_;
    if (const auto at = entries_.find(id); at != entries_.end()) {
      ranks_.erase(at->second);
      at->second = {at->second.first + 1, clock_};
      ranks_[at->second] = id;
      return true;
    }
    if (entries_.size() == most_) {
      entries_.erase(ranks_.begin()->second);
      ranks_.erase(ranks_.begin());
    }
    entries_[id] = {1, clock_};
    ranks_[{1, clock_}] = id;
    return false;
  }

 private:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;
  const std::size_t most_;
  std::uint64_t clock_ = 0;
  std::unordered_map<Id, Rank> entries_;
  std::map<Rank, Id> ranks_;
};

class Arc final : public Policy {
 public:
  explicit Arc(std::size_t most) : most_(most) {}
  bool request(Id id) override {
    if (recent_.has(id)) {
      recent_.erase(id);
      frequent_.push(id);
      return true;
    }
    if (frequent_.has(id)) {
      frequent_.renew(id);
      return true;
    }
    if (recent_ghosts_.has(id)) {
      const std::size_t step = std::max<std::size_t>(1, frequent_ghosts_.size() / recent_ghosts_.size());
      target_ = std::min(most_, target_ + step);
      replace(false);
      recent_ghosts_.erase(id);
      frequent_.push(id);
      return false;
    }
    if (frequent_ghosts_.has(id)) {
      const std::size_t step = std::max<std::size_t>(1, recent_ghosts_.size() / frequent_ghosts_.size());
      target_ = target_ > step ? target_ - step : 0;
      replace(true);
      frequent_ghosts_.erase(id);
      frequent_.push(id);
      return false;
    }
    const std::size_t first = recent_.size() + recent_ghosts_.size();
    const std::size_t all = first + frequent_.size() + frequent_ghosts_.size();
    if (first == most_) {
      if (recent_.size() < most_) {
        recent_ghosts_.pop();
        replace(false);
      } else {
        recent_.pop();
      }
    } else if (all >= most_) {
      if (all == 2 * most_)
        frequent_ghosts_.pop();
      replace(false);
    }
    recent_.push(id);
    return false;
  }

 private:
  void replace(bool for_frequent) {
    if (recent_.size() + frequent_.size() < most_)
      return;
    if (recent_.size() > 0 && (recent_.size() > target_ || (for_frequent && recent_.size() == target_))) {
      recent_ghosts_.push(recent_.pop());
    } else {
      frequent_ghosts_.push(frequent_.pop());
    }
  }
  const std::size_t most_;
  std::size_t target_ = 0;
  Order recent_;
  Order frequent_;
  Order recent_ghosts_;
  Order frequent_ghosts_;
};

class S3Fifo final : public Policy {
 public:
  explicit S3Fifo(std::size_t most) : most_(most), small_most_(std::max<std::size_t>(1, most / 10)) {}
  bool request(Id id) override {
    if (const auto at = uses_.find(id); at != uses_.end()) {
      at->second = std::min(at->second + 1, 3);
      return true;
    }
    while (small_.size() + main_.size() >= most_)
      evict();
    if (ghosts_.has(id)) {
      ghosts_.erase(id);
      main_.push_back(id);
    } else {
      small_.push_back(id);
    }
    uses_[id] = 0;
    return false;
  }

 private:
  void evict() {
    if (small_.size() >= small_most_ || main_.empty()) {
      const Id id = small_.front();
      small_.pop_front();
      if (uses_[id] > 0) {
        uses_[id] = 0;
        main_.push_back(id);
        return;
      }
      uses_.erase(id);
      if (ghosts_.size() >= most_ - small_most_)
        ghosts_.pop();
      ghosts_.push(id);
      return;
    }
    const Id id = main_.front();
    main_.pop_front();
    if (uses_[id]-- > 0) {
      main_.push_back(id);
    } else {
      uses_.erase(id);
    }
  }
  const std::size_t most_;
  const std::size_t small_most_;
  std::deque<Id> small_;
  std::deque<Id> main_;
  Order ghosts_;
  std::unordered_map<Id, int> uses_;
};

/// A window of one hundredth, then segments of probation and protection; a newcomer of the window gets in only when a
/// sketch of the last requests has seen it more often than the one that would go.
class WTinyLfu final : public Policy {
 public:
  explicit WTinyLfu(std::size_t most)
      : window_most_(std::max<std::size_t>(1, most / 100)),
        main_most_(most - window_most_),
        protected_most_(main_most_ * 8 / 10),
        sample_(10 * most) {
    std::size_t width = 64;
    while (width < 4 * most)
      width *= 2;
    for (auto& row : sketch_)
      row.assign(width, 0);
  }
  bool request(Id id) override {
    count(id);
    if (window_.has(id)) {
      window_.renew(id);
      return true;
    }
    if (protected_.has(id)) {
      protected_.renew(id);
      return true;
    }
    if (probation_.has(id)) {
      probation_.erase(id);
      protected_.push(id);
      if (protected_.size() > protected_most_)
        probation_.push(protected_.pop());
      return true;
    }
    window_.push(id);
    if (window_.size() > window_most_) {
      const Id candidate = window_.pop();
      if (probation_.size() + protected_.size() < main_most_) {
        probation_.push(candidate);
      } else if (probation_.size() > 0 && seen(candidate) > seen(probation_.oldest())) {
        probation_.pop();
        probation_.push(candidate);
      }
    }
    return false;
  }

 private:
  [[nodiscard]] std::uint8_t& cell(std::size_t row, Id id) {
    return sketch_[row][cache::mix(id + row * 0x9E3779B97F4A7C15) & (sketch_[row].size() - 1)];
  }
  [[nodiscard]] int seen(Id id) { return std::min({cell(0, id), cell(1, id), cell(2, id), cell(3, id)}); }
  void count(Id id) {
    for (std::size_t row = 0; row < sketch_.size(); ++row) {
      if (cell(row, id) < 15)
        ++cell(row, id);
    }
    if (++counted_ < sample_)
      return;
    counted_ /= 2;
    for (auto& row : sketch_) {
      for (std::uint8_t& one : row)
        one /= 2;
    }
  }
  const std::size_t window_most_;
  const std::size_t main_most_;
  const std::size_t protected_most_;
  const std::size_t sample_;
  std::size_t counted_ = 0;
  std::array<std::vector<std::uint8_t>, 4> sketch_;
  Order window_;
  Order probation_;
  Order protected_;
};

/// L1 as a table has it: a number of shards, here a power of two, which share the bytes.
class Ours final : public Policy {
 public:
  explicit Ours(std::size_t most, std::size_t shards = 1) {
    for (std::size_t i = 0; i < shards; ++i)
      shards_.push_back(std::make_unique<cache::L1>(most / shards * (cache::L1::kRowCost + kValue.size())));
  }
  bool request(Id id) override {
    const BrandedId row = *BrandedId::encode("USR", id);
    cache::L1& l1 = *shards_[(cache::digits_of(row).hash() >> 40) & (shards_.size() - 1)];
    if (l1.read(row, 0, 1, into_))
      return true;
    l1.put({.id = row, .value = kValue, .expires = 1'000'000, .generation = 1});
    return false;
  }

 private:
  static constexpr std::string_view kValue = "0123456789";
  std::vector<std::unique_ptr<cache::L1>> shards_;
  CachedBytes into_;
};

/// Draws 0, 1, 2 ... with the shares of a zipf distribution.
class Zipf {
 public:
  Zipf(std::size_t count, double skew, unsigned seed) : sums_(count), random_(seed) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i)
      sums_[i] = sum += 1.0 / std::pow(static_cast<double>(i + 1), skew);
  }
  Id operator()() {
    std::uniform_real_distribution<double> uniform(0, sums_.back());
    return static_cast<Id>(std::lower_bound(sums_.begin(), sums_.end(), uniform(random_)) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
  std::mt19937_64 random_;
};

struct Trace {
  std::string name;
  std::vector<Id> requests;
};

/// All of them for caches of `most` entries, of `length` requests:
/// zipf: 20 times as many ids as entries, 0.99;
/// scan: the same, and after each `4 * most` requests a run through `2 * most` ids never seen before or after;
/// loop: round and round through half as many ids again as there are entries;
/// shift: as zipf, and after each tenth of the trace other ids are the frequent ones.
[[nodiscard]] inline std::vector<Trace> traces(std::size_t most, std::size_t length) {
  std::vector<Trace> all;
  const std::size_t ids = 20 * most;
  {
    Trace one{"zipf", {}};
    Zipf draw(ids, 0.99, 1);
    while (one.requests.size() < length)
      one.requests.push_back(draw());
    all.push_back(std::move(one));
  }
  {
    Trace one{"scan", {}};
    Zipf draw(ids, 0.99, 2);
    Id fresh = Id{1} << 40;
    while (one.requests.size() < length) {
      for (std::size_t i = 0; i < 4 * most; ++i)
        one.requests.push_back(draw());
      for (std::size_t i = 0; i < 2 * most; ++i)
        one.requests.push_back(fresh++);
    }
    all.push_back(std::move(one));
  }
  {
    Trace one{"loop", {}};
    for (std::size_t i = 0; i < length; ++i)
      one.requests.push_back(i % (most + most / 2));
    all.push_back(std::move(one));
  }
  {
    Trace one{"shift", {}};
    Zipf draw(ids, 0.99, 3);
    for (std::size_t i = 0; i < length; ++i)
      one.requests.push_back(draw() + i * 10 / length * (ids / 3));
    all.push_back(std::move(one));
  }
  return all;
}

/// The share of requests that were hits, in hundredths.
[[nodiscard]] inline double rate(Policy&& policy, const std::vector<Id>& requests) {
  std::size_t hits = 0;
  for (const Id id : requests)
    hits += policy.request(id);
  return 100.0 * static_cast<double>(hits) / static_cast<double>(requests.size());
}

struct Rates {
  double lru = 0;
  double lfu = 0;
  double arc = 0;
  double s3_fifo = 0;
  double w_tiny_lfu = 0;
  double ours = 0;
  [[nodiscard]] double best() const { return std::max({lru, lfu, arc, s3_fifo, w_tiny_lfu}); }
};
[[nodiscard]] inline Rates rates(std::size_t most, std::size_t shards, const Trace& trace) {
  return {.lru = rate(Lru(most), trace.requests),
          .lfu = rate(Lfu(most), trace.requests),
          .arc = rate(Arc(most), trace.requests),
          .s3_fifo = rate(S3Fifo(most), trace.requests),
          .w_tiny_lfu = rate(WTinyLfu(most), trace.requests),
          .ours = rate(Ours(most, shards), trace.requests)};
}

}  // namespace echomq::policies
