// Subjects: names, patterns, and tails of what matches.
#include "echomq/subjects.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "bus/checks.hpp"
#include "bus/known_names.hpp"
#include "bus/state.hpp"
#include "bus/subject_hub.hpp"
#include "identity/quoted.hpp"
#include "script/registry.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using namespace bus;
using std::string_view;

/// How long a name that this client has listed is taken to be so: the list may have been flushed.
constexpr std::chrono::seconds kListed{60};
/// Names that an appender keeps a handle of; others are made anew, and listed anew, when they are used again.
constexpr std::size_t kLeastKnown = 10'000;

/// The words of a name one by one.
class Words {
 public:
  explicit Words(string_view text) noexcept : rest_(text) {}
  [[nodiscard]] std::optional<string_view> next() noexcept {
    if (done_)
      return std::nullopt;
    const auto dot = rest_.find('.');
    const string_view word = rest_.substr(0, dot);
    done_ = dot == string_view::npos;
    if (!done_)
      rest_.remove_prefix(dot + 1);
    return word;
  }
  [[nodiscard]] bool done() const noexcept { return done_; }

 private:
  string_view rest_;
  bool done_ = false;
};

[[nodiscard]] Result<void> check_words(string_view what, string_view text, bool is_pattern) {
  Words words(text);
  while (const auto word = words.next()) {
    const bool wild = *word == "*" || *word == ">";
    const bool sound = !word->empty() && (wild ? is_pattern && (*word == "*" || words.done())
                                               : word->find_first_of("*>") == string_view::npos);
    if (!sound) {
      return fail(Errc::invalid_argument,
                  fmt::format("{} {}: words between dots, none of them empty{}", what, identity::quoted(text),
                              is_pattern ? "; `*` is a whole word, `>` the last one" : ", without `*` and `>`"));
    }
  }
  return {};
}

}  // namespace

Result<SubjectPattern> SubjectPattern::parse(string_view text) {
  ECHOMQ_CHECK(check_words("pattern", text, true));
  return SubjectPattern(std::string(text));
}

bool SubjectPattern::matches(string_view name) const noexcept {
  Words wanted(text_);
  Words words(name);
  for (;;) {
    const auto want = wanted.next();
    const auto word = words.next();
    if (!want || !word)
      return !want && !word;
    if (*want == ">")
      return !word->empty();
    if (word->empty() || (*want != "*" && *want != *word))
      return false;
  }
}

struct SubjectTail::State {
  std::shared_ptr<SubjectHub> hub;
  std::uint64_t number = 0;
  std::optional<Tail> tail;
  mutable std::mutex mutex;
  std::vector<std::string> names;  // in the order of the tail's sources; guarded by mutex

  void stop() {
    if (hub)
      hub->forget(number);
    if (tail)
      tail->stop();
  }
};

SubjectTail::SubjectTail(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
SubjectTail::SubjectTail(SubjectTail&&) noexcept = default;
SubjectTail& SubjectTail::operator=(SubjectTail&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
SubjectTail::~SubjectTail() {
  if (state_)
    state_->stop();
}
void SubjectTail::stop() { state_->stop(); }

std::map<std::string, std::string> SubjectTail::positions() const {
  const std::lock_guard lock(state_->mutex);
  std::map<std::string, std::string> out;
  for (std::size_t i = 0; i < state_->names.size(); ++i)
    out[state_->names[i]] = state_->tail->position(i);
  return out;
}

TailStats SubjectTail::stats() const { return state_->tail->stats(); }

struct Subjects::State {
  State(const Client& of, const QueueName& name) : client(Client::from_core(of.core())), queue(name), keys(name) {}

  const Client client;
  const QueueName queue;
  const keyspace::QueueKeys keys;
  std::mutex mutex;
  struct Known {
    Stream stream;
    detail::Clock::time_point listed;
  };
  KnownNames<Known> known{kLeastKnown};  // guarded by mutex

  void unlist(const std::string& name) {
    const std::lock_guard lock(mutex);
    if (Known* found = known.find(name); found != nullptr)
      found->listed = {};
  }
};

Subjects::Subjects(const Client& client, const QueueName& queue) : state_(std::make_shared<State>(client, queue)) {}

Reply<EventId> Subjects::append(string_view subject, std::span<const Field> fields, AppendOptions options) const {
  ECHOMQ_CHECK(check_words("subject", subject, false));
  std::optional<Stream> stream;
  bool list = false;
  {
    const auto now = detail::Clock::now();
    const std::lock_guard lock(state_->mutex);
    State::Known* found = state_->known.find(subject);
    if (found == nullptr) {
      ECHOMQ_TRY(const StreamName name, StreamName::parse(subject));
      found = &state_->known.add(subject, {state_->client.stream(state_->queue, name), {}});
    }
    stream = found->stream;
    list = now - found->listed > kListed;
    if (list)
      found->listed = now;
  }
  if (list) {
    // Before the record, on the same connection: whoever reads the list later finds the name.
    const string_view keys[] = {state_->keys.streams()};
    const string_view arguments[] = {subject};
    const std::shared_ptr<client::Core>& core = state_->client.core();
    core->eval<std::uint64_t>(*script::find_script("stream_list"), keys, arguments, settings(Repeat::safe),
                              decode_count("stream_list"))
        .then([state = state_, name = std::string(subject)](Result<std::uint64_t> listed) {
          if (!listed)
            state->unlist(name);  // the next append lists it
        });
  }
  return stream->append(fields, options);
}

Reply<std::vector<std::string>> Subjects::list(const SubjectPattern& pattern) const {
  return state_->client.core()->command<std::vector<std::string>>(
      parts(string_view("ZRANGE"), state_->keys.streams(), string_view("0"), string_view("-1")), settings(Repeat::safe),
      [pattern](const wire::Answer& answer) -> Result<std::vector<std::string>> {
        if (!answer.view.is_aggregate())
          return unexpected_reply("subjects", answer.view);
        std::vector<std::string> names;
        for (const resp::View& name : answer.view.elements()) {
          auto text = name.copy_text();
          if (text && pattern.matches(*text))
            names.push_back(*std::move(text));
        }
        std::ranges::sort(names);
        return names;
      });
}

Result<SubjectTail> Subjects::tail(const SubjectPattern& pattern, TailHandler handler,
                                   SubjectTailOptions options) const {
  auto state = std::make_shared<SubjectTail::State>();
  const auto hub = SubjectHub::of(state_->client.core(), state_->queue);
  // A stream that comes after this look is told by the hub, and read from its beginning.
  ECHOMQ_TRY(std::set<std::string> there, hub->look());
  std::vector<TailSource> sources;
  // Who goes on from where it was has seen nothing of a stream that it did not know.
  const std::string of_others = options.resume && options.behind.empty() ? std::string("0") : options.behind;
  const auto position = [resume = std::move(options.resume).value_or(std::map<std::string, std::string>())](
                            const std::string& name, const std::string& other) {
    const auto found = resume.find(name);
    return found == resume.end() ? other : found->second;
  };
  for (const std::string& name : there) {
    if (!pattern.matches(name))
      continue;
    ECHOMQ_TRY(const StreamName checked, StreamName::parse(name));
    sources.push_back({state_->client.stream(state_->queue, checked), position(name, of_others)});
    state->names.push_back(name);
  }
  ECHOMQ_TRY(Tail started,
             Tail::start(sources, std::move(handler), {.on_error = options.on_error, .on_gap = options.on_gap}));
  state->tail.emplace(std::move(started));
  SubjectTail tail(state);
  const auto on_name = [weak = std::weak_ptr<SubjectTail::State>(state), pattern, of = state_,
                        position](const std::string& name) {
    const auto self = weak.lock();
    const auto checked = StreamName::parse(name);
    if (!self || !checked || !pattern.matches(name))
      return true;
    const Stream stream = of->client.stream(of->queue, *checked);
    const auto added = self->tail->add({stream, position(name, "0")});
    if (added) {
      const std::lock_guard lock(self->mutex);
      self->names.push_back(name);
      return true;
    }
    if (!added.error().is(Errc::server_error))
      return false;  // the server cannot be reached: once more, later
    self->tail->tell(stream, added.error());
    return true;
  };
  state->number = hub->watch(std::move(there), on_name);
  state->hub = hub;
  return tail;
}

}  // namespace v1
}  // namespace echomq
