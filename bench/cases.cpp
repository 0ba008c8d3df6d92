// Enqueue one at a time, pipelined and in bulk; claim and complete pipelined: floor and library.
#include "cases.hpp"

#include <deque>
#include <optional>

#include "bus_case.hpp"
#include "echomq/task.hpp"
#include "must.hpp"
#include "script/registry.hpp"
#include "worker_case.hpp"

namespace echomq_bench {
namespace {

using echomq::JobId;

constexpr std::string_view kPayload =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    "0123456789abcdefghij";  // 100 bytes
constexpr std::string_view kBase = "emq:{bench}:";
constexpr std::size_t kBulk = 1000;      // of one enqueue_many
constexpr std::size_t kBulkFloor = 250;  // jobs of one `admit`, as the library cuts them
constexpr std::size_t kPipelined = 1024;

struct Requests {
  std::vector<std::string> all;
};

/// Requests with fresh ids: an id is admitted once only.
std::vector<std::string> enqueue_requests(Bed& bed, std::string_view sha, std::size_t count) {
  std::vector<std::string> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const echomq::BrandedId id = must(bed.minter().next("JOB"));
    const std::string row = std::string(kBase) + "job:" + std::string(id.text());
    const std::string pending = std::string(kBase) + "pending";
    const std::string_view parts[] = {"EVALSHA", sha, "2", row, pending, id.text(), kPayload};
    out.push_back(encode(parts));
  }
  return out;
}

std::vector<std::string> admit_requests(Bed& bed, std::string_view sha, std::size_t count) {
  std::vector<std::string> keys;
  for (const char* type : {"pending", "schedule", "ring", "paused", "glimit", "gactive", "wake", "parked"}) {
    keys.push_back(std::string(kBase) + type);
  }
  std::vector<std::string> out;
  for (std::size_t at = 0; at < count; at += kBulkFloor) {
    std::vector<std::string> ids;
    for (std::size_t i = 0; i < kBulkFloor; ++i)
      ids.emplace_back(must(bed.minter().next("JOB")).text());
    std::vector<std::string_view> parts = {"EVALSHA", sha, "8"};
    parts.insert(parts.end(), keys.begin(), keys.end());
    parts.insert(parts.end(), {kBase, "", "", ""});
    for (const std::string& id : ids) {
      parts.push_back(id);
      parts.push_back(kPayload);
    }
    out.push_back(encode(parts));
  }
  return out;
}

void take(std::deque<echomq::Reply<echomq::Admission>>& window, std::size_t keep) {
  while (window.size() > keep) {
    (void)must(window.front().get());
    window.pop_front();
  }
}

echomq::Task<> enqueue_awaiting(const echomq::Queue& queue, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    (void)must(co_await queue.enqueue(kPayload));
  }
}

void enqueue_bulk(const echomq::Queue& queue, std::size_t count) {
  std::vector<echomq::NewJob> jobs(kBulk, echomq::NewJob{kPayload, std::nullopt});
  std::deque<echomq::Reply<std::vector<echomq::Result<echomq::Admission>>>> window;
  const auto take_one = [&] {
    for (auto& verdict : must(window.front().get()))
      (void)must(std::move(verdict));
    window.pop_front();
  };
  for (std::size_t at = 0; at < count; at += kBulk) {
    window.push_back(queue.enqueue_many(jobs));
    if (window.size() > 4)
      take_one();
  }
  while (!window.empty())
    take_one();
}

}  // namespace

Bed::Bed(echomq::testing::PrivateServer& server)
    : path_(server.socket_path()), control_(server.socket_path()), floor_(server.socket_path()), minter_(1000) {
  client_ = std::make_unique<echomq::Client>(must(echomq::Client::open(server.url())));
  queue_ = std::make_unique<echomq::Queue>(client_->queue("bench"));
}

void Bed::flush() {
  const std::string_view parts[] = {"FLUSHDB"};
  (void)control_.command(parts);
}

std::string Bed::load(std::string_view name) {
  const echomq::script::ScriptSource* script = echomq::script::find_script(name);
  if (script == nullptr)
    give_up("no script " + std::string(name));
  const std::string_view parts[] = {"SCRIPT", "LOAD", script->source};
  (void)control_.command(parts);
  return std::string(script->sha1);
}

std::vector<Case> make_cases(Bed& bed, double scale) {
  const auto scaled = [scale](std::size_t jobs) {
    const auto count = static_cast<std::size_t>(static_cast<double>(jobs) * scale);
    return std::max<std::size_t>(count - count % kBulk, kBulk);
  };
  const std::string enqueue_sha = bed.load("enqueue");
  const std::string admit_sha = bed.load("admit");
  const std::string claim_sha = bed.load("claim");
  const std::string complete_sha = bed.load("complete");
  std::vector<Case> cases;
  cases.push_back(make_worker_case(bed, scale, false));
  cases.push_back(make_worker_case(bed, scale, true));

  for (const bool awaiting : {false, true}) {
    const std::size_t jobs = scaled(30000);
    auto requests = std::make_shared<Requests>();
    Case one;
    one.name = awaiting ? "enqueue, 1 in flight, co_await" : "enqueue, 1 in flight, .get()";
    one.must_be = 0.9;
    one.floor_must_saturate = false;
    one.jobs = jobs;
    one.windows = {1};
    one.prepare = [&bed, requests, jobs, enqueue_sha](std::size_t) {
      bed.flush();
      requests->all = enqueue_requests(bed, enqueue_sha, jobs);
    };
    one.floor = [&bed, requests](std::size_t) { bed.floor().run(requests->all, 1); };
    one.prepare_contender = [&bed] { bed.flush(); };
    if (awaiting) {
      one.contender = [&bed, jobs] { enqueue_awaiting(bed.queue(), jobs).get(); };
    } else {
      one.contender = [&bed, jobs] {
        for (std::size_t i = 0; i < jobs; ++i)
          (void)must(bed.queue().enqueue(kPayload).get());
      };
    }
    cases.push_back(std::move(one));
  }

  {
    const std::size_t jobs = scaled(100000);
    auto requests = std::make_shared<Requests>();
    Case pipelined;
    pipelined.name = "enqueue, pipelined";
    pipelined.must_be = 0.95;
    pipelined.jobs = jobs;
    pipelined.prepare = [&bed, requests, jobs, enqueue_sha](std::size_t) {
      bed.flush();
      requests->all = enqueue_requests(bed, enqueue_sha, jobs);
    };
    pipelined.floor = [&bed, requests](std::size_t window) { bed.floor().run(requests->all, window); };
    pipelined.prepare_contender = [&bed] { bed.flush(); };
    pipelined.contender = [&bed, jobs] {
      std::deque<echomq::Reply<echomq::Admission>> window;
      for (std::size_t i = 0; i < jobs; ++i) {
        window.push_back(bed.queue().enqueue(kPayload));
        if (window.size() >= kPipelined)
          take(window, kPipelined / 2);
      }
      take(window, 0);
    };
    cases.push_back(std::move(pipelined));
  }

  {
    const std::size_t jobs = scaled(200000);
    auto requests = std::make_shared<Requests>();
    Case bulk;
    bulk.name = "enqueue_many of 1,000";
    bulk.must_be = 0.95;
    bulk.jobs = jobs;
    bulk.windows = {4, 16, 64};
    bulk.prepare = [&bed, requests, jobs, admit_sha](std::size_t) {
      bed.flush();
      requests->all = admit_requests(bed, admit_sha, jobs);
    };
    bulk.floor = [&bed, requests](std::size_t window) { bed.floor().run(requests->all, window); };
    bulk.prepare_contender = [&bed] { bed.flush(); };
    bulk.contender = [&bed, jobs] { enqueue_bulk(bed.queue(), jobs); };
    cases.push_back(std::move(bulk));
  }

  {
    // Claim and complete, both pipelined. The ids are known beforehand, so the floor's requests are pre-encoded too.
    const std::size_t jobs = scaled(60000);
    auto requests = std::make_shared<Requests>();
    Case work;
    work.name = "claim + complete, pipelined";
    work.must_be = 0.95;
    work.jobs = jobs;
    work.prepare = [&bed, requests, jobs, enqueue_sha, claim_sha, complete_sha](std::size_t window) {
      bed.flush();
      std::vector<std::string> admit;
      std::vector<std::string> claims;
      std::vector<std::string> completes;
      const std::string pending = std::string(kBase) + "pending";
      const std::string active = std::string(kBase) + "active";
      const std::string prefix = std::string(kBase) + "job:";
      for (std::size_t i = 0; i < jobs; ++i) {
        const echomq::BrandedId id = must(bed.minter().next("JOB"));
        const std::string row = prefix + std::string(id.text());
        const std::string_view in[] = {"EVALSHA", enqueue_sha, "2", row, pending, id.text(), kPayload};
        admit.push_back(encode(in));
        const std::string_view claim[] = {"EVALSHA", claim_sha, "2", pending, active, prefix, "30000"};
        claims.push_back(encode(claim));
        const std::string_view complete[] = {"EVALSHA", complete_sha, "2", active, row, id.text(), "1", kBase};
        completes.push_back(encode(complete));
      }
      bed.floor().run(admit, 1024);
      // Claims run half a window ahead of completes, as a pipelining worker's do.
      requests->all.clear();
      const std::size_t ahead = std::max<std::size_t>(window / 2, 1);
      for (std::size_t at = 0; at < jobs; at += ahead) {
        const std::size_t end = std::min(at + ahead, jobs);
        for (std::size_t i = at; i < end; ++i)
          requests->all.push_back(claims[i]);
        if (at >= ahead) {
          for (std::size_t i = at - ahead; i < at; ++i)
            requests->all.push_back(completes[i]);
        }
      }
      for (std::size_t i = jobs - ((jobs - 1) % ahead + 1); i < jobs; ++i)
        requests->all.push_back(completes[i]);
    };
    work.floor = [&bed, requests](std::size_t window) { bed.floor().run(requests->all, window); };
    work.prepare_contender = [&bed, jobs] {
      bed.flush();
      enqueue_bulk(bed.queue(), jobs);
    };
    work.contender = [&bed, jobs] {
      std::deque<echomq::Reply<std::optional<echomq::ClaimedJob>>> claims;
      std::deque<echomq::Reply<void>> completes;
      const auto settle_one = [&] {
        const auto job = must(claims.front().get());
        claims.pop_front();
        if (job)
          completes.push_back(bed.queue().complete(job->id, job->token));
      };
      for (std::size_t i = 0; i < jobs; ++i) {
        claims.push_back(bed.queue().claim());
        if (claims.size() >= kPipelined) {
          while (claims.size() > kPipelined / 2)
            settle_one();
        }
        if (completes.size() >= kPipelined) {
          while (completes.size() > kPipelined / 2) {
            must(completes.front().get());
            completes.pop_front();
          }
        }
      }
      while (!claims.empty())
        settle_one();
      while (!completes.empty()) {
        must(completes.front().get());
        completes.pop_front();
      }
    };
    cases.push_back(std::move(work));
  }
  for (Case& one : make_bus_cases(bed, scale))
    cases.push_back(std::move(one));
  return cases;
}

}  // namespace echomq_bench
