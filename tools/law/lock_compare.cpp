// What changed between two locks, and for whom.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "law/lock.hpp"

namespace echomq::law {
namespace {

[[nodiscard]] std::set<std::string> values(const Item& item, const std::string& attribute) {
  std::set<std::string> out;
  const auto [begin, end] = item.equal_range(attribute);
  for (auto it = begin; it != end; ++it)
    out.insert(it->second);
  return out;
}
[[nodiscard]] std::string value(const Item& item, const std::string& attribute) {
  const auto found = item.find(attribute);
  return found == item.end() ? std::string() : found->second;
}
[[nodiscard]] std::string named(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& one : names)
    text += (text.empty() ? "" : ", ") + one;
  return text.empty() ? "nobody" : text;
}
[[nodiscard]] std::set<std::string> without(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(out, out.end()));
  return out;
}
/// All that touch it, in A or B.
[[nodiscard]] std::string touching(const Item& item) {
  std::set<std::string> all = values(item, "writer");
  all.merge(values(item, "reader"));
  return named(all);
}

class Comparison {
 public:
  Comparison(const Lock& a, const Lock& b) : a_(a), b_(b) {}

  [[nodiscard]] std::vector<Change> run() {
    std::set<std::pair<std::string, std::string>> ids;
    for (const Lock* lock : {&a_, &b_}) {
      for (const auto& [id, unused] : lock->items)
        ids.insert(id);
    }
    for (const auto& id : ids) {
      const auto old = a_.items.find(id);
      const auto now = b_.items.find(id);
      section_ = id.first;
      name_ = id.second;
      if (now == b_.items.end()) {
        gone(old->second);
      } else if (old == a_.items.end()) {
        appeared(now->second);
      } else if (section_ == "script") {
        script(old->second, now->second);
      } else {
        other(old->second, now->second);
      }
    }
    // Not stable_sort: what libstdc++ 12 makes it from is deprecated, and clang says so.
    std::vector<Change> sorted;
    for (const bool breaking : {true, false}) {
      for (Change& change : changes_) {
        if (change.breaking == breaking)
          sorted.push_back(std::move(change));
      }
    }
    return sorted;
  }

 private:
  void add(bool breaking, const std::string& what, std::string who) {
    changes_.push_back({breaking, section_ + " " + name_ + ": " + what, std::move(who)});
  }

  void gone(const Item& old) {
    if (section_ == "key") {
      return add(true, "gone (" + value(old, "name") + ")",
                 "what " + named(values(old, "writer")) + " of A write there nobody of B reads; " +
                     named(values(old, "reader")) + " of A find nothing of B's");
    }
    if (section_ == "field")
      return add(true, "gone", touching(old) + " of A use it and nobody of B writes it");
    if (section_ == "refusal")
      return add(true, "gone", "hosts of A that look for this text get another from " + named(values(old, "script")));
    add(true, "gone", "hosts of A that call it find no such script in B");
  }

  void appeared(const Item& now) {
    if (section_ == "key") {
      return add(false, "new (" + value(now, "name") + ")",
                 "peers of A do not see what " + named(values(now, "writer")) + " of B write there");
    }
    if (section_ == "field")
      return add(false, "new", "peers of A keep it and do not read it; written by " + named(values(now, "writer")));
    if (section_ == "refusal")
      return add(false, "new", "hosts of A pass it on untyped; made by " + named(values(now, "script")));
    add(false, "new", "peers of A have no such script and need none");
  }

  [[nodiscard]] static std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> out;
    for (std::string word; in >> word;)
      out.push_back(word);
    return out;
  }

  void script(const Item& old, const Item& now) {
    for (const char* attribute : {"keys", "more_keys"}) {
      if (value(old, attribute) != value(now, attribute)) {
        add(true, std::string("KEYS were `") + value(old, attribute) + "`, are `" + value(now, attribute) + "`",
            "hosts of A give B's script the wrong keys");
      }
    }
    if (value(old, "argv") != value(now, "argv")) {
      const std::vector<std::string> before = words(value(old, "argv"));
      const std::vector<std::string> after = words(value(now, "argv"));
      const bool longer = after.size() > before.size() && std::equal(before.begin(), before.end(), after.begin()) &&
                          std::all_of(after.begin() + static_cast<std::ptrdiff_t>(before.size()), after.end(),
                                      [](const std::string& one) { return one.starts_with('['); });
      add(!longer, "ARGV was `" + value(old, "argv") + "`, is `" + value(now, "argv") + "`",
          longer ? "hosts of A call it as before; hosts of B are not understood by A's script where they use more"
                 : "hosts of A give B's script the wrong arguments");
    }
    for (const std::string& one : without(values(old, "reply"), values(now, "reply")))
      add(true, "no longer replies `" + one + "`", "hosts of A wait for it");
    for (const std::string& one : without(values(now, "reply"), values(old, "reply")))
      add(true, "now replies `" + one + "`", "hosts of A do not know it");
    for (const std::string& one : without(values(old, "refusal"), values(now, "refusal")))
      add(true, "no longer refuses with `" + one + "`", "hosts of A look for that text");
    for (const std::string& one : without(values(now, "refusal"), values(old, "refusal")))
      add(false, "now refuses with `" + one + "`", "hosts of A pass it on untyped");
    for (const std::string& one : without(values(old, "literal"), values(now, "literal"))) {
      std::set<std::string> users = users_of(b_, one);
      add(true, "no longer has the literal " + one,
          users.empty() ? "peers of A that look for it no longer find it"
                        : named(users) + " of B, and peers of A, still use it");
    }
    for (const std::string& one : without(values(now, "literal"), values(old, "literal"))) {
      const std::set<std::string> users = users_of(a_, one);
      add(false, "has the literal " + one,
          users.empty() ? "no script of A knows it: it must not be what they read" : named(users) + " of A know it");
    }
    if (value(old, "at_maxmemory") != value(now, "at_maxmemory")) {
      add(value(now, "at_maxmemory") == "refused", "at maxmemory it now is `" + value(now, "at_maxmemory") + "`",
          "hosts of A expect `" + value(old, "at_maxmemory") + "`");
    }
    if (value(old, "clock") != value(now, "clock"))
      add(false, "reads the clock: " + value(now, "clock"), "nobody");
    if (value(old, "origin") != value(now, "origin")) {
      add(true, "was " + value(old, "origin") + ", is " + value(now, "origin"),
          "peers that have canonical scripts alone");
    }
  }
  [[nodiscard]] static std::set<std::string> users_of(const Lock& lock, const std::string& literal) {
    std::set<std::string> users;
    for (const auto& [id, item] : lock.items) {
      if (id.first == "script" && values(item, "literal").contains(literal))
        users.insert(id.second);
    }
    return users;
  }

  void other(const Item& old, const Item& now) {
    std::set<std::string> attributes;
    for (const Item* item : {&old, &now}) {
      for (const auto& [attribute, unused] : *item)
        attributes.insert(attribute);
    }
    for (const std::string& attribute : attributes) {
      const std::set<std::string> before = values(old, attribute);
      const std::set<std::string> after = values(now, attribute);
      if (before == after)
        continue;
      if (attribute == "writer" || attribute == "reader" || attribute == "script") {
        members(attribute, old, before, after);
      } else if (section_ == "wire") {
        add(true, "was " + named(before) + ", is " + named(after),
            "the fence compares for equality: no peer of A may stay beside one of B");
      } else if (attribute == "extension") {
        add(false, after.empty() ? "is no extension any more" : "is an extension now", "nobody");
      } else {
        add(true, attribute + " was `" + named(before) + "`, is `" + named(after) + "`",
            touching(old) + " of A no longer understand what " + touching(now) +
                " of B write, and the other way round");
      }
    }
  }
  void members(const std::string& role, const Item& old, const std::set<std::string>& before,
               const std::set<std::string>& after) {
    const std::string does = role == "writer" ? "writes" : role == "reader" ? "reads" : "makes";
    for (const std::string& one : without(before, after)) {
      const bool breaking = role != "reader";
      add(breaking, one + " no longer " + does + " it",
          role == "writer"   ? named(values(old, "reader")) + " count on it"
          : role == "reader" ? "nobody"
                             : "hosts of A look for it");
    }
    for (const std::string& one : without(after, before))
      add(false, one + " now " + does + " it", "peers of A do not");
  }

  const Lock& a_;
  const Lock& b_;
  std::string section_;
  std::string name_;
  std::vector<Change> changes_;
};

}  // namespace

std::string Change::to_string() const { return (breaking ? "BREAKING " : "additive ") + what + "; " + who; }

std::vector<Change> compare(const Lock& a, const Lock& b) { return Comparison(a, b).run(); }

}  // namespace echomq::law
