// Names of streams as they come.
#include "bus/subject_hub.hpp"

#include <chrono>
#include <utility>

#include "bus/checks.hpp"
#include "client/core.hpp"
#include "client/nodes.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {
namespace {

using std::string_view;

constexpr std::chrono::milliseconds kLook{1000};
constexpr std::chrono::seconds kScan{60};

struct HubRegistry {
  std::mutex mutex;
  std::map<std::pair<const client::Core*, std::string>, std::weak_ptr<SubjectHub>> hubs;  // guarded by mutex

  [[nodiscard]] static HubRegistry& get() {
    static auto* const registry = new HubRegistry;  // lives as long as the process: a late handle may still ask
    return *registry;
  }
};

}  // namespace

std::shared_ptr<SubjectHub> SubjectHub::of(const std::shared_ptr<client::Core>& core, const QueueName& queue) {
  HubRegistry& registry = HubRegistry::get();
  const std::lock_guard lock(registry.mutex);
  std::weak_ptr<SubjectHub>& known = registry.hubs[{core.get(), std::string(queue.text())}];
  std::shared_ptr<SubjectHub> hub = known.lock();
  if (!hub) {
    hub.reset(new SubjectHub(core, queue));
    known = hub;
  }
  return hub;
}

SubjectHub::SubjectHub(std::shared_ptr<client::Core> core, const QueueName& queue)
    : core_(std::move(core)), keys_(queue) {
  thread_ = std::thread([this] { run(); });
}

SubjectHub::~SubjectHub() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable())
    thread_.join();
  HubRegistry& registry = HubRegistry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.hubs.find({core_.get(), std::string(keys_.queue().text())});
  if (found != registry.hubs.end() && found->second.expired())
    registry.hubs.erase(found);
}

Result<std::set<std::string>> SubjectHub::look() {
  ECHOMQ_TRY(std::set<std::string> names, read_list(true));
  ECHOMQ_CHECK(scan(names));
  return names;
}

std::uint64_t SubjectHub::watch(std::set<std::string> known, OnName on_name) {
  const std::lock_guard lock(telling_);
  const std::uint64_t number = ++last_number_;
  watchers_[number] = {.known = std::move(known), .on_name = std::move(on_name)};
  // What came since it looked may have been told already.
  all_again_.store(true, std::memory_order_relaxed);
  return number;
}

void SubjectHub::forget(std::uint64_t number) {
  const std::lock_guard lock(telling_);
  watchers_.erase(number);
}

/// The list from the last name on that was seen, or all of it. A name that is not where it was tells that the list was made anew.
Result<std::set<std::string>> SubjectHub::read_list(bool all) {
  const std::string from = all ? "-inf" : last_score_;
  const auto decode = [](const wire::Answer& answer) -> Result<std::vector<std::pair<std::string, std::string>>> {
    if (!answer.view.is_aggregate())
      return unexpected_reply("subjects", answer.view);
    std::vector<std::pair<std::string, std::string>> rows;
    std::vector<std::string> flat;
    for (const resp::View& part : answer.view.elements()) {
      // RESP3 gives pairs, RESP2 a flat list.
      if (part.is_aggregate()) {
        const auto score = part.at(1).as_double();
        rows.emplace_back(part.at(0).copy_text().value_or(""), score ? fmt::format("{:.0f}", *score) : "0");
      } else {
        flat.push_back(part.copy_text().value_or(""));
      }
    }
    for (std::size_t i = 0; i + 1 < flat.size(); i += 2)
      rows.emplace_back(flat[i], flat[i + 1]);
    return rows;
  };
  auto rows = core_
                  ->command<std::vector<std::pair<std::string, std::string>>>(
                      parts(string_view("ZRANGEBYSCORE"), keys_.streams(), from, string_view("+inf"),
                            string_view("WITHSCORES")),
                      settings(Repeat::safe), decode)
                  .get();
  if (!rows)
    return std::unexpected<Error>(std::move(rows).error());
  if (!all && !last_name_.empty() && (rows->empty() || rows->front().first != last_name_))
    return read_list(true);
  std::set<std::string> names;
  for (const auto& [name, score] : *rows)
    names.insert(name);
  if (std::this_thread::get_id() == thread_.get_id()) {
    last_name_ = rows->empty() ? std::string() : rows->back().first;
    last_score_ = rows->empty() ? std::string("0") : rows->back().second;
  }
  return names;
}

/// Streams whose writers do not list them, such as other runtimes.
Result<void> SubjectHub::scan(std::set<std::string>& into) {
  const std::string prefix = keys_.base() + "stream:";
  std::string pattern;
  for (const char c : prefix) {
    if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\')
      pattern += '\\';
    pattern += c;
  }
  pattern += '*';
  const client::Nodes nodes(Client::from_core(core_));
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::string cursor = "0";
    do {
      const string_view words[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", "stream"};
      ECHOMQ_TRY(const Value step, nodes.command(node, words).get());
      if (step.size() != 2)
        return fail(Errc::protocol_error, "SCAN answered " + step.to_string());
      cursor = step[0].as_text().value_or("0");
      for (const Value& key : step[1].items()) {
        const string_view text = key.as_text().value_or("");
        if (text.size() > prefix.size() && StreamName::is_valid(text.substr(prefix.size())))
          into.emplace(text.substr(prefix.size()));
      }
      const std::lock_guard lock(mutex_);
      if (stopping_)
        return {};
    } while (cursor != "0");
  }
  return {};
}

void SubjectHub::tell(const std::set<std::string>& names) {
  const std::lock_guard lock(telling_);
  for (auto& [number, watcher] : watchers_) {
    for (const std::string& name : names) {
      if (watcher.known.contains(name))
        continue;
      if (watcher.on_name(name)) {
        watcher.known.insert(name);
      } else {
        all_again_.store(true, std::memory_order_relaxed);
      }
    }
  }
}

void SubjectHub::run() {
  auto next_scan = std::chrono::steady_clock::now() + kScan;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kLook, [this] { return stopping_; }))
        return;
    }
    if (core_->closed())
      continue;
    const bool all = all_again_.exchange(false, std::memory_order_relaxed);
    auto names = read_list(all);
    if (!names) {
      if (all)
        all_again_.store(true, std::memory_order_relaxed);
      continue;  // the next look makes up for it
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= next_scan) {
      // A scan that fails is made up for by the next look.
      next_scan = scan(*names) ? now + kScan : now;
    }
    tell(*names);
  }
}

}  // namespace bus
}  // namespace v1
}  // namespace echomq
