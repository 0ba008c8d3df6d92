// `Client`: the public door to the core.
#include "echomq/client.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "client/live_core.hpp"
#include "resp/view.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

[[nodiscard]] client::LiveCore& live(const std::shared_ptr<client::Core>& core) {
  return static_cast<client::LiveCore&>(*core);
}

/// The library's script with that digest, when `parts` is an EVALSHA of one.
[[nodiscard]] const script::ScriptSource* script_of(CommandParts parts) {
  if (parts.size() < 3 || (parts[0] != "EVALSHA" && parts[0] != "evalsha"))
    return nullptr;
  for (const script::ScriptSource& script : script::all_scripts()) {
    if (script.sha1 == parts[1])
      return &script;
  }
  return nullptr;
}

/// Collects the answers of a pipeline; the last one completes the reply.
class Gathering final : public detail::CallOf<std::vector<Value>> {
 public:
  explicit Gathering(std::size_t count) : values_(count), left_(count) {}

  void set(std::size_t index, Value value) {
    values_[index] = std::move(value);
    answered_.store(true, std::memory_order_relaxed);
    settle_one();
  }
  void failed(Error error) {
    if (error.repeat == Repeat::unsafe)
      unsafe_.store(true, std::memory_order_relaxed);
    if (!failed_.exchange(true))
      error_ = std::move(error);
    settle_one();
  }
  void accept(const resp::View&) noexcept override {}

 private:
  void destroy() noexcept override { delete this; }
  void settle_one() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1)
      return;
    if (win()) {
      if (failed_) {
        if (answered_ || unsafe_)  // whichever came first: it speaks for all of them
          error_.repeat = Repeat::unsafe;
        fail(std::move(error_));
      } else {
        store(std::move(values_));
        publish();
      }
    }
    release();
  }

  std::vector<Value> values_;
  std::atomic<std::size_t> left_;
  std::atomic<bool> failed_{false}, answered_{false}, unsafe_{false};
  Error error_;
};

/// One command of a pipeline: its answer, or its failure, goes to the gathering.
class Part final : public detail::CallOf<void> {
 public:
  static Part* make(CommandParts parts, Gathering* into, std::size_t index) {
    const std::size_t size = resp::encoded_size(parts);
    void* memory = ::operator new(sizeof(Part) + size);
    auto* part = ::new (memory) Part(into, index);
    char* bytes = reinterpret_cast<char*>(part + 1);
    resp::encode_to(bytes, parts);
    part->request = bytes;
    part->request_size = static_cast<std::uint32_t>(size);
    return part;
  }
  void accept(const resp::View& reply) noexcept override {
    into_->set(index_, resp::to_value(reply));
    publish();
  }
  void fail(Error error) noexcept override {
    into_->failed(std::move(error));
    publish();
  }

 private:
  Part(Gathering* into, std::size_t index) : into_(into), index_(index) { into_->retain(); }
  ~Part() override { into_->release(); }
  void destroy() noexcept override {
    this->~Part();
    ::operator delete(static_cast<void*>(this));
  }

  Gathering* const into_;
  const std::size_t index_;
};

/// One MULTI ... EXEC as one call of several replies. Gives the items of EXEC.
class Transaction final : public detail::CallOf<std::vector<Value>> {
 public:
  static Transaction* make(std::span<const CommandParts> commands) {
    std::string bytes;
    resp::CommandWriter writer(bytes);
    writer.begin(1).part(std::string_view("MULTI"));
    for (const CommandParts parts : commands)
      writer.command(parts);
    writer.begin(1).part(std::string_view("EXEC"));
    auto* call = new Transaction(std::move(bytes), commands.size());
    return call;
  }
  void part(const resp::View& reply) noexcept override {
    // A command that is refused while it is queued makes EXEC answer EXECABORT; its own text says why.
    if (reply.is_error() && refusal_.empty())
      refusal_ = std::string(reply.error_text());
  }
  void accept(const resp::View& reply) noexcept override {
    if (reply.is_error()) {
      std::string text(reply.error_text());
      if (!refusal_.empty())
        text += " (" + refusal_ + ")";
      store(std::unexpected(wire::to_error(text)));
    } else {
      store(resp::to_value(reply).take_items());
    }
    publish();
  }

 private:
  Transaction(std::string bytes, std::size_t commands) : bytes_(std::move(bytes)) {
    request = bytes_.data();
    request_size = static_cast<std::uint32_t>(bytes_.size());
    replies = static_cast<std::uint32_t>(commands + 2);
  }
  void destroy() noexcept override { delete this; }

  const std::string bytes_;
  std::string refusal_;
};

[[nodiscard]] Reply<std::vector<Value>> run_transaction(client::LiveCore& core,
                                                        std::span<const CommandParts> commands) {
  Transaction* call = Transaction::make(commands);
  call->retain();
  detail::CallPointer<detail::CallOf<std::vector<Value>>> mine(call);
  core.submit(call, {});
  return Reply<std::vector<Value>>(std::move(mine));
}

/// Sends the commands one behind the other; `slot` names the node of a cluster for all of them.
[[nodiscard]] Reply<std::vector<Value>> run_pipeline(client::LiveCore& core, std::span<const CommandParts> commands,
                                                     std::uint32_t slot = detail::Call::kUnrouted) {
  auto* gathering = new Gathering(commands.size());
  gathering->retain();
  detail::CallPointer<detail::CallOf<std::vector<Value>>> mine(gathering);
  gathering->default_target = &core.callbacks();
  gathering->source = core.source();
  const auto make = [&](std::size_t index) {
    Part* part = Part::make(commands[index], gathering, index);
    part->script = script_of(commands[index]);
    part->slot = slot;
    return part;
  };
  if (!core.in_cluster()) {
    for (std::size_t i = 0; i < commands.size(); ++i)
      core.submit(make(i), {});
    return Reply<std::vector<Value>>(std::move(mine));
  }
  // All of them must have a node before the first is sent.
  std::vector<detail::CallPointer<Part>> parts;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    parts.emplace_back(make(i));
    if (Result<void> routed = core.route(*parts.back().get()); !routed) {
      gathering->release();  // the reference of the answers, of which none will come
      return std::unexpected(std::move(routed).error());
    }
  }
  for (auto& part : parts)
    core.submit(part.hand_over(), {});
  return Reply<std::vector<Value>>(std::move(mine));
}

/// A copy of commands that outlives their caller's views.
struct OwnedCommands {
  std::vector<std::vector<std::string>> texts;
  [[nodiscard]] std::vector<std::vector<std::string_view>> views() const {
    std::vector<std::vector<std::string_view>> out;
    for (const auto& command : texts)
      out.emplace_back(command.begin(), command.end());
    return out;
  }
};

/// A transaction whose EVALSHAs may meet an empty script cache: what was refused runs in a second transaction behind
/// the loads, and its answers take the places of the refusals.
class RepairedTransaction final : public detail::CallOf<std::vector<Value>>, public detail::Source {
 public:
  static Reply<std::vector<Value>> start(const std::shared_ptr<client::Core>& core,
                                         std::span<const CommandParts> commands,
                                         std::vector<const script::ScriptSource*> scripts) {
    auto* self = new RepairedTransaction(core, commands, std::move(scripts));
    if (live(core).in_cluster()) {
      const detail::CallPointer<Transaction> probe(Transaction::make(commands));
      if (Result<void> routed = live(core).route(*probe.get()); !routed) {
        self->release();
        return std::unexpected(std::move(routed).error());
      }
      self->slot_ = probe->slot;
    }
    self->source = self;  // nothing to drive: what is asked in between is asked by the executor
    self->retain();
    detail::CallPointer<detail::CallOf<std::vector<Value>>> mine(self);
    run_transaction(live(core), commands).then([self](Result<std::vector<Value>> answers) {
      self->first_answers(std::move(answers));
    });
    return Reply<std::vector<Value>>(std::move(mine));
  }
  void accept(const resp::View&) noexcept override {}

  bool drive(bool (*)(void*), void*, detail::Clock::time_point) override { return false; }
  void leave_to_library() noexcept override {}
  void cancel(detail::Call&) override {
    if (win())
      fail(Error(Errc::outcome_unknown, "cancelled after it was written", Repeat::unsafe));
  }

 private:
  static constexpr int kMostRepairs = 20;

  RepairedTransaction(const std::shared_ptr<client::Core>& core, std::span<const CommandParts> commands,
                      std::vector<const script::ScriptSource*> scripts)
      : core_(core), scripts_(std::move(scripts)) {
    for (const CommandParts parts : commands)
      commands_.texts.emplace_back(parts.begin(), parts.end());
    for (std::size_t i = 0; i < scripts_.size(); ++i)
      places_.push_back(i);
  }
  void destroy() noexcept override { delete this; }

  void finish(Result<std::vector<Value>> result) {
    if (win()) {
      store(std::move(result));
      publish();
    }
    release();
  }

  void first_answers(Result<std::vector<Value>> answers) {
    if (!answers)
      return finish(std::move(answers));
    if (values_.empty())
      values_.resize(answers->size());
    std::vector<std::size_t> refused;
    for (std::size_t i = 0; i < answers->size() && i < places_.size(); ++i) {
      const std::size_t place = places_[i];
      values_[place] = std::move((*answers)[i]);
      if (scripts_[place] != nullptr && values_[place].error_text().starts_with("NOSCRIPT"))
        refused.push_back(place);
    }
    if (refused.empty() || ++repairs_ > kMostRepairs)
      return finish(std::move(values_));
    places_ = std::move(refused);
    repair();
  }

  void repair() {
    // The loads go first, as a pipeline of their own: EXEC's answers then have the places of the commands.
    std::vector<std::array<std::string_view, 3>> loads;
    std::vector<const script::ScriptSource*> loaded;
    for (const std::size_t place : places_) {
      const script::ScriptSource* needed = scripts_[place];
      if (std::find(loaded.begin(), loaded.end(), needed) != loaded.end())
        continue;
      loaded.push_back(needed);
      loads.push_back({"SCRIPT", "LOAD", needed->source});
    }
    std::vector<CommandParts> load_commands(loads.begin(), loads.end());
    // Onto the node that refused them.
    run_pipeline(live(core_), load_commands, slot_).then([this](Result<std::vector<Value>> answers) {
      if (!answers)
        return finish(std::move(answers));
      for (const Value& answer : *answers) {
        if (answer.is_error())
          return finish(std::unexpected(wire::to_error(answer.error_text())));
      }
      std::vector<std::vector<std::string_view>> views;
      for (const std::size_t place : places_) {
        views.emplace_back(commands_.texts[place].begin(), commands_.texts[place].end());
      }
      const std::vector<CommandParts> again(views.begin(), views.end());
      run_transaction(live(core_), again).then([this](Result<std::vector<Value>> second) {
        first_answers(std::move(second));
      });
    });
  }

  const std::shared_ptr<client::Core> core_;
  OwnedCommands commands_;
  const std::vector<const script::ScriptSource*> scripts_;
  std::vector<std::size_t> places_;  // of the commands in the transaction that runs now
  std::vector<Value> values_;
  int repairs_ = 0;
  std::uint32_t slot_ = detail::Call::kUnrouted;
};

}  // namespace

Client::Client(std::shared_ptr<client::Core> core) noexcept : core_(std::move(core)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& other) noexcept {
  std::swap(core_, other.core_);
  std::swap(borrowed_, other.borrowed_);
  return *this;
}
Client::~Client() {
  if (core_ && !borrowed_)
    close();
}

Client Client::from_core(std::shared_ptr<client::Core> core) {
  Client client(std::move(core));
  client.borrowed_ = true;
  return client;
}

Result<Client> Client::open(std::string_view url, ClientOptions options) {
  ECHOMQ_TRY(wire::Url parsed, wire::parse_url(url));
  if (!parsed.seeds.empty() && !parsed.database && options.database != 0) {
    return fail(Errc::invalid_argument,
                "a cluster has database 0 only, got database " + std::to_string(options.database));
  }
  if (options.node_id && *options.node_id > 1023) {
    return fail(Errc::invalid_argument, "node_id must be 0..1023, got " + std::to_string(*options.node_id));
  }
  if (options.max_in_flight < 4) {
    return fail(Errc::invalid_argument,
                "max_in_flight must be at least 4, got " + std::to_string(options.max_in_flight));
  }
  const auto positive = [](std::string_view name, std::chrono::milliseconds value) -> Result<void> {
    if (value > std::chrono::milliseconds::zero())
      return {};
    return fail(Errc::invalid_argument,
                std::string(name) + " must be positive, got " + std::to_string(value.count()) + "ms");
  };
  ECHOMQ_CHECK(positive("connect_timeout", options.connect_timeout));
  ECHOMQ_CHECK(positive("deadline", options.deadline));
  ECHOMQ_CHECK(positive("backoff_initial", options.backoff_initial));
  ECHOMQ_CHECK(positive("backoff_max", options.backoff_max));
  ECHOMQ_CHECK(positive("node_lease_time", options.node_lease_time));
  if (options.name.find_first_of(" \n\r") != std::string::npos) {
    return fail(Errc::invalid_argument, "name must not contain blanks");
  }
  ECHOMQ_TRY(std::shared_ptr<client::LiveCore> core, client::LiveCore::open(std::move(parsed), std::move(options)));
  return Client(std::move(core));
}

Reply<Value> Client::command(CommandParts parts) const {
  if (parts.empty())
    return fail(Errc::invalid_argument, "a command needs at least its name");
  auto decode = [](const wire::Answer& answer) -> Result<Value> { return resp::to_value(answer.view); };
  return core_->command<Value>(parts, {}, decode);
}

Reply<std::vector<Value>> Client::pipeline(std::span<const CommandParts> commands) const {
  if (commands.empty())
    return fail(Errc::empty_pipeline, "a pipeline needs at least one command");
  for (const CommandParts parts : commands) {
    if (parts.empty())
      return fail(Errc::invalid_argument, "a command needs at least its name");
  }
  return run_pipeline(live(core_), commands);
}

Reply<std::vector<Value>> Client::transaction(std::span<const CommandParts> commands) const {
  if (commands.empty())
    return fail(Errc::empty_pipeline, "a transaction needs at least one command");
  std::vector<const script::ScriptSource*> scripts;
  bool any = false;
  for (const CommandParts parts : commands) {
    if (parts.empty())
      return fail(Errc::invalid_argument, "a command needs at least its name");
    scripts.push_back(script_of(parts));
    any = any || scripts.back() != nullptr;
  }
  if (any)
    return RepairedTransaction::start(core_, commands, std::move(scripts));
  return run_transaction(live(core_), commands);
}

Reply<Value> Client::eval(std::string_view name, std::span<const std::string_view> keys,
                          std::span<const std::string_view> arguments) const {
  const script::ScriptSource* script = script::find_script(name);
  if (script == nullptr) {
    return fail(Errc::invalid_argument, "no script named '" + std::string(name.substr(0, 64)) + "'");
  }
  auto decode = [](const wire::Answer& answer) -> Result<Value> { return resp::to_value(answer.view); };
  return core_->eval<Value>(*script, keys, arguments, {}, decode);
}

Reply<Subscription> Client::subscribe(std::string_view channel, SubscriptionHandlers handlers) const {
  if (channel.empty())
    return fail(Errc::invalid_argument, "a channel needs a name");
  return live(core_).subscribe(channel, std::move(handlers));
}

Result<BrandedId> Client::mint(std::string_view brand) const { return core_->mint(brand); }
Result<JobId> Client::mint_job() const {
  ECHOMQ_TRY(const BrandedId id, core_->mint("JOB"));
  return JobId(id);
}
std::optional<std::uint16_t> Client::node_id() const { return core_->node_id(); }
Reply<void> Client::ready() const { return live(core_).ready(); }
ClientStats Client::stats() const { return live(core_).stats(); }
std::string Client::endpoint() const { return live(core_).endpoint(); }
void Client::close() {
  if (core_)
    live(core_).close();
}

}  // namespace v1
}  // namespace echomq
