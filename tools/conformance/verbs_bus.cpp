// The calls of the vocabulary that concern event streams.
#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "conformance/caller.hpp"
#include "conformance/verbs.hpp"
#include "echomq/group_consumer.hpp"
#include "echomq/stream.hpp"

namespace echomq::conformance {
namespace {

/// Fields that own their bytes, and the views that the API takes.
struct Fields {
  explicit Fields(const json::value& list) {
    for (const json::value& pair : list.as_array())
      texts.emplace_back(text_of(pair.at(0)), text_of(pair.at(1)));
    views.assign(texts.begin(), texts.end());
  }
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<Field> views;
};

struct StreamCaller {
  const Client& client;
  QueueName queue;
  const json::object& args;
  std::string& error_text;

  [[nodiscard]] Stream stream(const json::value& name) const {
    return client.stream(queue, good(StreamName::parse(text_of(name))));
  }
  [[nodiscard]] Stream stream() const { return stream(args.at("stream")); }
  [[nodiscard]] Instant instant(std::string_view name) const {
    return Instant(Milliseconds(integer_of(args.at(name))));
  }
  [[nodiscard]] EventId event_id() const { return good(EventId::parse(text_of(args.at("id")))); }
  [[nodiscard]] Trim how() const {
    const json::value* approx = args.if_contains("approx");
    return approx != nullptr && approx->as_bool() ? Trim::approximate : Trim::exact;
  }

  [[nodiscard]] json::value refused(const Error& error) const {
    error_text = error.text;
    if (error.is(Errc::nonmonotonic))
      return json::object{{"error", "nonmonotonic"}};
    if (error.is(Errc::invalid_argument))
      return json::object{{"raises", error.message()}};
    return json::object{{"error", json::object{{"error_reply", error.text}}}};
  }
  /// A call's result, its value turned into JSON by `form`.
  template <typename T, typename Form>
  [[nodiscard]] json::value value(Reply<T> reply, Form form) const {
    Result<T> result = reply.get();
    return result ? form(*std::move(result)) : refused(result.error());
  }
  [[nodiscard]] json::value count(Reply<std::uint64_t> reply) const {
    return value(std::move(reply), [](std::uint64_t n) { return ok(static_cast<std::int64_t>(n)); });
  }
};

[[nodiscard]] json::value receipt(const EventId& id) { return json::string(id.text()); }

/// What the protocol calls a record's fields: of a repeated name the first.
[[nodiscard]] json::object fields_of(const Record& record) {
  json::object fields;
  for (const auto& [name, text] : record.fields) {
    if (!fields.contains(name))
      fields[name] = text_to_json(text);
  }
  return fields;
}

[[nodiscard]] json::value id_of(const Record& record) { return record.id ? receipt(*record.id) : json::value(nullptr); }

using ReadPage = std::function<Reply<Page>(const ReadOptions&)>;

/// Without a count: page by page until there is no more.
json::value read_all(const StreamCaller& c, const Stream& stream, const ReadPage& first) {
  ReadOptions options;
  const json::value* count = c.args.if_contains("count");
  if (count != nullptr)
    options.count = static_cast<std::uint32_t>(integer_of(*count));
  json::array records;
  Reply<Page> next = first(options);
  for (;;) {
    Result<Page> page = next.get();
    if (!page)
      return c.refused(page.error());
    for (const Record& record : page->records)
      records.push_back(json::array{id_of(record), fields_of(record)});
    if (count != nullptr || !page->rest)
      return ok(records);
    next = stream.read(page->rest->first, page->rest->second, options);
  }
}

json::value read(const StreamCaller& c) {
  const Stream stream = c.stream();
  const json::value* from = c.args.if_contains("from");
  const json::value* to = c.args.if_contains("to");
  return read_all(c, stream, [&](const ReadOptions& options) {
    return stream.read(from != nullptr ? text_of(*from) : "-", to != nullptr ? text_of(*to) : "+", options);
  });
}

json::value append(const StreamCaller& c, AppendOptions options) {
  const Fields fields(c.args.at("fields"));
  return c.value(c.stream().append(fields.views, options), [](const EventId& id) { return ok(receipt(id)); });
}

json::value append_batch(const StreamCaller& c) {
  const json::array& list = c.args.at("records").as_array();
  std::vector<std::unique_ptr<Fields>> fields;
  std::vector<NewRecord> records;
  for (const json::value& one : list)
    records.push_back({fields.emplace_back(std::make_unique<Fields>(one))->views});
  return c.value(c.stream().append_many(records), [&](const std::vector<Result<EventId>>& results) -> json::value {
    json::array receipts;
    for (const Result<EventId>& one : results) {
      if (!one)
        return c.refused(one.error());
      receipts.push_back(receipt(*one));
    }
    return ok(receipts);
  });
}

json::value sweep(const StreamCaller& c) {
  std::vector<RetentionRule> rules;
  for (const json::value& rule : c.args.at("policy").as_array()) {
    const std::string kind = text_of(rule.at(1));
    const std::int64_t value = integer_of(rule.at(2));
    const Window window = kind == "maxlen"  ? Window::newest(static_cast<std::uint64_t>(value))
                          : kind == "minid" ? Window::since(Instant(Milliseconds(value)))
                                            : Window::last(Milliseconds(value));
    rules.push_back({c.stream(rule.at(0)), window});
  }
  return c.value(sweep_retention(rules, c.instant("clock_ms")), [](const RetentionSweep& sweep) {
    return ok(json::object{{"calls", static_cast<std::int64_t>(sweep.calls)},
                           {"trimmed", static_cast<std::int64_t>(sweep.trimmed)}});
  });
}

/// What the handler of a consumer was given, once it was called so often.
json::value group_run(const StreamCaller& c) {
  const std::string start = text_of(c.args.at("group_start"));
  if (start != "head" && start != "new")
    throw Raised{"group_start is head or latest by its type, not " + start};
  const std::int64_t calls = integer_of(c.args.at("calls"));
  const json::object& verdicts = c.args.at("verdicts").as_object();
  std::mutex mutex;
  std::condition_variable changed;
  json::array handled;  // guarded by mutex

  const auto handler = [&](const StreamMessage& message) {
    const std::string* key = message.record.find("k");
    const json::value* verdict = key != nullptr ? verdicts.if_contains(*key) : nullptr;
    const std::lock_guard lock(mutex);
    handled.push_back(json::array{id_of(message.record), fields_of(message.record),
                                  static_cast<std::int64_t>(message.attempts), json::string(message.group)});
    changed.notify_all();
    if (verdict == nullptr)
      return Handled::done;
    if (text_of(verdict->at(0)) == "raise")
      throw std::runtime_error(text_of(verdict->at(1)));
    return Handled::failed;
  };
  GroupConsumerOptions options;
  options.start = start == "head" ? GroupStart::head : GroupStart::latest;
  options.min_idle = Milliseconds(integer_of(c.args.at("min_idle_ms")));
  options.beat = Milliseconds(50);
  auto consumer = GroupConsumer::start(good(c.stream().group(text_of(c.args.at("group")))),
                                       text_of(c.args.at("consumer")), handler, options);
  if (!consumer)
    return c.refused(consumer.error());
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(10),
                     [&] { return static_cast<std::int64_t>(handled.size()) >= calls; });
  }
  consumer->stop();
  const std::lock_guard lock(mutex);
  return handled;
}

using StreamVerb = std::function<json::value(const StreamCaller&)>;

const std::map<std::string_view, StreamVerb>& stream_verbs() {
  static const std::map<std::string_view, StreamVerb> table = {
      {"stream_append", [](const StreamCaller& c) { return append(c, {}); }},
      {"stream_append_id", [](const StreamCaller& c) { return append(c, {.id = c.event_id()}); }},
      {"stream_append_batch", append_batch},
      {"stream_read", read},
      {"stream_read_window",
       [](const StreamCaller& c) {
         const Stream stream = c.stream();
         return read_all(c, stream, [&](const ReadOptions& options) {
           return stream.read_window(c.instant("t0_ms"), c.instant("t1_ms"), options);
         });
       }},
      {"stream_read_since",
       [](const StreamCaller& c) {
         const Stream stream = c.stream();
         return read_all(c, stream,
                         [&](const ReadOptions& options) { return stream.read_since(c.instant("t0_ms"), options); });
       }},
      {"stream_length", [](const StreamCaller& c) { return c.count(c.stream().length()); }},
      {"stream_trim_maxlen",
       [](const StreamCaller& c) {
         const std::int64_t count = integer_of(c.args.at("count"));
         if (count < 0)
           throw Raised{"count is negative: the types refuse it"};
         return c.count(c.stream().trim_to(static_cast<std::uint64_t>(count), c.how()));
       }},
      {"stream_trim_minid",
       [](const StreamCaller& c) { return c.count(c.stream().trim_before(c.instant("at_ms"), c.how())); }},
      {"stream_trim_through",
       [](const StreamCaller& c) { return c.count(c.stream().trim_through(c.event_id(), c.how())); }},
      {"retention_sweep", sweep},
      {"put_archived",
       [](const StreamCaller& c) -> json::value {
         const auto put = c.stream().put_archived(c.event_id()).get();
         return put ? ok("OK") : c.refused(put.error());
       }},
      {"get_archived",
       [](const StreamCaller& c) {
         return c.value(c.stream().archived(), [](const std::optional<EventId>& id) -> json::value {
           return id ? ok(receipt(*id)) : json::value("empty");
         });
       }},
      {"clear_archived",
       [](const StreamCaller& c) {
         return c.value(c.stream().clear_archived(), [](bool there) { return ok(there ? 1 : 0); });
       }},
      {"group_run", group_run},
  };
  return table;
}

}  // namespace

std::optional<Outcome> make_bus_call(const Client& client, std::string_view call, std::string_view queue,
                                     const json::object& args) {
  const auto verb = stream_verbs().find(call);
  if (verb == stream_verbs().end())
    return std::nullopt;
  Outcome outcome;
  try {
    outcome.result = verb->second(StreamCaller{client, good(QueueName::parse(queue)), args, outcome.error_text});
  } catch (const Raised& raised) {
    outcome.result = json::object{{"raises", raised.why}};
    outcome.error_text = raised.why;
  }
  return outcome;
}

}  // namespace echomq::conformance
