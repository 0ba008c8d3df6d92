// `law_lint [--fix] FOLDER`: checks the protocol's scripts and registry (law/lint.hpp has the rules). With --fix the scripts
// among the writers and readers of keys.json are put right first.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "law/lint.hpp"

int main(int argc, char** argv) {
  bool fix = false;
  std::string folder = ".";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--fix") {
      fix = true;
    } else {
      folder = argv[i];
    }
  }
  try {
    namespace fs = std::filesystem;
    const fs::path keys = fs::exists(fs::path(folder) / "protocol" / "keys.json")
                              ? fs::path(folder) / "protocol" / "keys.json"
                              : fs::path(folder) / "keys.json";
    if (fix) {
      const std::string text =
          echomq::law::with_access(echomq::law::read_text(keys), echomq::law::read_protocol(folder));
      std::ofstream(keys, std::ios::binary) << text;
    }
    const auto findings = echomq::law::lint(echomq::law::read_protocol(folder));
    for (const auto& finding : findings)
      std::cout << finding.to_string() << '\n';
    return findings.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "law_lint: " << error.what() << '\n';
    return 2;
  }
}
