// The lease of a client's node id: no two live minters of a fleet share one.
#include <array>
#include <charconv>
#include <random>
#include <string>

#include "client/live_core.hpp"
#include "client/mint_run.hpp"
#include "keyspace/keys.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace client {
namespace {

using std::chrono::milliseconds;

using keyspace::kNodesKey;

// A lapsed node id is given to another owner only so much later, for clocks that run apart.
constexpr std::string_view kGraceText = "10000";

[[nodiscard]] std::string random_owner() {
  std::random_device random;
  std::string owner;
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int i = 0; i < 4; ++i) {
    std::uint32_t bits = random();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4)
      owner += kDigits[bits & 15U];
  }
  return owner;
}

/// However many calls are in flight: a lease that is not renewed in time is lost.
constexpr wire::CallSettings kLeaseCall{.repeat = Repeat::safe, .past_bound = true};

[[nodiscard]] Result<std::int64_t> first_integer(const wire::Answer& answer) {
  if (const auto value = answer.view.at(0).as_integer())
    return *value;
  return fail(Errc::protocol_error, "the node lease script answered something else than a list of numbers");
}

}  // namespace

Result<void> LiveCore::lease_node() {
  owner_ = random_owner();
  const auto sent = detail::Clock::now();
  ECHOMQ_TRY(const LeasedNode leased, ask_for_node(options_.node_id).get());
  minter_.emplace(leased.node);
  minter_->advance_past(leased.at - milliseconds(1));
  minter_->set_valid_until(valid_until(sent));
  boost::asio::post(io_, [weak = std::weak_ptr<Core>(shared_from_this())] {
    if (const auto core = std::static_pointer_cast<LiveCore>(weak.lock()))
      core->renew_node_later();
  });
  return {};
}

detail::Clock::time_point LiveCore::valid_until(detail::Clock::time_point sent) const {
  return sent + options_.node_lease_time - options_.node_lease_time / 10;
}

// The former holder's lease, and the grace, were over by the server's clock: ids from then on are nobody's, however late our
// own clock is.
Reply<LiveCore::LeasedNode> LiveCore::ask_for_node(std::optional<std::uint16_t> wanted) {
  const script::ScriptSource* script = script::find_script("node_lease");
  if (script == nullptr)
    return fail(Errc::server_error, "script node_lease is not part of this build");
  const std::string lease = std::to_string(options_.node_lease_time.count());
  const std::string asked = wanted ? std::to_string(*wanted) : std::string();
  const std::array<std::string_view, 1> keys = {kNodesKey};
  const std::array<std::string_view, 4> arguments = {owner_, lease, kGraceText, asked};
  auto decode = [](const wire::Answer& answer) -> Result<LeasedNode> {
    ECHOMQ_TRY(const std::int64_t node, first_integer(answer));
    const auto now = answer.view.at(2).as_integer();
    if (!now)
      return fail(Errc::protocol_error, "the node lease script did not say the time");
    if (node >= 0 && node <= 1023)
      return LeasedNode{static_cast<std::uint16_t>(node), UnixMillis(milliseconds(*now))};
    return fail(Errc::protocol_error, "node id " + std::to_string(node) + " is no node id");
  };
  return eval<LeasedNode>(*script, keys, arguments, kLeaseCall, decode);
}

void LiveCore::renew_node_later() {
  if (closed())
    return;
  renewal_.expires_after(options_.node_lease_time / 3);
  renewal_.async_wait([weak = std::weak_ptr<Core>(shared_from_this())](const boost::system::error_code& error) {
    if (error)
      return;
    if (const auto core = std::static_pointer_cast<LiveCore>(weak.lock()))
      core->renew_node();
  });
}

void LiveCore::renew_node() {
  const script::ScriptSource* script = script::find_script("node_renew");
  if (script == nullptr || closed())
    return;
  const std::string lease = std::to_string(options_.node_lease_time.count());
  const std::string node = std::to_string(minter_->node());
  const std::array<std::string_view, 1> keys = {kNodesKey};
  const std::array<std::string_view, 3> arguments = {owner_, lease, node};
  const auto sent = detail::Clock::now();
  std::weak_ptr<Core> weak = shared_from_this();
  // Noted by whoever reads the answer: the executor may be busy for longer than the lease.
  auto decode = [weak, sent](const wire::Answer& answer) -> Result<void> {
    ECHOMQ_CHECK(first_integer(answer));
    if (const auto core = std::static_pointer_cast<LiveCore>(weak.lock()))
      core->extend_lease(sent);
    return {};
  };
  eval<void>(*script, keys, arguments, kLeaseCall, decode).then([weak](const Result<void>& renewed) {
    const auto core = std::static_pointer_cast<LiveCore>(weak.lock());
    if (core && !core->closed() && !renewed && renewed.error().is(Errc::node_lease_lost))
      core->lease_again();
    // Unanswered: minting stops by itself when the last lease may lapse; the next renewal tries again.
  });
  renew_node_later();
}

void LiveCore::extend_lease(detail::Clock::time_point sent) {
  const std::lock_guard lock(lease_mutex_);
  if (!released_)
    minter_->set_valid_until(valid_until(sent));
}

void LiveCore::lease_again() {
  // The record is gone (a flushed database) or somebody else's (this process slept through its lease).
  const LogField fields[] = {{"text", "the node id was lost; asking for one again"}};
  log(LogLevel::warning, "node_lease_lost", fields);
  const auto sent = detail::Clock::now();
  std::weak_ptr<Core> weak = shared_from_this();
  ask_for_node(options_.node_id).then([weak, sent](Result<LeasedNode> leased) {
    const auto core = std::static_pointer_cast<LiveCore>(weak.lock());
    if (!core || core->closed() || !leased)
      return;
    const std::lock_guard lock(core->lease_mutex_);
    if (core->released_)
      return;
    core->minter_->advance_past(leased->at - milliseconds(1));
    core->minter_->resume(leased->node, core->valid_until(sent));
  });
}

void LiveCore::release_node() {
  if (!minter_)
    return;
  {
    const std::lock_guard lock(lease_mutex_);
    released_ = true;  // an answer that is on its way revives nothing
    minter_->stop();
  }
  const script::ScriptSource* script = script::find_script("node_release");
  if (script == nullptr || !topology_->live() || detail::on_library_thread())
    return;
  const std::string node = std::to_string(minter_->node());
  const std::array<std::string_view, 1> keys = {kNodesKey};
  const std::array<std::string_view, 2> arguments = {owner_, node};
  auto decode = [](const wire::Answer&) -> Result<void> { return {}; };
  wire::CallSettings settings;
  settings.deadline = milliseconds(250);
  settings.past_bound = true;
  (void)eval<void>(*script, keys, arguments, settings, decode).get_for(milliseconds(250));
}

Result<void> LiveCore::may_mint() const {
  if (forked())
    return fail(Errc::forked, "open a client of its own in the child process");
  if (closed())
    return fail(Errc::client_closed, "the client is closed");
  if (!minter_)
    return fail(Errc::node_lease_lost, "this client was opened without a node id for minting");
  return {};
}

Result<BrandedId> LiveCore::mint(std::string_view brand) {
  ECHOMQ_CHECK(may_mint());
  return minter_->next(brand);
}

Result<identity::Minter::Run> LiveCore::mint_run(std::uint32_t most) {
  ECHOMQ_CHECK(may_mint());
  return minter_->next_run(most);
}

Result<identity::Minter::Run> mint_run(Core& core, std::uint32_t most) {
  if (auto* const live = dynamic_cast<LiveCore*>(&core); live != nullptr)
    return live->mint_run(most);
  ECHOMQ_TRY(const BrandedId id, core.mint("EVT"));
  return identity::Minter::Run{.first = id.value(), .count = 1};
}

void LiveCore::mint_past(UnixMillis time) {
  if (minter_)
    minter_->advance_past(time);
}

std::optional<std::uint16_t> LiveCore::node_id() const {
  if (!minter_)
    return std::nullopt;
  return minter_->node();
}

}  // namespace client
}  // namespace v1
}  // namespace echomq
