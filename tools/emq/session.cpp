// Output, errors and progress of the tool.
#include "session.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "text.hpp"

namespace emq {
namespace {

constexpr std::size_t kFlushAt = 65536;

}  // namespace

bool write_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // whoever gave us the descriptor made it non-blocking
      pollfd polled{.fd = fd, .events = POLLOUT, .revents = 0};
      (void)::poll(&polled, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Session::Session()
    : stdout_is_terminal_(::isatty(STDOUT_FILENO) == 1), stderr_is_terminal_(::isatty(STDERR_FILENO) == 1) {}

echomq::Result<echomq::Client> Session::connect(std::string_view role, echomq::NodeLease lease) const {
  echomq::ClientOptions options;
  options.name = fmt::format("emq-{}", role);
  options.node_lease = lease;
  // Until the client is open, its failure is the command's own error and need not be said twice.
  auto open = std::make_shared<std::atomic<bool>>(false);
  options.log = [open, wants_all = verbose, quiet = json](echomq::LogLevel level, std::string_view event,
                                                          std::span<const echomq::LogField> fields) {
    if (!wants_all && (quiet || !*open || level < echomq::LogLevel::warning)) {
      return;
    }
    std::string line = fmt::format("emq: {}", printable(event));
    for (const echomq::LogField& field : fields) {
      line += fmt::format(" {}={}", field.name, printable(without_credentials(field.value)));
    }
    line += '\n';
    (void)write_all(STDERR_FILENO, line);
  };
  auto client = echomq::Client::open(url, std::move(options));
  *open = true;
  return client;
}

void Session::print(std::string_view text) {
  if (output_error_ != 0) {
    return;
  }
  pending_ += text;
  if (pending_.size() >= kFlushAt) {
    (void)flush();
  }
}

void Session::print_line(std::string_view text) {
  print(text);
  print("\n");
}

void Session::print_json(const boost::json::value& value) { print_line(boost::json::serialize(value)); }

bool Session::flush() {
  if (output_error_ == 0 && !write_all(STDOUT_FILENO, pending_)) {
    output_error_ = errno;
  }
  pending_.clear();
  return output_error_ == 0;
}

bool Session::reader_left() const noexcept { return output_error_ == EPIPE; }

std::string Session::output_error() const { return std::generic_category().message(output_error_); }

Exit Session::report(const echomq::Error& error) const {
  return report(exit_for(error), name_of(error), error.message());
}

Exit Session::report(Exit exit, std::string_view name, std::string_view message) const {
  const std::string safe = without_credentials(message);
  std::string line;
  if (json) {
    boost::json::object object;
    object["code"] = name;
    object["message"] = printable(safe);
    object["exit"] = static_cast<int>(exit);
    line = boost::json::serialize(boost::json::object{{"error", std::move(object)}});
  } else {
    line = fmt::format("emq: {}", printable(safe));
  }
  line += '\n';
  (void)write_all(STDERR_FILENO, line);
  return exit;
}

void Session::warn(std::string_view name, std::string_view message) const {
  const std::string safe = printable(without_credentials(message));
  if (!json) {
    return note(fmt::format("{}: {}", name, safe));
  }
  const boost::json::object warning{{"code", name}, {"message", safe}};
  (void)write_all(STDERR_FILENO, boost::json::serialize(boost::json::object{{"warning", warning}}) + "\n");
}

void Session::note(std::string_view text) const {
  if (json) {
    return;
  }
  // On a terminal a progress line may stand there.
  (void)write_all(STDERR_FILENO, fmt::format("{}emq: {}\n", stderr_is_terminal_ ? "\r\x1b[K" : "", text));
}

Progress::Progress() : enabled_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

bool Progress::due() noexcept {
  if (!enabled_) {
    return false;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) {
    return false;
  }
  next_ = now + std::chrono::milliseconds{100};
  return true;
}

void Progress::show(std::string_view text) {
  if (!enabled_) {
    return;
  }
  (void)write_all(STDERR_FILENO, fmt::format("\r{}\x1b[K", text));
  shown_ = true;
}

void Progress::clear() {
  if (shown_) {
    (void)write_all(STDERR_FILENO, "\r\x1b[K");
  }
  shown_ = false;
}

}  // namespace emq
