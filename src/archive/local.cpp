// Segments in a folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "archive/errors.hpp"
#include "echomq/archive.hpp"
#include "identity/quoted.hpp"
#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

using std::string_view;

constexpr std::size_t kLongestName = 64;
constexpr string_view kTemporary = ".tmp-";

[[nodiscard]] std::unexpected<Error> refused(string_view what, const std::string& path, int number) {
  return archive::failed(ArchiveErrc::storage_failed,
                         fmt::format("cannot {} {}: {}", what, path, std::generic_category().message(number)));
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool good() const noexcept { return fd_ >= 0; }

 private:
  int fd_;
};

/// False with errno set.
[[nodiscard]] bool write_all(int fd, string_view bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
    at += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace

Result<void> SegmentStore::append(string_view name, std::uint64_t, string_view) {
  return archive::failed(ArchiveErrc::storage_failed, fmt::format("objects of this store do not grow: {}", name));
}
Result<void> SegmentStore::cut(string_view name, std::uint64_t) {
  return archive::failed(ArchiveErrc::storage_failed, fmt::format("objects of this store are not cut: {}", name));
}
Result<void> SegmentStore::sync(string_view) { return {}; }
Result<std::shared_ptr<void>> SegmentStore::lock() { return std::shared_ptr<void>(); }

LocalSegments::LocalSegments(std::string folder, Growth growth) : folder_(std::move(folder)), growth_(growth) {
  std::random_device random;
  instance_ = (std::uint64_t{random()} << 32) | random();
}

Result<std::shared_ptr<LocalSegments>> LocalSegments::open(std::string folder, Growth growth) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return refused("make the folder", folder, error.value());
  return std::shared_ptr<LocalSegments>(new LocalSegments(std::move(folder), growth));
}

Result<std::shared_ptr<LocalSegments>> LocalSegments::open_existing(std::string folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return refused("read the folder", folder, error ? error.value() : ENOTDIR);
  return std::shared_ptr<LocalSegments>(new LocalSegments(std::move(folder), Growth::append));
}

Result<std::string> LocalSegments::path_of(string_view name) const {
  const bool sound = !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), [](char byte) {
                       return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                              (byte >= '0' && byte <= '9') || byte == '.' || byte == '-';
                     });
  if (!sound)
    return fail(Errc::invalid_argument, "not the name of an object: " + identity::quoted(name));
  return folder_ + "/" + std::string(name);
}

Result<std::vector<SegmentStore::Object>> LocalSegments::list() {
  std::vector<Object> out;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    struct stat status{};
    if (name.front() == '.' || ::stat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      continue;
    out.push_back({std::move(name), static_cast<std::uint64_t>(status.st_size)});
  }
  if (error)
    return refused("list", folder_, error.value());
  return out;
}

Result<std::string> LocalSegments::get(string_view name, std::uint64_t offset, std::uint64_t size) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  const File file(path, O_RDONLY);
  struct stat status{};
  if (!file.good() || ::fstat(file.fd(), &status) != 0)
    return refused("read", path, errno);
  const auto length = static_cast<std::uint64_t>(status.st_size);
  std::string out(offset < length ? std::min(size, length - offset) : 0, '\0');
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(file.fd(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return refused("read", path, errno);
    if (count == 0)
      break;
    done += static_cast<std::size_t>(count);
  }
  out.resize(done);
  return out;
}

Result<bool> LocalSegments::put(string_view name, string_view bytes, Put how) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  // Nobody else writes into it: other hosts and containers may have the same process number.
  const std::string temporary =
      fmt::format("{}/{}{:016x}-{}-{}", folder_, kTemporary, instance_, ::getpid(), temporaries_++);
  {
    const File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.good() || !write_all(file.fd(), bytes, 0) || ::fsync(file.fd()) != 0) {
      const int number = errno;
      ::unlink(temporary.c_str());
      return refused("write", temporary, number);
    }
  }
  bool made = true;
  if (how == Put::replace) {
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      const int number = errno;
      ::unlink(temporary.c_str());
      return refused("write", path, number);
    }
  } else {
    // A link, unlike a rename, does not replace what somebody else has put there.
    const int number = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
    ::unlink(temporary.c_str());
    if (number != 0 && number != EEXIST)
      return refused("write", path, number);
    made = number == 0;
  }
  ECHOMQ_CHECK(sync_folder());
  return made;
}

Result<void> LocalSegments::remove(string_view name) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return refused("remove", path, errno);
  std::erase(lasting_, name);
  return sync_folder();
}

Result<void> LocalSegments::append(string_view name, std::uint64_t at, string_view bytes) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  const File file(path, O_WRONLY | O_CREAT);
  struct stat status{};
  if (!file.good() || ::fstat(file.fd(), &status) != 0)
    return refused("write", path, errno);
  if (static_cast<std::uint64_t>(status.st_size) != at) {
    return archive::failed(
        ArchiveErrc::storage_failed,
        fmt::format("{} has {} bytes where {} were expected: somebody else writes to it", path, status.st_size, at));
  }
  if (!write_all(file.fd(), bytes, at))
    return refused("write", path, errno);
  return {};
}

Result<void> LocalSegments::cut(string_view name, std::uint64_t size) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  const File file(path, O_WRONLY);
  if (!file.good() || ::ftruncate(file.fd(), static_cast<off_t>(size)) != 0 || ::fsync(file.fd()) != 0)
    return refused("cut", path, errno);
  return {};
}

Result<void> LocalSegments::sync(string_view name) {
  ECHOMQ_TRY(const std::string path, path_of(name));
  const File file(path, O_WRONLY);
  if (!file.good() || ::fsync(file.fd()) != 0)
    return refused("sync", path, errno);
  if (std::find(lasting_.begin(), lasting_.end(), name) != lasting_.end())
    return {};
  ECHOMQ_CHECK(sync_folder());
  // A few: the files that grow now.
  if (lasting_.size() >= 8)
    lasting_.erase(lasting_.begin());
  lasting_.emplace_back(name);
  return {};
}

Result<void> LocalSegments::sync_folder() const {
  const File file(folder_, O_RDONLY | O_DIRECTORY);
  if (!file.good() || ::fsync(file.fd()) != 0)
    return refused("sync", folder_, errno);
  return {};
}

Result<std::shared_ptr<void>> LocalSegments::lock() {
  if (growth_ == Growth::whole)
    return std::shared_ptr<void>();
  const std::string path = folder_ + "/.lock";
  auto file = std::make_shared<File>(path, O_WRONLY | O_CREAT);
  if (!file->good())
    return refused("lock", path, errno);
  if (::flock(file->fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return archive::failed(ArchiveErrc::held, "another archiver has the folder " + folder_);
    return refused("lock", path, errno);
  }
  // What a crash has left of objects that never came to be.
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(kTemporary))
      ::unlink(at->path().c_str());
  }
  return std::shared_ptr<void>(std::move(file));
}

}  // namespace v1
}  // namespace echomq
