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
    Weighted{Verb::genqueue, "genqueue", 16},
    Weighted{Verb::schedule, "schedule", 4},
    Weighted{Verb::admit, "admit", 4},
    Weighted{Verb::claim, "claim", 16},
    Weighted{Verb::gclaim, "gclaim", 14},
    Weighted{Verb::gwclaim, "gwclaim", 5},
    Weighted{Verb::gbclaim, "gbclaim", 3},
    Weighted{Verb::bclaim, "bclaim", 4},
    Weighted{Verb::complete, "complete", 12},
    Weighted{Verb::retry, "retry", 16},
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
    Weighted{Verb::glimit, "glimit", 8},
    Weighted{Verb::gweight, "gweight", 2},
    Weighted{Verb::greassign, "greassign", 4},
    Weighted{Verb::gdrain, "gdrain", 1},
    Weighted{Verb::queue_pause, "queue_pause", 1},
    Weighted{Verb::queue_resume, "queue_resume", 3},
    Weighted{Verb::remove_job, "remove_job", 4},
    Weighted{Verb::reprocess, "reprocess", 10},
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
    Weighted{Verb::repeat_register, "repeat_register", 3},
    Weighted{Verb::repeat_advance, "repeat_advance", 1},
    Weighted{Verb::repeat_cancel, "repeat_cancel", 1},
    Weighted{Verb::repeat_due, "repeat_due", 1},
    Weighted{Verb::repeat_fire, "repeat_fire", 4},
    Weighted{Verb::spoil_repeat, "spoil_repeat", 1},
    Weighted{Verb::set_concurrency, "set_concurrency", 1},
    Weighted{Verb::is_maxed, "is_maxed", 2},
    Weighted{Verb::lock_mark, "lock_mark", 2},
    Weighted{Verb::lock_beat, "lock_beat", 2},
    Weighted{Verb::lock_clear, "lock_clear", 1},
};

/// The verbs of one history. Each is left out, drawn as often as usual or more often, as bits of `mix` say: what hides in the
/// bustle of all verbs shows between few.
std::vector<Verb> drawn(std::uint64_t mix) {
  std::vector<Verb> verbs;
  for (const Weighted& entry : kVerbs) {
    mix = mix * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto share = static_cast<int>(mix >> 62);
    const bool needed = entry.verb == Verb::advance || entry.verb == Verb::enqueue || entry.verb == Verb::claim;
    const int times = share == 3 ? 3 : share == 0 && !needed ? 0 : 1;
    verbs.insert(verbs.end(), static_cast<std::size_t>(entry.weight * times), entry.verb);
  }
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
  // One number holds the small choices: they shrink together, and drawing one is cheaper than drawing six.
  const auto command = [](const std::tuple<Verb, int, int, int>& drawn) {
    auto [verb, rest, job, amount] = drawn;
    const auto take = [&rest](int choices) {
      const int choice = rest % choices;
      rest /= choices;
      return byte(choice);
    };
    Command made;
    made.verb = verb;
    made.job = byte(job);
    made.amount = byte(amount);
    made.queue = take(2);
    made.group = take(3);
    made.holder = take(2);
    made.aim = take(4);
    made.token = take(10);
    made.flags = take(8);
    return made;
  };
  const auto history = [command, length](std::uint64_t mix) {
    auto step = rc::gen::map(rc::gen::tuple(rc::gen::elementOf(drawn(mix)), rc::gen::inRange(0, 2 * 3 * 2 * 4 * 10 * 8),
                                            rc::gen::inRange(0, 24), rc::gen::inRange(0, 64)),
                             command);
    return rc::gen::resize(length, rc::gen::container<History>(std::move(step)));
  };
  return rc::gen::mapcat(rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>())),
                         history);
}

}  // namespace echomq::model
