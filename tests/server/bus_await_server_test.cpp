// Every verb of streams awaited in one expression, with temporaries for all its arguments: a compiler that destroys such a
// temporary twice, or too early, shows under the address sanitizer.
#include "echomq/task.hpp"
#include "server/bus_fixture.hpp"

namespace echomq::test {
namespace {

using BusAwait = BusServerTest;

/// Long enough to live on the heap, so that a dangling view shows.
[[nodiscard]] std::string heap(std::string_view what) { return std::string(100, '-') + std::string(what); }

// Lists are made by functions: g++ 12 cannot compile a braced list inside a `co_await` expression.
[[nodiscard]] std::vector<Field> fields(const std::string& value) { return {{"k", value}}; }
template <typename T>
[[nodiscard]] std::vector<T> list(std::size_t count, T value) {
  return std::vector<T>(count, value);
}

Task<int> verbs(const Client& client, const std::string& value) {
  const QueueName q{"q"};
  const StreamName s{"s"};
  int done = 0;
  done += (co_await client.stream(q, s).append(fields(value), {.id = EventId{"EVT0NgV51UU7ge"}})).has_value();
  done += (co_await client.stream(q, s).append(fields(value), AppendOptions{.deadline = 5s})).has_value();
  done += (co_await client.stream(q, s).append_many(list(1500, NewRecord{}), {.max_skew = 1s})).has_value();
  done +=
      (co_await client.stream(q, s).read(std::string("-"), std::string("+"), {.count = 2})).value().records.size() == 2;
  done += (co_await client.stream(q, s).read_window(Instant(1ms), Instant(2ms), ReadOptions{})).has_value();
  done += (co_await client.stream(q, s).read_since(Instant(1ms), {.direction = echomq::Direction::newest_first}))
              .has_value();
  done += (co_await client.stream(q, s).read_after(EventId{"EVT0NgV51UU7ge"})).has_value();
  done += (co_await client.stream(q, s).length()).value() == 1502;
  done += (co_await client.stream(q, s).info()).value().exists;
  done += (co_await client.stream(q, s).group(heap("g"))->create(GroupStart::head)).value();
  done += (co_await client.stream(q, s).group(heap("h"))->create_behind(std::string("1-1"))).value();
  done += (co_await client.stream(q, s).groups()).value().size() == 2;
  done += (co_await client.stream(q, s).group(heap("g"))->read_new(heap("c"), {.count = 3})).value().size() == 3;
  done += (co_await client.stream(q, s).group(heap("g"))->read_own(heap("c"), std::string("0"))).value().size() == 3;
  done += (co_await client.stream(q, s).group(heap("g"))->claim_idle(heap("d"), 0ms, std::string("0"))).has_value();
  done += (co_await client.stream(q, s).group(heap("g"))->pending({.consumer = heap("d")})).value().size() == 3;
  done +=
      (co_await client.stream(q, s).group(heap("g"))->refresh(heap("d"), list(2, std::string_view("1-1")))).has_value();
  done += (co_await client.stream(q, s).group(heap("g"))->acknowledge(list(2, std::string_view("1-1")))).has_value();
  done += (co_await client.stream(q, s).put_archived(EventId{"EVT0NgV51UU7ge"})).has_value();
  done += (co_await client.stream(q, s).archived()).value().has_value();
  done += (co_await client.stream(q, s).clear_archived()).value();
  done += (co_await client.stream(q, s).trim_through(EventId{"EVT0NgV51UU7ge"})).value() == 1;
  done += (co_await client.stream(q, s).trim_before(Instant(5ms))).value() == 0;
  done += (co_await client.stream(q, s).trim_to(1, Trim::approximate)).has_value();
  done += (co_await sweep_retention(list(2, RetentionRule{client.stream(q, s), Window::newest(1)}))).value().calls == 2;
  co_return done;
}

TEST_F(BusAwait, EveryVerb) { EXPECT_EQ(verbs(client(), heap("value")).get(), 25); }

TEST_F(BusAwait, ManyInOneLoop) {
  const auto task = [](Stream stream) -> Task<int> {
    int done = 0;
    for (int i = 0; i < 20000; ++i) {
      const Field field{"k", "v"};
      done += (co_await stream.append({&field, 1})).has_value();
    }
    co_return done;
  };
  EXPECT_EQ(task(stream()).get(), 20000);
}

}  // namespace
}  // namespace echomq::test
