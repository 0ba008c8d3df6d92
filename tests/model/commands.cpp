// How often each verb is drawn, and how a step is shown.
#include "model/commands.hpp"

#include <array>
#include <ostream>
#include <utility>

namespace echomq::model {
namespace {

struct Weighted {
  Verb verb;
  const char* name;
  int weight;
};

// Claims and settles are most of it, so that jobs travel far; what empties a queue is rare.
constexpr std::array kVerbs = {
    Weighted{Verb::enqueue, "enqueue", 9},
    Weighted{Verb::genqueue, "genqueue", 12},
    Weighted{Verb::schedule, "schedule", 4},
    Weighted{Verb::admit, "admit", 4},
    Weighted{Verb::claim, "claim", 12},
    Weighted{Verb::gclaim, "gclaim", 12},
    Weighted{Verb::gwclaim, "gwclaim", 5},
    Weighted{Verb::gbclaim, "gbclaim", 3},
    Weighted{Verb::bclaim, "bclaim", 4},
    Weighted{Verb::complete, "complete", 10},
    Weighted{Verb::retry, "retry", 12},
    Weighted{Verb::delay, "delay", 5},
    Weighted{Verb::hand_back, "hand_back", 5},
    Weighted{Verb::extend_lock, "extend_lock", 3},
    Weighted{Verb::extend_locks, "extend_locks", 2},
    Weighted{Verb::crash, "crash", 2},
    Weighted{Verb::advance, "advance", 12},
    Weighted{Verb::promote, "promote", 7},
    Weighted{Verb::reap, "reap", 6},
    Weighted{Verb::sweep_stalled, "sweep_stalled", 6},
    Weighted{Verb::greap_group, "greap_group", 3},
    Weighted{Verb::gpause, "gpause", 2},
    Weighted{Verb::gresume, "gresume", 3},
    Weighted{Verb::glimit, "glimit", 4},
    Weighted{Verb::gweight, "gweight", 2},
    Weighted{Verb::greassign, "greassign", 4},
    Weighted{Verb::gdrain, "gdrain", 1},
    Weighted{Verb::queue_pause, "queue_pause", 1},
    Weighted{Verb::queue_resume, "queue_resume", 3},
    Weighted{Verb::remove_job, "remove_job", 4},
    Weighted{Verb::reprocess, "reprocess", 8},
    Weighted{Verb::update_data, "update_data", 1},
    Weighted{Verb::update_progress, "update_progress", 1},
    Weighted{Verb::add_log, "add_log", 2},
    Weighted{Verb::drain, "drain", 1},
    Weighted{Verb::obliterate, "obliterate", 1},
    Weighted{Verb::park, "park", 2},
    Weighted{Verb::unpark, "unpark", 1},
    Weighted{Verb::mark_lock, "mark_lock", 1},
    Weighted{Verb::ghost, "ghost", 2},
    Weighted{Verb::look, "look", 2},
    Weighted{Verb::enqueue_flow, "enqueue_flow", 8},
    Weighted{Verb::hold_parent, "hold_parent", 5},
    Weighted{Verb::enqueue_flow_child, "enqueue_flow_child", 10},
    Weighted{Verb::deliver, "deliver", 8},
    Weighted{Verb::deliver_again, "deliver_again", 3},
};

std::vector<Verb> drawn() {
  std::vector<Verb> verbs;
  for (const Weighted& entry : kVerbs)
    verbs.insert(verbs.end(), static_cast<std::size_t>(entry.weight), entry.verb);
  return verbs;
}

std::uint8_t byte(int value) { return static_cast<std::uint8_t>(value); }

}  // namespace

const char* name_of(Verb verb) {
  for (const Weighted& entry : kVerbs) {
    if (entry.verb == verb)
      return entry.name;
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const Command& c) {
  return out << name_of(c.verb) << "(queue " << int(c.queue) << ", job " << int(c.job) << ", group " << int(c.group)
             << ", holder " << int(c.holder) << ", aim " << int(c.aim) << ", token " << int(c.token) << ", amount "
             << int(c.amount) << ", flags " << int(c.flags) << ")";
}

void showValue(const Command& command, std::ostream& out) { out << command; }

rc::Gen<History> histories(int length) {
  static const std::vector<Verb> verbs = drawn();
  // One number holds the small choices: they shrink together, and drawing one is cheaper than drawing six.
  auto step = rc::gen::map(rc::gen::tuple(rc::gen::elementOf(verbs), rc::gen::inRange(0, 2 * 3 * 2 * 4 * 10 * 8),
                                          rc::gen::inRange(0, 24), rc::gen::inRange(0, 64)),
                           [](const std::tuple<Verb, int, int, int>& drawn) {
                             auto [verb, rest, job, amount] = drawn;
                             const auto take = [&rest](int choices) {
                               const int choice = rest % choices;
                               rest /= choices;
                               return byte(choice);
                             };
                             Command command;
                             command.verb = verb;
                             command.job = byte(job);
                             command.amount = byte(amount);
                             command.queue = take(2);
                             command.group = take(3);
                             command.holder = take(2);
                             command.aim = take(4);
                             command.token = take(10);
                             command.flags = take(8);
                             return command;
                           });
  return rc::gen::resize(length, rc::gen::container<History>(std::move(step)));
}

}  // namespace echomq::model
