// The checker's own book: what the server was asked about each job, and what it answered, read off the wire.
//
// It stands between workers and server and believes neither: a job's fate is what the server's replies say, request by
// request. Fed by the proxy's tap on one thread; read by another.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "echomq/value.hpp"
#include "resp/scanner.hpp"

namespace demo {

enum class Verb : std::uint8_t { none, claim, complete, retry, delay, hand_back };
// A job that ends as dead stands in the book as `retry`.

enum class Verdict : std::uint8_t {
  claimed,
  accepted,    ///< a settle that the server took
  gone,        ///< there is no such job (any more)
  refused,     ///< another token holds the job
  unanswered,  ///< the connection ended before the reply
};

/// One line of the book, in the order in which the server answered.
struct Entry {
  Verb verb;
  std::string id;
  std::string token;
  Verdict verdict;
};

/// What the book says of one job.
struct JobRecord {
  std::vector<std::string> claims;       ///< tokens handed out, in order
  std::vector<std::string> completions;  ///< tokens whose `complete` was accepted, one for each time
  std::vector<std::string> uncertain;    ///< tokens whose `complete` got no answer
  std::vector<std::string> gone;         ///< tokens whose `complete` found no row
  bool completed_late = false;           ///< accepted with another token than the last one handed out
};

class Ledger {
 public:
  Ledger();

  // The proxy's thread.
  void request_bytes(std::uint64_t connection, std::string_view bytes);
  void reply_bytes(std::uint64_t connection, std::string_view bytes);
  void ended(std::uint64_t connection);

  // Any thread.
  [[nodiscard]] std::uint64_t completions() const;
  [[nodiscard]] std::vector<Entry> entries() const;
  /// From the first claim to the last completion.
  [[nodiscard]] std::chrono::duration<double> work_time() const;
  /// Replies that had no request, or bytes that are not the protocol: must be 0, or the book is worth nothing.
  [[nodiscard]] std::uint64_t misread() const;

 private:
  /// One settle that a request asks for.
  struct Asked {
    Verb verb = Verb::none;
    std::string id;
    std::string token;
  };
  /// What a request asks for: settles, a claim of one job, or both in one call with many jobs.
  struct Request {
    enum class Form : std::uint8_t { other, claim, settle_one, settle, take, settle_and_take };
    Form form = Form::other;
    std::vector<Asked> settles;
  };
  // The bytes of one direction, frame by frame.
  struct Frames {
    std::string buffer;
    echomq::resp::Scanner scanner;
  };
  struct Conversation {
    Frames requests;
    Frames replies;
    std::deque<Request> open;
    bool subscribed = false;  // what comes is pushed, not answered; nothing of interest there
  };

  template <typename OnFrame>
  void feed(Frames& frames, std::string_view bytes, OnFrame on_frame);
  [[nodiscard]] Request read_request(const echomq::Value& command, Conversation& conversation) const;
  void settle(const Request& request, const echomq::Value& reply);
  void settled(const std::vector<Asked>& settles, const echomq::Value& verdicts);
  void taken(const echomq::Value& answer);
  void miscounted();
  void add(Verb verb, std::string id, std::string token, Verdict verdict);

  std::unordered_map<std::string, Verb> scripts_;         // by digest
  std::unordered_map<std::string, Request::Form> forms_;  // by digest, those of many jobs
  std::map<std::uint64_t, Conversation> conversations_;

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::uint64_t completions_ = 0;
  std::uint64_t misread_ = 0;
  std::chrono::steady_clock::time_point first_claim_{};
  std::chrono::steady_clock::time_point last_completion_{};
};

/// The book, job by job.
[[nodiscard]] std::unordered_map<std::string, JobRecord> by_job(const std::vector<Entry>& entries);

}  // namespace demo
