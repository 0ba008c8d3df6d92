// The work of the demo: real files of this machine, and what the system's own `sha256sum` says of them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace demo {

/// `count` readable regular files of at most 1 MiB below /usr, the same ones on each run as long as nothing is
/// installed: all of them sorted by name, and then evenly spaced ones. Fewer when there are fewer.
[[nodiscard]] std::vector<std::string> choose_files(std::size_t count);

/// One digest a file, in their order, by one run of `sha256sum`; an empty one where it gave none. `scratch` is a folder
/// for the list of names.
[[nodiscard]] std::vector<std::string> system_digests(const std::vector<std::string>& files,
                                                      const std::filesystem::path& scratch);

}  // namespace demo
