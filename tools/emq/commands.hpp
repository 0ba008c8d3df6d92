// The subcommands: each adds itself to the parser and, when it is chosen, leaves what is to be done.
#pragma once

#include <functional>

#include "session.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
}  // namespace CLI

namespace emq {

/// What the command line asks for; set while it is parsed, run after it was.
using Action = std::function<Exit()>;

void add_dev(CLI::App& app, Session& session, Action& chosen);
void add_enqueue(CLI::App& app, Session& session, Action& chosen);
void add_work(CLI::App& app, Session& session, Action& chosen);
void add_job(CLI::App& app, Session& session, Action& chosen);
void add_events(CLI::App& app, Session& session, Action& chosen);
/// Under `events`.
void add_event_log(CLI::App& group, Session& session, Action& chosen);
void add_cache(CLI::App& app, Session& session, Action& chosen);
void add_stream(CLI::App& app, Session& session, Action& chosen);
void add_stream_archive(CLI::App& group, Session& session, Action& chosen);  ///< a part of it
void add_queue(CLI::App& app, Session& session, Action& chosen);
void add_doctor(CLI::App& app, Session& session, Action& chosen);
void add_conformance(CLI::App& app, Session& session, Action& chosen);
void add_wire(CLI::App& app, Session& session, Action& chosen);

}  // namespace emq
