// Reading with an eye on memory: a batch is cut where its bound is, not where the input ends.
#include "payload_reader.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace emq {
namespace {

using echomq::Errc;

constexpr std::size_t kReadBytes = std::size_t{256} << 10;

volatile std::sig_atomic_t interruptions = 0;

echomq::Error read_failed(std::string_view name, int error) {
  if (error == EINTR) {
    return {Errc::cancelled, "interrupted"};
  }
  return {Errc::invalid_argument, fmt::format("cannot read {}: {}", name, std::strerror(error))};
}

}  // namespace

void stop_reading_on_signal() {
  struct sigaction action{};
  action.sa_handler = [](int) { interruptions = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: the read in progress must return
  (void)::sigaction(SIGINT, &action, nullptr);
  (void)::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() noexcept { return interruptions != 0; }

echomq::Result<std::string> read_all(int fd, std::string_view name) {
  std::string out;
  for (;;) {
    const std::size_t had = out.size();
    if (had > kMaxPayload) {
      return echomq::fail(Errc::invalid_argument, fmt::format("{} holds more than {} bytes", name, kMaxPayload));
    }
    out.resize(had + kReadBytes);
    const ssize_t count = ::read(fd, out.data() + had, kReadBytes);
    if (count < 0) {
      return echomq::fail(read_failed(name, errno));
    }
    out.resize(had + static_cast<std::size_t>(count));
    if (count == 0) {
      return out;
    }
  }
}

echomq::Result<bool> LineReader::next(LineBatch& batch, std::size_t max_lines, std::size_t max_bytes) {
  batch.clear();
  for (;;) {
    while (at_ < buffer_.size()) {
      const std::string_view rest = std::string_view(buffer_).substr(at_);
      const auto end = rest.find(separator_);
      batch.append(rest.substr(0, end));
      if (batch.open_line() > kMaxPayload) {
        return echomq::fail(Errc::invalid_argument,
                            fmt::format("line {} of {} is longer than {} bytes", lines_ + 1, name_, kMaxPayload));
      }
      if (end == std::string_view::npos) {
        at_ = buffer_.size();
        break;
      }
      at_ += end + 1;
      batch.end_line();
      ++lines_;
      if (batch.size() >= max_lines || batch.bytes() >= max_bytes) {
        return true;
      }
    }
    // What is whole goes out before we wait for more: a slow pipe is served line by line.
    if (batch.size() > 0 && batch.open_line() == 0) {
      return true;
    }
    if (ended_) {
      if (batch.open_line() > 0) {
        batch.end_line();
        ++lines_;
      }
      return batch.size() > 0;
    }
    buffer_.resize(kReadBytes);
    at_ = 0;
    const ssize_t count = ::read(fd_, buffer_.data(), buffer_.size());
    if (count < 0) {
      const int error = errno;
      buffer_.clear();
      return echomq::fail(read_failed(name_, error));
    }
    buffer_.resize(static_cast<std::size_t>(count));
    ended_ = count == 0;
  }
}

}  // namespace emq
