// `emq conformance`: the kit of `protocol/conformance` on any server.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <exception>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "conformance/scenario.hpp"
#include "text.hpp"

namespace emq {
namespace {

namespace json = boost::json;
namespace kit = echomq::conformance;

/// Scenarios of the canonical suite, and the two of them that need hash-field TTL, which not every server has.
constexpr int kCanonical = 79;
const std::set<int> kMayBeSkipped = {58, 59};

struct KitArguments {
  std::string scenario;
  bool private_server = false;
};

struct Named {
  int number = 0;  ///< 0: one of our own
  std::string name;
  std::string why;

  [[nodiscard]] std::string text() const { return number == 0 ? name : fmt::format("{} {}", number, name); }
  [[nodiscard]] json::object to_json() const {
    json::object object{{"name", name}, {"why", why}};
    if (number != 0)
      object["number"] = number;
    return object;
  }
};

struct Sum {
  int passed = 0;
  int total = 0;
};

class Kit {
 public:
  Kit(Session& session, const KitArguments& options) : session_(session), options_(options) {
    // Two runs at a time on one server must not meet.
    run_.base = fmt::format("conf.{:08x}", std::random_device()());
    run_.private_server = options.private_server;
  }

  [[nodiscard]] Exit run() {
    std::set<int> numbers;
    for (const kit::ScenarioSource& source : kit::embedded_scenarios()) {
      const json::value scenario = json::parse(source.text);
      Named named;
      if (!source.own())
        named.number = scenario.at("number").to_number<int>();
      named.name = std::string(scenario.at("name").as_string());
      numbers.insert(named.number);
      if (wanted(named))
        run_one(std::move(named), scenario);
    }
    for (int number = 1; number <= kCanonical; ++number) {
      if (!numbers.contains(number) && wanted({number, "", ""})) {
        ++canonical_.total;
        skipped_.push_back({number, "?", "this build has no such scenario"});
      }
    }
    if (canonical_.total + own_.total == 0)
      return session_.report(Exit::usage, "usage", "no scenario " + options_.scenario);
    return report();
  }

 private:
  [[nodiscard]] bool wanted(const Named& named) const {
    return options_.scenario.empty() || options_.scenario == named.name ||
           (named.number != 0 && options_.scenario == std::to_string(named.number));
  }

  void run_one(Named named, const json::value& scenario) {
    Sum& sum = named.number == 0 ? own_ : canonical_;
    ++sum.total;
    if (progress_.due())
      progress_.show(named.text());
    try {
      if (auto reason = kit::obstacle(session_.url, scenario, run_)) {
        named.why = *std::move(reason);
        skipped_.push_back(std::move(named));
        return;
      }
      named.why = kit::run_scenario(session_.url, scenario, run_);
    } catch (const std::exception& error) {
      named.why = error.what();
    }
    if (named.why.empty()) {
      ++sum.passed;
      return;
    }
    progress_.clear();
    if (!session_.json) {
      session_.print_line(fmt::format("FAILED {}: {}", named.text(), printable(named.why, 2000)));
      (void)session_.flush();
    }
    failed_.push_back(std::move(named));
  }

  [[nodiscard]] Exit report() {
    progress_.clear();
    bool good = failed_.empty();
    for (const Named& one : skipped_)
      good &= kMayBeSkipped.contains(one.number);
    if (session_.json) {
      const auto list = [](const std::vector<Named>& all) {
        json::array array;
        for (const Named& one : all)
          array.push_back(one.to_json());
        return array;
      };
      session_.print_json({{"conformance", {{"passed", canonical_.passed}, {"total", canonical_.total}}},
                           {"own", {{"passed", own_.passed}, {"total", own_.total}}},
                           {"failed", list(failed_)},
                           {"skipped", list(skipped_)}});
    } else {
      session_.print_line(fmt::format("CONFORMANCE {}/{}", canonical_.passed, canonical_.total));
      session_.print_line(fmt::format("OWN {}/{}", own_.passed, own_.total));
      std::string names;
      for (const Named& one : skipped_)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", one.text());
      session_.print_line(names.empty() ? "SKIPPED 0" : fmt::format("SKIPPED {} ({})", skipped_.size(), names));
      for (const Named& one : skipped_)
        session_.note(fmt::format("skipped {}: {}", one.text(), one.why));
    }
    return good ? Exit::ok : Exit::failed;
  }

  Session& session_;
  const KitArguments& options_;
  kit::RunOptions run_;
  Progress progress_;
  Sum canonical_;
  Sum own_;
  std::vector<Named> failed_;
  std::vector<Named> skipped_;
};

Exit conformance(Session& session, const KitArguments& options) {
  // The scenarios open clients of their own; this one finds out whether there is a server at all.
  ECHOMQ_OR_REPORT(const echomq::Client client, session.connect("conformance", echomq::NodeLease::never));
  return Kit(session, options).run();
}

}  // namespace

void add_conformance(CLI::App& app, Session& session, Action& chosen) {
  auto options = std::make_shared<KitArguments>();
  CLI::App* command = app.add_subcommand("conformance", "Run the conformance kit on the server");
  command->add_option("--scenario", options->scenario, "Only this one")->type_name("NUMBER|NAME");
  command->add_flag("--private", options->private_server,
                    "The server is nobody else's: scenarios may change its settings for a while");
  command->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return conformance(session, *options); }; });
}

}  // namespace emq
