#include "script/registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

using echomq::script::all_scripts;
using echomq::script::find_script;
using echomq::script::ScriptSource;

TEST(Registry, HoldsEveryScriptOfTheProtocolFolderByteForByte) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(ECHOMQ_PROTOCOL_DIR) / "lua";
  std::size_t files = 0;
  for (const char* part : {"canonical", "extension"}) {
    if (!fs::exists(root / part)) {
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(root / part)) {
      if (entry.path().extension() != ".lua") {
        continue;
      }
      ++files;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      const ScriptSource* script = find_script(entry.path().stem().string());
      ASSERT_NE(script, nullptr) << entry.path();
      EXPECT_EQ(script->path, fs::relative(entry.path(), root).string());
      EXPECT_EQ(script->extension, std::string_view(part) == "extension");
      EXPECT_EQ(script->source, bytes) << script->path;
      EXPECT_EQ(script->sha1.size(), 40U);
    }
  }
  EXPECT_EQ(all_scripts().size(), files);
}

TEST(Registry, IsSortedAndKnowsNoOtherName) {
  EXPECT_TRUE(std::ranges::is_sorted(all_scripts(), {}, &ScriptSource::name));
  EXPECT_EQ(find_script(""), nullptr);
  EXPECT_EQ(find_script("no such script"), nullptr);
}

}  // namespace
