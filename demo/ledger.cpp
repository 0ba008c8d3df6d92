// RESP frames to verdicts: a request is known by its script's digest, its reply by its place in line.
#include "ledger.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "resp/view.hpp"
#include "script/registry.hpp"

namespace demo {
namespace {

using echomq::Value;
using Clock = std::chrono::steady_clock;

std::string text_of(const Value& value) {
  if (const auto text = value.as_text()) {
    return std::string(*text);
  }
  if (const auto number = value.as_integer()) {
    return std::to_string(*number);
  }
  return {};
}

/// How many arguments a settlement of this kind has in the scripts of many jobs, and what it asks for.
std::pair<std::size_t, Verb> shape_of(const std::string& kind) {
  if (kind == "d") {
    return {3, Verb::complete};
  }
  if (kind == "D") {
    return {5, Verb::complete};
  }
  if (kind == "r") {
    return {7, Verb::retry};
  }
  if (kind == "k") {
    return {5, Verb::retry};
  }
  if (kind == "w") {
    return {4, Verb::delay};
  }
  if (kind == "h") {
    return {3, Verb::hand_back};
  }
  return {0, Verb::none};
}

}  // namespace

Ledger::Ledger() {
  const std::pair<std::string_view, Request::Form> forms[] = {{"settle", Request::Form::settle},
                                                              {"take", Request::Form::take},
                                                              {"settle_and_take", Request::Form::settle_and_take}};
  for (const auto& [name, form] : forms) {
    if (const auto* script = echomq::script::find_script(name)) {
      forms_.emplace(script->sha1, form);
    }
  }
  const std::pair<std::string_view, Verb> verbs[] = {{"claim", Verb::claim},       {"gclaim", Verb::claim},
                                                     {"complete", Verb::complete}, {"retry", Verb::retry},
                                                     {"delay", Verb::delay},       {"hand_back", Verb::hand_back}};
  for (const auto& [name, verb] : verbs) {
    if (const auto* script = echomq::script::find_script(name)) {
      scripts_.emplace(script->sha1, verb);
    }
  }
}

template <typename OnFrame>
void Ledger::feed(Frames& frames, std::string_view bytes, OnFrame on_frame) {
  frames.buffer += bytes;
  for (;;) {
    const auto step = frames.scanner.scan(frames.buffer);
    if (step == echomq::resp::Step::error) {
      const std::lock_guard guard(mutex_);
      ++misread_;
      frames.buffer.clear();
      return;
    }
    if (step == echomq::resp::Step::need_more) {
      return;
    }
    const std::size_t size = frames.scanner.frame_size();
    const bool push = frames.scanner.is_push();
    const Value value = echomq::resp::to_value(echomq::resp::View(std::string_view(frames.buffer).substr(0, size)));
    frames.buffer.erase(0, size);
    on_frame(value, push);
  }
}

void Ledger::request_bytes(std::uint64_t connection, std::string_view bytes) {
  Conversation& conversation = conversations_[connection];
  feed(conversation.requests, bytes,
       [&](const Value& command, bool) { conversation.open.push_back(read_request(command, conversation)); });
}

void Ledger::reply_bytes(std::uint64_t connection, std::string_view bytes) {
  Conversation& conversation = conversations_[connection];
  feed(conversation.replies, bytes, [&](const Value& reply, bool push) {
    if (push || conversation.subscribed) {
      return;
    }
    if (conversation.open.empty()) {
      const std::lock_guard guard(mutex_);
      ++misread_;
      return;
    }
    settle(conversation.open.front(), reply);
    conversation.open.pop_front();
  });
}

void Ledger::ended(std::uint64_t connection) {
  const auto it = conversations_.find(connection);
  if (it == conversations_.end()) {
    return;
  }
  // A claim without an answer may have handed out a token that nobody knows: it comes back when its lease lapses.
  for (Request& request : it->second.open) {
    for (Asked& one : request.settles) {
      add(one.verb, std::move(one.id), std::move(one.token), Verdict::unanswered);
    }
  }
  conversations_.erase(it);
}

Ledger::Request Ledger::read_request(const Value& command, Conversation& conversation) const {
  Request out;
  const std::string name = command.size() > 0 ? text_of(command[0]) : std::string();
  if (name == "SUBSCRIBE" || name == "PSUBSCRIBE" || name == "SSUBSCRIBE") {
    conversation.subscribed = true;
  }
  if (name != "EVALSHA" || command.size() < 3) {
    return out;
  }
  const std::string digest = text_of(command[1]);
  const std::size_t first = 3 + static_cast<std::size_t>(command[2].as_integer().value_or(0));
  if (const auto many = forms_.find(digest); many != forms_.end()) {
    out.form = many->second;
    // After the base, and what is to be claimed.
    std::size_t at = first + (out.form == Request::Form::settle_and_take ? 4 : 1);
    while (out.form != Request::Form::take && at + 2 < command.size()) {
      const auto [size, verb] = shape_of(text_of(command[at + 2]));
      if (size == 0) {
        break;
      }
      out.settles.push_back({verb, text_of(command[at]), text_of(command[at + 1])});
      at += size;
    }
    return out;
  }
  const auto script = scripts_.find(digest);
  if (script == scripts_.end()) {
    return out;
  }
  if (script->second == Verb::claim) {
    out.form = Request::Form::claim;
    return out;
  }
  // The first two arguments of every single settle are the job's id and the token; they come after the keys.
  if (command.size() < first + 2) {
    return out;
  }
  out.form = Request::Form::settle_one;
  out.settles.push_back({script->second, text_of(command[first]), text_of(command[first + 1])});
  return out;
}

void Ledger::settle(const Request& request, const Value& reply) {
  if (reply.is_error()) {
    // NOSCRIPT and the like: the request was not done, and its repeat is another line of the book.
    for (const Asked& one : request.settles) {
      if (reply.error_text().starts_with("EMQSTALE job gone")) {
        add(one.verb, one.id, one.token, Verdict::gone);
      } else if (reply.error_text().starts_with("EMQSTALE")) {
        add(one.verb, one.id, one.token, Verdict::refused);
      }
    }
    return;
  }
  switch (request.form) {
    case Request::Form::other: break;
    case Request::Form::claim:
      if (reply.size() >= 3) {
        add(Verb::claim, text_of(reply[0]), text_of(reply[2]), Verdict::claimed);
      }
      break;
    case Request::Form::settle_one: {
      const Asked& one = request.settles.front();
      add(one.verb, one.id, one.token, reply.as_integer() == 0 ? Verdict::gone : Verdict::accepted);
      break;
    }
    case Request::Form::settle: settled(request.settles, reply); break;
    case Request::Form::take: taken(reply); break;
    case Request::Form::settle_and_take:
      if (reply.size() < 2) {
        miscounted();
        break;
      }
      settled(request.settles, reply[0]);
      taken(reply[1]);
      break;
  }
}

void Ledger::settled(const std::vector<Asked>& settles, const Value& verdicts) {
  if (verdicts.size() != settles.size()) {
    miscounted();
    return;
  }
  for (std::size_t i = 0; i < settles.size(); ++i) {
    const std::int64_t verdict = verdicts[i].as_integer().value_or(-1);
    add(settles[i].verb, settles[i].id, settles[i].token,
        verdict > 0    ? Verdict::accepted
        : verdict == 0 ? Verdict::gone
                       : Verdict::refused);
  }
}

void Ledger::taken(const Value& answer) {
  if (answer.size() < 5) {
    miscounted();
    return;
  }
  const Value& jobs = answer[4];
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].size() >= 3) {
      add(Verb::claim, text_of(jobs[i][0]), text_of(jobs[i][2]), Verdict::claimed);
    }
  }
}

void Ledger::miscounted() {
  const std::lock_guard guard(mutex_);
  ++misread_;
}

void Ledger::add(Verb verb, std::string id, std::string token, Verdict verdict) {
  const std::lock_guard guard(mutex_);
  if (verb == Verb::claim && first_claim_ == Clock::time_point()) {
    first_claim_ = Clock::now();
  }
  if (verb == Verb::complete && verdict == Verdict::accepted) {
    ++completions_;
    last_completion_ = Clock::now();
  }
  entries_.push_back({verb, std::move(id), std::move(token), verdict});
}

std::uint64_t Ledger::completions() const {
  const std::lock_guard guard(mutex_);
  return completions_;
}
std::vector<Entry> Ledger::entries() const {
  const std::lock_guard guard(mutex_);
  return entries_;
}
std::chrono::duration<double> Ledger::work_time() const {
  const std::lock_guard guard(mutex_);
  return last_completion_ - first_claim_;
}
std::uint64_t Ledger::misread() const {
  const std::lock_guard guard(mutex_);
  return misread_;
}

std::unordered_map<std::string, JobRecord> by_job(const std::vector<Entry>& entries) {
  std::unordered_map<std::string, JobRecord> out;
  for (const Entry& entry : entries) {
    JobRecord& job = out[entry.id];
    if (entry.verb == Verb::claim) {
      job.claims.push_back(entry.token);
    }
    if (entry.verb != Verb::complete) {
      continue;
    }
    switch (entry.verdict) {
      case Verdict::accepted:
        if (!job.claims.empty() && job.claims.back() != entry.token) {
          job.completed_late = true;
        }
        job.completions.push_back(entry.token);
        break;
      case Verdict::unanswered: job.uncertain.push_back(entry.token); break;
      case Verdict::gone: job.gone.push_back(entry.token); break;
      case Verdict::refused:
      case Verdict::claimed: break;
    }
  }
  return out;
}

}  // namespace demo
