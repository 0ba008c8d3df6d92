// A server of rows and the connections to it, played step by step on one thread: nothing happens but what is asked for.
//
// It knows the few commands of a cache table, expiry by a clock that only the test moves, messages of a channel, and
// tracking as servers do it: told once a turn of their loop, behind the replies of that turn, and not to the connection
// that made the last change of a key.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/coherence.hpp"
#include "cache/frame.hpp"
#include "cache/table.hpp"
#include "client/core.hpp"
#include "echomq/cache.hpp"

namespace echomq::model {

class CacheServer;

/// One connection: requests on their way, replies and pushes on their way back.
class CacheConnection {
 public:
  using Command = std::vector<std::string>;
  enum class Listens : std::uint8_t { no, to_channel, to_changes };

  CacheConnection(CacheServer& server, Listens listens) : server_(server), listens_(listens) {}
  ~CacheConnection();
  CacheConnection(const CacheConnection&) = delete;
  CacheConnection& operator=(const CacheConnection&) = delete;

  /// Takes over the reference.
  void submit(detail::Call* call, Repeat repeat = Repeat::safe);
  /// A command for whose reply nobody waits.
  void post(Command command);
  /// Asks to be told; `confirmed` is called with the versions that rows had when it was executed.
  void listen();

  [[nodiscard]] bool can_execute() const { return up_ && unexecuted() != nullptr; }
  [[nodiscard]] bool can_deliver() const { return up_ && !out_.empty(); }
  [[nodiscard]] bool can_fail() const;
  [[nodiscard]] bool up() const { return up_; }
  [[nodiscard]] bool idle() const { return sent_.empty() && out_.empty(); }
  /// Since when the oldest request waits; nothing when none does.
  [[nodiscard]] std::optional<std::uint64_t> waits_since() const;

  /// The server executes the next command.
  void execute();
  /// The client reads the next reply or push.
  void deliver();
  /// The oldest call that somebody waits for ends with an error; whether it is executed is left open.
  void fail_oldest(Error error, bool forget);
  /// Nothing passes any more, and the server forgets who listened; the client has not noticed.
  void cut();
  /// A new connection: what was not answered is sent again.
  void reconnect();

  /// Pushes, as they are delivered, and what rows had when they were made.
  using Versions = std::map<std::string, std::uint64_t>;
  std::function<void(const resp::View& push, const Versions& versions)> on_push;
  std::function<void(const Versions& versions)> on_confirmed;
  /// The end of a load was answered: its right was lost, and its row of that version not written.
  std::function<void(const std::string& key, std::uint64_t version)> on_refused;

 private:
  friend class CacheServer;
  struct Sent {
    detail::Call* call = nullptr;  // null: nobody waits
    std::vector<Command> commands;
    std::size_t executed = 0;
    std::size_t awaited = 0;
    std::uint64_t since = 0;
    bool asks_to_listen = false;
    bool posted = false;
    bool unsafe = false;  // not to be executed twice
  };
  struct Out {
    std::string frame;
    bool push = false;
    Versions versions;
    std::optional<std::pair<std::string, std::uint64_t>> refused;
  };
  [[nodiscard]] Sent* unexecuted();
  [[nodiscard]] const Sent* unexecuted() const { return const_cast<CacheConnection*>(this)->unexecuted(); }

  CacheServer& server_;
  const Listens listens_;
  bool listening_ = false;  // as the server has it
  bool up_ = true;
  std::deque<Sent> sent_;
  std::deque<Out> out_;
};

class CacheServer {
 public:
  std::atomic<std::uint64_t> time{1'000'000};  ///< ms
  bool silent = false;                         ///< broadcasts are lost
  /// A row was deleted, or was over that had less time than `whole_life`. What is about to be told is of before that: it says
  /// nothing of the row any more.
  std::function<void(const std::string& key)> on_early_end = [](const std::string&) {};
  std::uint64_t whole_life = 0;  ///< ms
  /// What is answered in place of the reply to a command, which is not executed then.
  std::function<std::optional<std::string>(const CacheConnection::Command& command)> refuses;
  /// For a trace: what is executed, and whose it is (nobody's: null).
  std::function<void(const CacheConnection::Command& command, const CacheConnection* by)> on_execute;
  /// What is said of loads, on `eccx:{t}:loads`.
  std::function<void(const std::string& message)> on_load_told = [](const std::string&) {};
  /// Whose right to load a row was over before it was given back.
  std::function<void(const std::string& key, CacheConnection* by)> on_lease_over = [](const std::string&,
                                                                                      CacheConnection*) {};
  /// How often a connection was given the right to load a row.
  [[nodiscard]] std::uint64_t grants(const CacheConnection& to) const {
    const auto at = grants_.find(&to);
    return at == grants_.end() ? 0 : at->second;
  }

  /// The frame of a row that has not expired.
  [[nodiscard]] std::optional<std::string> frame(const std::string& key);
  [[nodiscard]] std::uint64_t version(const std::string& key);
  [[nodiscard]] CacheConnection::Versions versions();
  /// Rows whose time is over go, and it is told.
  void expire();
  /// The end of a turn of the server's loop: who tracks is told.
  void end_turn();
  [[nodiscard]] bool turn_open() const { return !changed_.empty(); }
  /// Executes at once, of nobody's connection.
  void run(const CacheConnection::Command& command) { (void)execute(command, nullptr); }

 private:
  friend class CacheConnection;
  struct Row {
    std::string frame;
    std::uint64_t expires;
    std::uint64_t life;
  };
  struct Lease {
    std::string token;
    CacheConnection* by;
    std::uint64_t expires;
  };
  struct Tag {
    std::map<std::string, std::uint64_t> rows;  // until when
    std::uint64_t expires = 0;
  };
  struct TagFloor {
    std::uint64_t version;
    std::int64_t number;
    std::uint64_t expires;
  };
  [[nodiscard]] std::string execute(const CacheConnection::Command& command, CacheConnection* by);
  [[nodiscard]] std::string load(const CacheConnection::Command& command, CacheConnection* by);
  [[nodiscard]] std::string keep(const CacheConnection::Command& command);
  [[nodiscard]] std::string end_load(const CacheConnection::Command& command);
  [[nodiscard]] std::string put_tagged(const CacheConnection::Command& command);
  [[nodiscard]] std::string drop(const CacheConnection::Command& command);
  [[nodiscard]] std::int64_t publish(const std::string& channel, const std::string& message);
  void changed(const std::string& key, CacheConnection* by) { changed_[key] = by; }
  void store(const std::string& key, std::string frame, std::uint64_t ttl, CacheConnection* by);
  bool erase(const std::string& key, CacheConnection* by);
  void end_early(const std::string& key);

  std::map<std::string, Row> rows_;
  std::map<std::string, CacheConnection*> changed_;  // by whom last
  std::vector<CacheConnection*> connections_;
  std::map<std::string, Lease> leases_;
  std::map<const CacheConnection*, std::uint64_t> grants_;
  std::map<std::string, Tag> tags_;
  std::map<std::string, TagFloor> tag_floors_;
  std::int64_t drops_ = 0;
  std::optional<std::pair<std::string, std::uint64_t>> refused_;  // by the command that is executed
};

/// A core whose only connection is such a one.
class CacheCore final : public client::Core {
 public:
  CacheCore(CacheConnection& main, std::uint64_t& ids) : main_(main), ids_(ids) {
    options_.deadline = std::chrono::milliseconds(240);  // for how long a put may be on its way
  }
  void submit(detail::Call* call, wire::CallSettings settings) override { main_.submit(call, settings.repeat); }
  Result<BrandedId> mint(std::string_view brand) override { return BrandedId::encode(brand, ++ids_); }
  std::optional<std::uint16_t> node_id() const override { return std::nullopt; }
  std::unique_ptr<client::WakeWatch> watch(std::string, std::function<void()>) override { return nullptr; }
  void post(Continuation continuation) override { continuation(); }
  void log(LogLevel, std::string_view, std::span<const LogField>) override {}
  void count_id_collision() override {}
  const ClientOptions& options() const override { return options_; }
  bool closed() const override { return false; }

 private:
  CacheConnection& main_;
  std::uint64_t& ids_;
  ClientOptions options_;
};

/// What a table hears by, over such a connection.
class CacheHearing final : public cache::Hearing {
 public:
  explicit CacheHearing(CacheConnection& connection) : connection_(connection) {}
  void submit(detail::Call* call, bool) override { connection_.submit(call); }
  void misplaced() override {
    if (on_misplaced)
      on_misplaced();
  }
  void close() override {}
  std::function<void()> on_misplaced;

 private:
  CacheConnection& connection_;
};

}  // namespace echomq::model
