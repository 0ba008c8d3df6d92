// A walk through /usr, and `xargs sha256sum`.
#include "files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>

namespace demo {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 20;
constexpr std::size_t kDigestDigits = 64;

// Names with line ends or backslashes would need quoting in three places, and there are enough others.
bool plain(std::string_view name) {
  return std::ranges::none_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\\'; });
}

struct ClosePipe {
  void operator()(std::FILE* file) const noexcept { ::pclose(file); }
};

}  // namespace

std::vector<std::string> choose_files(std::size_t count) {
  std::vector<std::string> all;
  std::error_code error;
  fs::recursive_directory_iterator walk("/usr", fs::directory_options::skip_permission_denied, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    const fs::directory_entry& entry = *walk;
    std::error_code ignored;
    if (entry.is_symlink(ignored) || !entry.is_regular_file(ignored)) {
      continue;
    }
    const auto size = entry.file_size(ignored);
    const std::string& name = entry.path().native();
    if (ignored || size == 0 || size > kMaxBytes || !plain(name) || ::access(name.c_str(), R_OK) != 0) {
      continue;
    }
    all.push_back(name);
  }
  std::ranges::sort(all);
  if (all.size() <= count) {
    return all;
  }
  std::vector<std::string> out;
  out.reserve(count);
  for (std::size_t index = 0; index < count; ++index) {
    out.push_back(std::move(all[index * all.size() / count]));
  }
  return out;
}

std::vector<std::string> system_digests(const std::vector<std::string>& files, const fs::path& scratch) {
  const fs::path list = scratch / "files";
  {
    std::ofstream out(list, std::ios::binary);
    for (const std::string& file : files) {
      out << file << '\0';
    }
  }
  std::vector<std::string> digests;
  const std::string command = "xargs -0 -a '" + list.native() + "' sha256sum --";
  const std::unique_ptr<std::FILE, ClosePipe> pipe(::popen(command.c_str(), "re"));
  if (!pipe) {
    return std::vector<std::string>(files.size());
  }
  // "<digest>  <name>", in the order of the names; a file that could not be read has no line.
  std::array<char, 8192> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe.get()) != nullptr) {
    std::string_view text(line.data());
    while (!text.empty() && text.back() == '\n') {
      text.remove_suffix(1);
    }
    if (text.size() < kDigestDigits + 2) {
      continue;
    }
    while (digests.size() < files.size() && text.substr(kDigestDigits + 2) != files[digests.size()]) {
      digests.emplace_back();
    }
    if (digests.size() < files.size()) {
      digests.emplace_back(text.substr(0, kDigestDigits));
    }
  }
  digests.resize(files.size());
  return digests;
}

}  // namespace demo
