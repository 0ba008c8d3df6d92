// `emq`: the command line of EchoMQ.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "commands.hpp"
#include "guard.hpp"
#include "session.hpp"

namespace {

using emq::Exit;

/// Who closed one of the three (`>&-`) gets an error where it is used. Without this the next socket would get its number, and what we print
/// would go there.
void occupy_standard_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) == -1 && errno == EBADF) {
      (void)::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

/// The parser takes -1 for the greatest number there is, and one that is too large as well.
std::string refuse_wrapped(const std::string& text) {
  if (text.starts_with('-')) {
    return "Value " + text + " is negative";
  }
  std::uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc::result_out_of_range) {
    return "Value " + text + " is too large";
  }
  return {};
}

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT") || type == "N") {
      option->check(refuse_wrapped, "", "wrapped");
    }
  }
  for (CLI::App* command : app.get_subcommands({})) {
    check_numbers(*command);
  }
}

Exit run(int argc, char** argv, emq::Session& session) {
  CLI::App app("EchoMQ: jobs over one Valkey, from any shell", "emq");
  app.set_version_flag("--version", "emq " ECHOMQ_VERSION);
  app.fallthrough();
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--url", session.url, "Server, such as valkey://user:password@host:6379/0 or unix:///path")
      ->envname("EMQ_URL")
      ->type_name("URL");
  app.add_flag("--json", session.json, "Print one JSON value; errors as JSON on standard error");
  app.add_flag("-v,--verbose", session.verbose, "Print what the connection does");
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 server unreachable, 5 refused, 6 work --drain: paused.\n"
      "The server is --url, else EMQ_URL, else valkey://127.0.0.1:6379.");

  emq::Action chosen;
  emq::add_dev(app, session, chosen);
  emq::add_enqueue(app, session, chosen);
  emq::add_work(app, session, chosen);
  emq::add_job(app, session, chosen);
  emq::add_events(app, session, chosen);
  emq::add_cache(app, session, chosen);
  emq::add_stream(app, session, chosen);
  emq::add_queue(app, session, chosen);
  emq::add_doctor(app, session, chosen);
  emq::add_conformance(app, session, chosen);
  emq::add_wire(app, session, chosen);
  check_numbers(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked) == 0 ? Exit::ok : Exit::failed;
  } catch (const CLI::ParseError& error) {
    // The flag may come after whatever the parser stumbled upon.
    for (int index = 1; index < argc; ++index) {
      session.json |= std::string_view(argv[index]) == "--json";
    }
    // The parser's own words for an unknown command are that one is missing.
    const auto rest = app.remaining();
    const bool unknown = app.get_subcommands().empty() && !rest.empty();
    const Exit exit =
        session.report(Exit::usage, "usage", unknown ? "no such command or option: " + rest.front() : error.what());
    session.note("try 'emq --help', or 'emq <command> --help'");
    return exit;
  }
  const Exit exit = chosen();
  if (!session.flush() && !session.reader_left() && exit == Exit::ok) {
    return session.report(Exit::failed, "output_failed", "cannot write standard output: " + session.output_error());
  }
  return exit;
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  // A broken pipe is an error of the write, here and in what the library does.
  (void)std::signal(SIGPIPE, SIG_IGN);
  if (argc == 2 && std::string_view(argv[1]) == emq::kGuardArgument) {
    return emq::run_guard();
  }
  emq::Session session;
  try {
    return static_cast<int>(run(argc, argv, session));
  } catch (const std::exception& error) {
    return static_cast<int>(session.report(Exit::failed, "exception", error.what()));
  }
}
