// The calls of the vocabulary that need no server: ids, keys, slots, backoff.
#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/batch.hpp"
#include "echomq/cache.hpp"
#include "echomq/id.hpp"
#include "echomq/stream.hpp"
#include "echomq/worker.hpp"
#include "keyspace/keys.hpp"
#include "keyspace/slot.hpp"

namespace echomq::conformance {
namespace {

/// Values above 2^53 are written as text.
[[nodiscard]] json::value value_of(std::uint64_t value) {
  if (value < (std::uint64_t{1} << 53U))
    return static_cast<std::int64_t>(value);
  return json::string(std::to_string(value));
}

[[nodiscard]] json::value raises(const Error& error) { return json::object{{"raises", error.message()}}; }

[[nodiscard]] json::value entry_id(const std::string& text) {
  const auto id = EventId::parse(text);
  if (id)
    return ok(json::string(id->entry_id().text()));
  return json::object{{"error", id.error().is(Errc::wrong_kind) ? "kind" : "malformed"}};
}

[[nodiscard]] json::value backoff(const Backoff& policy, std::int64_t attempts) {
  if (attempts < 1)
    return json::object{{"raises", "an attempt is counted from 1: the type's contract"}};
  return policy(static_cast<std::uint64_t>(attempts)).count();
}

[[nodiscard]] json::value batch_decide(const json::object& args) {
  const BatchShape shape{.min_size = static_cast<std::uint32_t>(integer_of(args.at("min_size"))),
                         .timeout = Milliseconds(integer_of(args.at("timeout")))};
  if (const auto checked = shape.check(); !checked)
    return raises(checked.error());
  const auto size = shape.decide(static_cast<std::uint64_t>(integer_of(args.at("depth"))),
                                 Milliseconds(integer_of(args.at("elapsed_ms"))));
  return size ? json::value(json::object{{"flush", *size}}) : json::value("wait");
}

/// Members as `[id, verdict or null, answer of its settle]`.
[[nodiscard]] json::value batch_partition(const json::object& args) {
  std::vector<BatchMember> members;
  for (const json::value& one : args.at("members").as_array()) {
    const auto id = JobId::parse(text_of(one.at(0)));
    if (!id)
      return raises(id.error());
    BatchMember& member = members.emplace_back(BatchMember{.id = *id, .verdict = std::nullopt});
    if (!one.at(1).is_null()) {
      const std::string verdict = text_of(one.at(1));
      member.verdict = verdict == "ok"      ? echomq::Outcome::Kind::done
                       : verdict == "delay" ? echomq::Outcome::Kind::delay
                                            : echomq::Outcome::Kind::retry;
    }
    const json::value& answer = one.at(2);
    if (answer == json::value("ok"))
      member.settled = BatchSettled::accepted;
    if (answer == ok("dead"))
      member.settled = BatchSettled::dead;
    if (answer == ok("scheduled"))
      member.settled = BatchSettled::scheduled;
  }
  const BatchReport report = partition_batch(members);
  const auto list = [](const std::vector<JobId>& ids) {
    json::array out;
    for (const JobId& id : ids)
      out.push_back(json::string(id.text()));
    return out;
  };
  return json::object{{"completed", list(report.completed)},
                      {"delayed", list(report.delayed)},
                      {"dead", list(report.dead)},
                      {"retried", list(report.retried)}};
}

}  // namespace

std::optional<json::value> make_pure_call(std::string_view call, const json::object& args) {
  const auto text = [&](std::string_view name) { return text_of(args.at(name)); };
  const auto number = [&](std::string_view name) { return std::stoull(text(name)); };
  const auto milliseconds = [&](std::string_view name) { return Milliseconds(integer_of(args.at(name))); };

  if (call == "base62_encode") {
    const auto digits = base62_encode(number("value"));
    return digits ? json::value(json::string(std::string_view(digits->data(), digits->size())))
                  : raises(digits.error());
  }
  if (call == "base62_decode") {
    const auto value = base62_decode(text("payload"));
    return value ? ok(value_of(*value)) : json::value("error");
  }
  if (call == "id_encode") {
    const auto id = BrandedId::encode(text("namespace"), number("value"));
    return id ? ok(json::string(id->text())) : json::value("error");
  }
  if (call == "id_parse") {
    const auto id = BrandedId::parse(text("id"));
    return id ? ok(json::array{json::string(id->brand()), value_of(id->value())}) : json::value("error");
  }
  if (call == "unix_ms") {
    const auto id = BrandedId::parse(text("id"));
    return id ? ok(id->minted_at().time_since_epoch().count()) : json::value("error");
  }
  if (call == "stream_entry_id")
    return entry_id(text("id"));
  if (call == "entry_bounds") {
    const Instant at(milliseconds("at_ms"));
    const auto floor = minid_floor(at);
    const auto ceil = maxid_ceil(at);
    return floor && ceil ? json::value(json::array{json::string(*floor), json::string(*ceil)}) : raises(floor.error());
  }
  if (call == "sorted") {
    const json::array& ids = args.at("ids").as_array();
    for (std::size_t i = 1; i < ids.size(); ++i) {
      if (text_of(ids[i - 1]) >= text_of(ids[i]))
        return json::value(false);
    }
    return json::value(true);
  }
  if (call == "hash32")
    return static_cast<std::int64_t>(hash32(number("value")));
  if (call == "slot")
    return static_cast<std::int64_t>(keyspace::slot(text("key")));
  if (call == "hashtag") {
    const std::string key = text("key");
    return json::string(keyspace::hashtag(key));
  }
  if (call == "version_key")
    return json::string(keyspace::kVersionKey);
  if (call == "queue_key" || call == "prefix_bytes" || call == "job_key") {
    const auto queue = QueueName::parse(text("queue"));
    if (!queue)
      return raises(queue.error());
    const keyspace::QueueKeys keys(*queue);
    if (call == "job_key") {
      const auto id = JobId::parse(text("id"));
      return id ? json::value(json::string(keys.job(*id).view())) : raises(id.error());
    }
    const std::string key = keys.base() + text("type");
    if (call == "prefix_bytes")
      return static_cast<std::int64_t>(key.size());
    return json::string(key);
  }
  if (call == "batch_decide")
    return batch_decide(args);
  if (call == "batch_partition")
    return batch_partition(args);
  if (call == "backoff_fixed") {
    return backoff(Backoff::fixed(milliseconds("ms")), integer_of(args.at("attempts")));
  }
  if (call == "backoff_exponential") {
    return backoff(Backoff::exponential(milliseconds("base"), milliseconds("cap")), integer_of(args.at("attempts")));
  }
  if (call == "coh_message" || call == "newer") {
    const bool message = call == "coh_message";
    const auto first = BrandedId::parse(text(message ? "id" : "a"));
    const auto second = BrandedId::parse(text(message ? "version" : "b"));
    if (!first || !second)
      return raises(first ? second.error() : first.error());
    if (message)
      return json::string(CoherenceMessage{*first, *second}.text());
    return is_newer(*first, *second);
  }
  if (call == "coh_parse") {
    const auto message = CoherenceMessage::parse(text("message"));
    if (!message)
      return "error";
    return ok(json::array{json::string(message->id.text()), json::string(message->version.text())});
  }
  return std::nullopt;
}

}  // namespace echomq::conformance
