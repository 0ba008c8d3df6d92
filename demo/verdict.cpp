// One pass over the jobs; the effect that is kept is that of the token whose completion the server accepted.
#include "verdict.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace demo {
namespace {

constexpr std::size_t kMaxComplaints = 10;

// The token that completed the job, empty when none did.
std::string completed_by(const JobRecord& job, bool& unheard) {
  unheard = false;
  if (!job.completions.empty()) {
    return job.completions.front();
  }
  // Whoever repeats a completion whose answer was lost, and finds no job, has completed it the first time.
  for (const std::string& token : job.uncertain) {
    if (std::ranges::find(job.gone, token) == job.gone.end()) {
      continue;
    }
    unheard = true;
    return token;
  }
  return {};
}

}  // namespace

Effects Effects::read(const std::filesystem::path& file) {
  Effects out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    ++out.lines_;
    std::istringstream words(line);
    std::string id;
    std::string token;
    std::string digest;
    std::string rest;
    if (!(words >> id >> token >> digest) || (words >> rest) || id.size() != 14 || digest.size() != 64) {
      ++out.broken_;
      continue;
    }
    out.digests_[id + ' ' + token] = digest;
  }
  return out;
}

std::string_view Effects::of(std::string_view id, std::string_view token) const {
  const auto it = digests_.find(std::string(id) + ' ' + std::string(token));
  return it == digests_.end() ? std::string_view() : std::string_view(it->second);
}

Verdicts judge(const std::vector<std::string>& ids, const std::vector<std::string>& files,
               const std::vector<std::string>& digests, const std::vector<Entry>& book, const Effects& effects) {
  Verdicts out;
  out.jobs = ids.size();
  const auto complain = [&](std::string text) {
    if (out.complaints.size() < kMaxComplaints) {
      out.complaints.push_back(std::move(text));
    }
  };
  const auto jobs = by_job(book);
  std::uint64_t kept = 0;
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const std::string& id = ids[index];
    const auto found = jobs.find(id);
    if (found == jobs.end()) {
      ++out.lost;
      complain(id + ": never claimed (" + files[index] + ")");
      continue;
    }
    const JobRecord& job = found->second;
    if (!job.claims.empty()) {
      out.redelivered += job.claims.size() - 1;
    }
    if (job.completions.size() > 1 || job.completed_late) {
      ++out.accepted_twice;
      complain(id + ": accepted twice, or by a superseded token");
    }
    bool unheard = false;
    const std::string token = completed_by(job, unheard);
    if (token.empty()) {
      ++out.lost;
      complain(id + ": never completed (" + files[index] + ")");
      continue;
    }
    if (unheard) {
      ++out.settled_unheard;
    }
    const std::string_view digest = effects.of(id, token);
    if (digest.empty()) {
      ++out.lost;
      complain(id + ": completed with token " + token + ", which left no result");
      continue;
    }
    ++kept;
    if (digest == digests[index]) {
      ++out.equal;
    } else {
      complain(files[index] + ": " + std::string(digest) + ", sha256sum says " + digests[index]);
    }
  }
  if (effects.broken() > 0) {
    complain(std::to_string(effects.broken()) + " broken lines in the results");
  }
  out.discarded = effects.lines() > kept ? effects.lines() - kept : 0;
  return out;
}

}  // namespace demo
