// `emq wire`: the contract of the protocol as a lock file, and what changed between two.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "law/lock.hpp"

namespace emq {
namespace {

namespace json = boost::json;
namespace law = echomq::law;

struct WireArguments {
  bool check = false;
  std::string folder = ".";
  std::string a;
  std::string b;
};

/// Prints them; `failed` when one of them breaks something.
Exit report(Session& session, const std::vector<law::Change>& changes) {
  std::size_t breaking = 0;
  json::array list;
  for (const law::Change& one : changes) {
    breaking += one.breaking ? 1 : 0;
    if (session.json) {
      list.push_back(json::object{{"breaking", one.breaking}, {"what", one.what}, {"who", one.who}});
    } else {
      session.print_line(one.to_string());
    }
  }
  if (session.json) {
    session.print_json(
        json::object{{"breaking", breaking}, {"additive", changes.size() - breaking}, {"changes", std::move(list)}});
  } else {
    session.print_line(fmt::format("{} breaking, {} additive", breaking, changes.size() - breaking));
  }
  return breaking == 0 ? Exit::ok : Exit::failed;
}

Exit diff(Session& session, const WireArguments& options) {
  try {
    return report(session, law::compare(law::read_lock(options.a), law::read_lock(options.b)));
  } catch (const std::exception& error) {
    return session.report(Exit::usage, "usage", error.what());
  }
}

Exit lock(Session& session, const WireArguments& options) {
  try {
    namespace fs = std::filesystem;
    const fs::path folder = options.folder;
    const fs::path root = fs::exists(folder / "protocol" / "keys.json") ? folder / "protocol" : folder;
    const std::string path = (root / "wire.lock").string();
    const law::Lock now = law::lock_of(law::read_protocol(root));
    if (options.check) {
      const law::Lock locked = law::parse_lock(law::read_text(path));
      (void)report(session, law::compare(locked, now));
      if (locked.to_text() == now.to_text()) {
        return Exit::ok;
      }
      session.note("the contract has moved: `emq wire lock` writes the lock");
      return Exit::failed;
    }
    std::ofstream file(path, std::ios::binary);
    file << now.to_text();
    file.close();
    if (!file) {
      return session.report(Exit::failed, "not_written", "cannot write " + path);
    }
    if (session.json) {
      session.print_json(json::object{{"lock", path}});
    } else {
      session.print_line(path);
    }
    return Exit::ok;
  } catch (const std::exception& error) {
    return session.report(Exit::usage, "usage", error.what());
  }
}

}  // namespace

void add_wire(CLI::App& app, Session& session, Action& chosen) {
  CLI::App* group = app.add_subcommand("wire", "The contract of the protocol: lock it, compare two");
  group->require_subcommand(1);
  auto options = std::make_shared<WireArguments>();
  CLI::App* two = group->add_subcommand("diff", "What changed from A to B, and who can no longer read what");
  two->add_option("A", options->a, "A lock file, or a checkout")->required();
  two->add_option("B", options->b, "The same of the other side")->required();
  two->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return diff(session, *options); }; });
  CLI::App* one = group->add_subcommand("lock", "Write protocol/wire.lock from keys.json and the scripts");
  one->add_option("FOLDER", options->folder, "The checkout; default: where this runs");
  one->add_flag("--check", options->check, "Write nothing; fail when the contract has moved");
  one->final_callback(
      [&session, &chosen, options] { chosen = [&session, options] { return lock(session, *options); }; });
}

}  // namespace emq
