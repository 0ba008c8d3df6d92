// Walks the syntax tree until nothing new is learnt about any variable, then once more to note the facts.
#include "law/analysis.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "law/commands.hpp"
#include "law/lua.hpp"

namespace echomq::law {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr double kMostArguments = 1000;
constexpr std::size_t kMostTexts = 200;
constexpr std::size_t kLongestText = 300;
constexpr int kMostRounds = 30;
constexpr std::size_t kUnpacked = 20;
constexpr std::size_t kKeysTable = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kArgumentsTable = kKeysTable - 1;

/// Everything that an expression may be.
struct Value {
  std::set<std::string> texts;
  bool number = false;
  bool other = false;  ///< nil or a boolean
  std::set<std::size_t> tables;
  std::set<const Function*> functions;
  std::set<std::string> builtins;

  [[nodiscard]] static Value text(std::string text) {
    Value value;
    value.texts.insert(std::move(text));
    return value;
  }
  [[nodiscard]] static Value data() { return text(std::string(1, kData)); }
  [[nodiscard]] static Value a_number() {
    Value value;
    value.number = true;
    return value;
  }
  [[nodiscard]] static Value nothing() {
    Value value;
    value.other = true;
    return value;
  }
  [[nodiscard]] static Value table(std::size_t id) {
    Value value;
    value.tables.insert(id);
    return value;
  }

  /// True when something was new.
  bool add(const Value& more) {
    const auto size = [this] { return texts.size() + tables.size() + functions.size() + builtins.size(); };
    const std::size_t before = size();
    const bool changed = (more.number && !number) || (more.other && !other);
    texts.insert(more.texts.begin(), more.texts.end());
    if (texts.size() > kMostTexts)
      texts = {std::string(1, kData)};
    tables.insert(more.tables.begin(), more.tables.end());
    functions.insert(more.functions.begin(), more.functions.end());
    builtins.insert(more.builtins.begin(), more.builtins.end());
    number |= more.number;
    other |= more.other;
    return changed || size() != before;
  }
};

struct Place {
  std::vector<std::size_t> path;  ///< enclosing blocks
  std::vector<const Statement*> loops;
  const Function* function = nullptr;
  std::size_t order = 0;
};

struct Table {
  Value elements;
  std::map<std::string, Value> named;
  Place made;
  double start = 0;                        ///< elements it is made with
  std::map<std::size_t, double> appended;  ///< by statement
};

struct Definition {
  const Expression* value = nullptr;  ///< null: one of several results
  const Statement* loop = nullptr;    ///< the counting loop whose variable it is
  Place place;
};

[[nodiscard]] bool is_option(std::string_view text) {
  static const std::set<std::string_view> option_words = {
      "WITHSCORES", "WITHVALUES", "LIMIT", "XX",     "NX",   "CH",   "GT",  "LT",      "MAXLEN",
      "LEFT",       "RIGHT",      "COUNT", "FIELDS", "PX",   "EX",   "REV", "BYSCORE", "BYLEX",
      "KEEPTTL",    "-inf",       "+inf",  "MINID",  "EXAT", "PXAT", "GET", "TIME",    "*"};
  return option_words.contains(text) || find_command(text) != nullptr;
}

[[nodiscard]] std::string joined(const std::string& a, const std::string& b) {
  std::string whole = a + b;
  const std::string twice(2, kData);
  for (std::size_t at = whole.find(twice); at != std::string::npos; at = whole.find(twice))
    whole.erase(at, 1);
  return whole.size() > kLongestText ? std::string(1, kData) : whole;
}

[[nodiscard]] bool has_gap(std::string_view text) {
  return text.find(kData) != std::string_view::npos || text.find(kDeclared) != std::string_view::npos;
}

class Analyser {
 public:
  Analyser(const Source& source, const ScriptEntry* entry, const Registry& registry)
      : chunk_(parse_lua(source.text)), entry_(entry), registry_(registry), variables_(chunk_.variables.size()) {
    tables_[kKeysTable].elements = Value::text(std::string(1, kDeclared));
    tables_[kArgumentsTable].elements = Value::data();
  }

  [[nodiscard]] Facts run() {
    for (int round = 0; round < kMostRounds && (changed_ || round < 2); ++round) {
      changed_ = false;
      walk_all();
    }
    recording_ = true;
    walk_all();
    return std::move(facts_);
  }

 private:
  using Kind = Expression::Kind;

  void walk_all() {
    definitions_.clear();
    place_ = Place();
    walk(chunk_.body);
  }
  void remark(int line, const char* rule, std::string text) {
    if (recording_)
      facts_.remarks.push_back({line, rule, std::move(text)});
  }

  // ---- statements ----

  void walk(const Block& block) {
    for (const auto& statement : block) {
      place_.order = statement->serial;
      walk(*statement);
    }
  }
  void walk_inside(const Block& block, std::size_t id, const Statement* loop) {
    place_.path.push_back(id);
    if (loop != nullptr)
      place_.loops.push_back(loop);
    walk(block);
    if (loop != nullptr)
      place_.loops.pop_back();
    place_.path.pop_back();
  }

  void walk(const Statement& s) {
    using enum Statement::Kind;
    switch (s.kind) {
      case local:
      case assign: walk_assignment(s); break;
      case call: (void)results(*s.values[0]); break;
      case block: walk_inside(s.blocks[0], s.serial * 8, nullptr); break;
      case branch:
        for (const auto& condition : s.values)
          (void)value(*condition);
        for (std::size_t i = 0; i < s.blocks.size(); ++i)
          walk_inside(s.blocks[i], s.serial * 8 + std::min<std::size_t>(i, 7), nullptr);
        break;
      case loop_while:
        (void)value(*s.values[0]);
        check_loop(s);
        walk_inside(s.blocks[0], s.serial * 8, &s);
        break;
      case loop_repeat:
        walk_inside(s.blocks[0], s.serial * 8, &s);
        (void)value(*s.values[0]);
        check_loop(s);
        break;
      case loop_numbers:
        for (const auto& bound : s.values)
          (void)value(*bound);
        define(s.variables[0], Value::a_number(), {nullptr, &s, place_});
        walk_inside(s.blocks[0], s.serial * 8, &s);
        break;
      case loop_list: walk_list_loop(s); break;
      case give:
        for (std::size_t i = 0; i < s.values.size(); ++i) {
          const std::vector<Value> given = results(*s.values[i]);
          for (std::size_t n = 0;
               n < (i + 1 == s.values.size() ? given.size() : std::min<std::size_t>(1, given.size())); ++n) {
            auto& list = returns_[place_.function];
            list.resize(std::max(list.size(), i + n + 1));
            changed_ |= list[i + n].add(given[n]);
          }
        }
        break;
      case leave: break;
    }
  }

  void walk_list_loop(const Statement& s) {
    Value elements = Value::data();
    Value keys = Value::data();
    const Expression& iterator = *s.values[0];
    if (iterator.kind == Kind::call && iterator.parts.size() > 1) {
      const Value callee = value(*iterator.parts[0]);
      const Value list = value(*iterator.parts[1]);
      const bool in_order = callee.builtins.contains("ipairs");
      if (in_order || callee.builtins.contains("pairs")) {
        note_whole(list);
        elements = element_of(list);
        keys = in_order ? Value::a_number() : Value::data();
        for (const std::size_t id : list.tables) {
          for (const auto& [name, unused] : tables_[id].named)
            keys.texts.insert(name);
        }
      }
    } else {
      (void)value(iterator);
    }
    define(s.variables[0], keys, {nullptr, nullptr, place_});
    for (std::size_t i = 1; i < s.variables.size(); ++i)
      define(s.variables[i], elements, {nullptr, nullptr, place_});
    walk_inside(s.blocks[0], s.serial * 8, &s);
  }

  void walk_assignment(const Statement& s) {
    const std::size_t targets = s.kind == Statement::Kind::local ? s.variables.size() : s.targets.size();
    std::vector<Value> values;
    std::vector<const Expression*> sources;
    for (std::size_t i = 0; i < s.values.size(); ++i) {
      std::vector<Value> given = results(*s.values[i]);
      if (given.empty())
        given.push_back(Value::nothing());
      const std::size_t count = i + 1 == s.values.size() ? given.size() : 1;
      for (std::size_t n = 0; n < count; ++n) {
        values.push_back(std::move(given[n]));
        sources.push_back(n == 0 ? s.values[i].get() : nullptr);
      }
    }
    values.resize(std::max(values.size(), targets), Value::nothing());
    sources.resize(values.size());
    for (std::size_t i = 0; i < targets; ++i) {
      if (s.kind == Statement::Kind::local) {
        define(s.variables[i], values[i], {sources[i], nullptr, place_});
        continue;
      }
      const Expression& target = *s.targets[i];
      if (target.kind == Kind::name && target.variable != kGlobal) {
        define(target.variable, values[i], {sources[i], nullptr, place_});
      } else if (target.kind == Kind::index) {
        store(target, values[i], s.serial);
      }
    }
  }

  void define(int variable, const Value& value, Definition definition) {
    changed_ |= variables_[static_cast<std::size_t>(variable)].add(value);
    definitions_.emplace(variable, std::move(definition));
  }

  void store(const Expression& target, const Value& stored, std::size_t statement) {
    const Value object = value(*target.parts[0]);
    const Value key = value(*target.parts[1]);
    for (const std::size_t id : object.tables) {
      Table& table = tables_[id];
      if (target.parts[1]->kind == Kind::text) {
        changed_ |= table.named[target.parts[1]->text].add(stored);
      } else {
        changed_ |= table.elements.add(stored);
      }
      append(id, statement);
    }
  }

  void append(std::size_t id, std::size_t statement) {
    Table& table = tables_[id];
    double times = table.made.function == place_.function ? 1 : kUnbounded;
    for (std::size_t depth = 0; depth < place_.loops.size() && times < kUnbounded; ++depth) {
      if (depth >= table.made.loops.size() || table.made.loops[depth] != place_.loops[depth])
        times *= trips(*place_.loops[depth]);
    }
    table.appended[statement] = times;
  }

  // ---- how many ----

  [[nodiscard]] static bool is_sum_with(const Expression& e, int variable, double& more) {
    if (e.kind != Kind::binary || e.text != "+" || e.parts[1]->kind != Kind::number)
      return false;
    more = e.parts[1]->number;
    return variable != kGlobal && e.parts[0]->kind == Kind::name && e.parts[0]->variable == variable;
  }
  [[nodiscard]] static bool is_minimum(const Expression& e) {
    return e.kind == Kind::call && e.parts[0]->kind == Kind::index && e.parts[0]->parts[1]->text == "min" &&
           e.parts[0]->parts[0]->text == "math";
  }
  /// `math.min(x + C, ...)` for the variable x, written there or bound to a name: C + 1.
  [[nodiscard]] double window(const Expression& from, const Expression& to) const {
    if (from.kind != Kind::name)
      return kUnbounded;
    const Expression* end = &to;
    if (end->kind == Kind::name && definitions_.count(end->variable) == 1)
      end = definitions_.find(end->variable)->second.value;
    if (end == nullptr || !is_minimum(*end))
      return kUnbounded;
    for (std::size_t i = 1; i < end->parts.size(); ++i) {
      double more = 0;
      if (is_sum_with(*end->parts[i], from.variable, more))
        return more + 1;
    }
    return kUnbounded;
  }

  [[nodiscard]] double trips(const Statement& loop) {
    if (loop.kind == Statement::Kind::loop_list) {
      const Expression& iterator = *loop.values[0];
      if (iterator.kind != Kind::call || iterator.parts.size() < 2)
        return kUnbounded;
      return size_of(value_quietly(*iterator.parts[1]));
    }
    if (loop.kind != Statement::Kind::loop_numbers)
      return kUnbounded;
    const Expression& from = *loop.values[0];
    double step = 1;
    if (loop.values.size() > 2 && loop.values[2]->kind == Kind::number)
      step = std::max(1.0, std::abs(loop.values[2]->number));
    if (const double width = window(from, *loop.values[1]); width < kUnbounded)
      return std::ceil(width / step);
    const double start = from.kind == Kind::number ? from.number : 1;
    return std::max(0.0, std::floor((upper(*loop.values[1]) - start) / step) + 1);
  }

  [[nodiscard]] double size_of(const Value& value) {
    double most = value.tables.empty() ? kUnbounded : 0;
    for (const std::size_t id : value.tables) {
      if (id == kKeysTable || id == kArgumentsTable)
        return kUnbounded;
      const Table& table = tables_[id];
      double size = table.start;
      for (const auto& [statement, times] : table.appended)
        size += times;
      most = std::max(most, size);
    }
    return most;
  }

  /// The largest number that the expression can be.
  [[nodiscard]] double upper(const Expression& e, int depth = 0) {
    if (depth > 12)
      return kUnbounded;
    switch (e.kind) {
      case Kind::number: return e.number;
      case Kind::name: return upper_of_name(e, depth);
      case Kind::unary: return e.text == "#" ? size_of(value_quietly(*e.parts[0])) : kUnbounded;
      case Kind::binary: {
        if (e.text == "or" || e.text == "and") {
          const double right = upper(*e.parts[1], depth + 1);
          return e.text == "and" ? right : std::max(upper(*e.parts[0], depth + 1), right);
        }
        const double left = upper(*e.parts[0], depth + 1);
        if (e.text == "-")  // what is taken away is not negative, in all that scripts count
          return e.parts[1]->kind == Kind::number ? left - e.parts[1]->number : left;
        const double right = upper(*e.parts[1], depth + 1);
        if (e.text == "+")
          return left + right;
        if (e.text == "*")
          return left * right;
        if (e.text == "/" && e.parts[1]->kind == Kind::number && e.parts[1]->number > 0)
          return left / e.parts[1]->number;
        return kUnbounded;
      }
      case Kind::call: {
        const Expression& callee = *e.parts[0];
        if (is_minimum(e)) {
          double least = kUnbounded;
          for (std::size_t i = 1; i < e.parts.size(); ++i)
            least = std::min(least, upper(*e.parts[i], depth + 1));
          return least;
        }
        if (callee.kind == Kind::index && callee.parts[0]->text == "math" && e.parts.size() == 2 &&
            (callee.parts[1]->text == "floor" || callee.parts[1]->text == "ceil"))
          return std::ceil(upper(*e.parts[1], depth + 1));
        if (callee.kind == Kind::index && callee.parts[0]->text == "math" && callee.parts[1]->text == "max") {
          double most = 0;
          for (std::size_t i = 1; i < e.parts.size(); ++i)
            most = std::max(most, upper(*e.parts[i], depth + 1));
          return most;
        }
        return kUnbounded;
      }
      default: return kUnbounded;
    }
  }

  [[nodiscard]] double upper_of_name(const Expression& e, int depth) {
    const auto [begin, end] = definitions_.equal_range(e.variable);
    if (e.variable == kGlobal || begin == end)
      return kUnbounded;
    // An assignment in an enclosing block, before this place, makes earlier ones void.
    std::size_t since = 0;
    for (auto it = begin; it != end; ++it) {
      const Place& at = it->second.place;
      const bool encloses =
          at.path.size() <= place_.path.size() && std::equal(at.path.begin(), at.path.end(), place_.path.begin());
      if (encloses && at.order < place_.order)
        since = std::max(since, at.order);
    }
    double most = 0;
    for (auto it = begin; it != end; ++it) {
      if (it->second.place.order < since)
        continue;
      if (it->second.loop != nullptr) {
        most = std::max(most, upper(*it->second.loop->values[1], depth + 1));
      } else {
        most = it->second.value == nullptr ? kUnbounded : std::max(most, upper(*it->second.value, depth + 1));
      }
    }
    return most;
  }

  // ---- loops ----

  void operands(const Expression& e, std::string_view sign, std::vector<const Expression*>& out) const {
    if (e.kind == Kind::binary && e.text == sign) {
      operands(*e.parts[0], sign, out);
      operands(*e.parts[1], sign, out);
    } else {
      out.push_back(&e);
    }
  }
  [[nodiscard]] bool counts(const Block& block, int variable) const {
    return std::any_of(block.begin(), block.end(), [&](const auto& s) {
      for (std::size_t i = 0; i < s->targets.size() && i < s->values.size(); ++i) {
        const Expression& v = *s->values[i];
        if (s->targets[i]->kind == Kind::name && s->targets[i]->variable == variable && v.kind == Kind::binary &&
            (v.text == "-" || v.text == "+") && v.parts[0]->kind == Kind::name && v.parts[0]->variable == variable)
          return true;
      }
      return std::any_of(s->blocks.begin(), s->blocks.end(), [&](const Block& b) { return counts(b, variable); });
    });
  }
  /// A loop ends when one part of its condition is a count that its body moves.
  void check_loop(const Statement& s) {
    std::vector<const Expression*> parts;
    operands(*s.values[0], s.kind == Statement::Kind::loop_while ? "and" : "or", parts);
    for (const Expression* part : parts) {
      if (part->kind != Kind::binary || (part->text[0] != '<' && part->text[0] != '>'))
        continue;
      for (const auto& side : part->parts) {
        if (side->kind == Kind::name && side->variable != kGlobal && counts(s.blocks[0], side->variable))
          return;
      }
    }
    remark(s.line, "loop", "nothing bounds this loop: its condition needs a count that its body moves");
  }

  // ---- expressions ----

  [[nodiscard]] Value value(const Expression& e) {
    std::vector<Value> all = results(e);
    return all.empty() ? Value::nothing() : std::move(all[0]);
  }
  /// Looks without noting facts.
  [[nodiscard]] Value value_quietly(const Expression& e) {
    const bool recording = std::exchange(recording_, false);
    Value found = value(e);
    recording_ = recording;
    return found;
  }

  [[nodiscard]] std::vector<Value> results(const Expression& e) {
    if (e.kind == Kind::call)
      return call(e);
    return {single(e)};
  }

  [[nodiscard]] Value single(const Expression& e) {
    switch (e.kind) {
      case Kind::number: return Value::a_number();
      case Kind::text:
        if (recording_ && !e.text.starts_with("EMQ") && !e.text.starts_with("ERR ") && !is_option(e.text))
          facts_.literals.insert(e.text);
        return Value::text(e.text);
      case Kind::nil:
      case Kind::boolean: return Value::nothing();
      case Kind::vararg: return Value::data();
      case Kind::function: return function(e);
      case Kind::name: return name(e);
      case Kind::index: return index(e);
      case Kind::method:
        for (const auto& part : e.parts)
          (void)value(*part);
        return Value::data();
      case Kind::table: return table(e);
      case Kind::unary: {
        const Value operand = value(*e.parts[0]);
        if (e.text == "#")
          note_whole(operand);
        return e.text == "not" ? Value::nothing() : Value::a_number();
      }
      case Kind::binary: return binary(e);
      case Kind::call: break;
    }
    return Value::data();
  }

  [[nodiscard]] Value function(const Expression& e) {
    const Place outside = place_;
    place_.function = e.function.get();
    walk_inside(e.function->body, e.function->serial * 8, nullptr);
    place_ = outside;
    Value made;
    made.functions.insert(e.function.get());
    return made;
  }

  [[nodiscard]] Value name(const Expression& e) {
    if (e.variable != kGlobal)
      return variables_[static_cast<std::size_t>(e.variable)];
    if (e.text == "KEYS")
      return Value::table(kKeysTable);
    if (e.text == "ARGV")
      return Value::table(kArgumentsTable);
    Value global;
    global.builtins.insert(e.text);
    return global;
  }

  [[nodiscard]] std::string key_pattern(int number) const {
    if (entry_ == nullptr || number < 1 || static_cast<std::size_t>(number) > entry_->keys.size())
      return std::string(1, kDeclared);
    const std::string& type = entry_->keys[static_cast<std::size_t>(number) - 1];
    if (type == "base")
      return "emq:{q}:";
    const KeyEntry* key = registry_.key(type);
    return key == nullptr ? std::string(1, kDeclared) : key->pattern;
  }
  [[nodiscard]] std::string argument_pattern(int number) const {
    if (entry_ != nullptr && number >= 1 && static_cast<std::size_t>(number) <= entry_->arguments.size()) {
      const std::string& name = entry_->arguments[static_cast<std::size_t>(number) - 1].name;
      if (name == "base")
        return "emq:{q}:";
      if (name == "row_prefix")
        return "emq:{q}:job:";
    }
    return std::string(1, kData);
  }

  void note_whole(const Value& list) {
    if (!recording_)
      return;
    facts_.keys_by_number |= list.tables.contains(kKeysTable);
    facts_.arguments_by_number |= list.tables.contains(kArgumentsTable);
  }

  [[nodiscard]] Value element_of(const Value& list) {
    Value elements;
    for (const std::size_t id : list.tables) {
      const Table& table = tables_[id];
      elements.add(table.elements);
      for (const auto& [unused, one] : table.named)
        elements.add(one);
      if (id == kKeysTable && entry_ != nullptr && entry_->more_keys.empty()) {
        elements = Value();
        for (std::size_t i = 1; i <= entry_->keys.size(); ++i)
          elements.texts.insert(key_pattern(static_cast<int>(i)));
      }
    }
    if (!list.texts.empty() || list.tables.empty())
      elements.add(Value::data());
    return elements;
  }

  [[nodiscard]] Value index(const Expression& e) {
    const Value object = value(*e.parts[0]);
    const Expression& key = *e.parts[1];
    if (!object.builtins.empty() && key.kind == Kind::text) {
      Value member;
      for (const std::string& one : object.builtins)
        member.builtins.insert(one + "." + key.text);
      return member;
    }
    const bool fixed = key.kind == Kind::number;
    if (!fixed && key.kind != Kind::text)
      (void)value(key);
    Value found;
    for (const std::size_t id : object.tables) {
      const bool keys = id == kKeysTable;
      if (keys || id == kArgumentsTable) {
        if (fixed) {
          const int number = static_cast<int>(key.number);
          if (recording_)
            (keys ? facts_.keys : facts_.arguments).insert(number);
          found.add(Value::text(keys ? key_pattern(number) : argument_pattern(number)));
        } else {
          note_whole(Value::table(id));
          found.add(element_of(Value::table(id)));
        }
      } else if (key.kind == Kind::text) {
        const auto named = tables_[id].named.find(key.text);
        found.add(named == tables_[id].named.end() ? tables_[id].elements : named->second);
      } else {
        found.add(element_of(Value::table(id)));
      }
    }
    if (!object.texts.empty())
      found.add(Value::data());
    return found;
  }

  [[nodiscard]] Value table(const Expression& e) {
    Table& made = tables_[e.serial];
    made.made = place_;
    made.start = static_cast<double>(e.parts.size());
    for (std::size_t i = 0; i < e.parts.size(); ++i) {
      const std::vector<Value> given = results(*e.parts[i]);
      if (e.keys[i] != nullptr && e.keys[i]->kind == Kind::text) {
        changed_ |= tables_[e.serial].named[e.keys[i]->text].add(given.empty() ? Value::nothing() : given[0]);
        continue;
      }
      if (e.keys[i] != nullptr)
        (void)value(*e.keys[i]);
      for (const Value& one : given)
        changed_ |= tables_[e.serial].elements.add(one);
    }
    return Value::table(e.serial);
  }

  [[nodiscard]] std::set<std::string> as_texts(const Expression& e, const Value& v) const {
    if (e.kind == Kind::number)
      return {std::to_string(static_cast<long>(e.number))};
    std::set<std::string> texts = v.texts;
    if (v.number || texts.empty())
      texts.insert(std::string(1, kData));
    return texts;
  }

  [[nodiscard]] Value binary(const Expression& e) {
    const Value left = value(*e.parts[0]);
    const Value right = value(*e.parts[1]);
    if (e.text == "..") {
      Value whole;
      for (const std::string& a : as_texts(*e.parts[0], left)) {
        for (const std::string& b : as_texts(*e.parts[1], right))
          whole.texts.insert(joined(a, b));
      }
      return whole;
    }
    if (e.text == "or") {
      Value either = left;
      either.add(right);
      return either;
    }
    if (e.text == "and") {
      Value second = right;
      second.other = true;
      return second;
    }
    if (e.text[0] == '<' || e.text[0] == '>') {
      for (const Value* side : {&left, &right}) {
        if (!side->texts.empty() || !side->tables.empty()) {
          remark(e.line, "compare", "`" + e.text + "` on what may be a text: ids are compared as bytes (string.byte)");
          break;
        }
      }
    }
    if (e.text == "==" || e.text == "~=" || e.text[0] == '<' || e.text[0] == '>')
      return Value::nothing();
    return Value::a_number();
  }

  // ---- calls ----

  [[nodiscard]] std::vector<Value> call(const Expression& e) {
    const Value callee = value(*e.parts[0]);
    std::vector<Value> out;
    const auto merge = [&](const std::vector<Value>& more) {
      out.resize(std::max(out.size(), more.size()));
      for (std::size_t i = 0; i < more.size(); ++i)
        out[i].add(more[i]);
    };
    for (const Function* function : callee.functions) {
      for (std::size_t i = 1; i < e.parts.size(); ++i) {
        const Value argument = value(*e.parts[i]);
        if (i <= function->parameters.size())
          define(function->parameters[i - 1], argument, {nullptr, nullptr, place_});
      }
      merge(returns_[function]);
    }
    for (const std::string& name : callee.builtins)
      merge(builtin(e, name));
    if (callee.functions.empty() && callee.builtins.empty()) {
      for (std::size_t i = 1; i < e.parts.size(); ++i)
        (void)value(*e.parts[i]);
      out.push_back(Value::data());
    }
    return out;
  }

  [[nodiscard]] std::vector<Value> builtin(const Expression& e, const std::string& name) {
    if (name == "redis.call" || name == "redis.pcall" || name == "server.call" || name == "server.pcall")
      return {command(e)};
    if (name == "unpack" || name == "table.unpack")
      return unpacked(e);
    std::vector<Value> arguments;
    for (std::size_t i = 1; i < e.parts.size(); ++i) {
      for (Value& one : results(*e.parts[i]))
        arguments.push_back(std::move(one));
    }
    if (name == "redis.error_reply" || name == "server.error_reply") {
      if (recording_ && !arguments.empty()) {
        for (const std::string& text : arguments[0].texts)
          facts_.refusals.emplace(text, e.line);
      }
      return {Value::nothing()};
    }
    if (name == "string.sub")
      return {part_of(e, arguments)};
    if (name == "string.format")
      return {formatted(e)};
    if (name == "tostring" && !arguments.empty()) {
      Value text = arguments[0];
      if (text.number || text.texts.empty())
        text.texts.insert(std::string(1, kData));
      text.number = text.other = false;
      return {text};
    }
    if (name == "tonumber" || name == "string.byte" || name == "string.len") {
      Value number = Value::a_number();
      number.other = true;
      return {number, number, number, number, number, number, number, number};
    }
    if (name.starts_with("math."))
      return {Value::a_number()};
    if (name == "table.insert" && arguments.size() >= 2) {
      for (const std::size_t id : arguments[0].tables) {
        changed_ |= tables_[id].elements.add(arguments.back());
        append(id, e.serial);
      }
      return {};
    }
    if (name == "next" && !arguments.empty())
      return {Value::data(), element_of(arguments[0])};
    return {Value::data(), Value::data(), Value::data()};
  }

  [[nodiscard]] std::vector<Value> unpacked(const Expression& e) {
    if (e.parts.size() < 2)
      return {};
    const Value list = value(*e.parts[1]);
    for (std::size_t i = 2; i < e.parts.size(); ++i)
      (void)value(*e.parts[i]);
    note_whole(list);
    std::vector<Value> out;
    for (std::size_t i = 0; i < kUnpacked; ++i) {
      Value one;
      const int number = static_cast<int>(i) + 1;
      if (e.parts.size() == 2 && list.tables.contains(kKeysTable)) {
        one = Value::text(key_pattern(number));
      } else if (e.parts.size() == 2 && list.tables.contains(kArgumentsTable)) {
        one = Value::text(argument_pattern(number));
      } else {
        one = element_of(list);
      }
      out.push_back(std::move(one));
    }
    return out;
  }

  [[nodiscard]] static Value part_of(const Expression& e, const std::vector<Value>& arguments) {
    const bool fixed = e.parts.size() >= 3 && e.parts[2]->kind == Kind::number &&
                       (e.parts.size() == 3 || e.parts[3]->kind == Kind::number);
    if (!fixed || arguments.empty())
      return Value::data();
    const long from = static_cast<long>(e.parts[2]->number);
    const long to = e.parts.size() > 3 ? static_cast<long>(e.parts[3]->number) : -1;
    Value out;
    for (const std::string& text : arguments[0].texts) {
      std::string part(1, kData);
      if (from == 1 && to < 0) {
        const auto cut = static_cast<std::size_t>(-to - 1);
        if (cut <= text.size() && !has_gap(std::string_view(text).substr(text.size() - cut)))
          part = text.substr(0, text.size() - cut);
      }
      out.texts.insert(part);
    }
    if (arguments[0].texts.empty())
      out.texts.insert(std::string(1, kData));
    return out;
  }

  [[nodiscard]] Value formatted(const Expression& e) {
    if (e.parts.size() < 2 || e.parts[1]->kind != Kind::text)
      return Value::data();
    Value out = Value::text("");
    const std::string& format = e.parts[1]->text;
    std::size_t argument = 2;
    for (std::size_t i = 0; i < format.size(); ++i) {
      std::set<std::string> more = {std::string(1, format[i])};
      if (format[i] == '%' && i + 1 < format.size()) {
        ++i;
        if (format[i] != '%') {
          more = {std::string(1, kData)};
          if (argument < e.parts.size()) {
            const Expression& part = *e.parts[argument++];
            const Value v = value(part);
            if (format[i] == 's')
              more = as_texts(part, v);
          }
        }
      }
      Value longer;
      for (const std::string& a : out.texts) {
        for (const std::string& b : more)
          longer.texts.insert(joined(a, b));
      }
      out = longer;
    }
    return out;
  }

  // ---- commands ----

  struct Argument {
    const Expression* expression;
    Value value;
    bool spread = false;  ///< one of those that an unpack gives
  };

  [[nodiscard]] Value command(const Expression& e) {
    if (e.parts.size() < 2)
      return Value::data();
    std::vector<Argument> arguments;
    for (std::size_t i = 1; i < e.parts.size(); ++i) {
      const Expression& part = *e.parts[i];
      const bool spread = part.kind == Kind::call && part.parts[0]->kind == Kind::name &&
                          part.parts[0]->variable == kGlobal && part.parts[0]->text == "unpack";
      if (spread && part.parts.size() > 1) {
        check_spread(part);
        const Value list = value(*part.parts[1]);
        for (std::size_t n = 2; n < part.parts.size(); ++n)
          (void)value(*part.parts[n]);
        note_whole(list);
        arguments.push_back({&part, element_of(list), true});
      } else {
        arguments.push_back({&part, value(part)});
      }
    }
    Value reply;
    for (const std::string& name : arguments[0].value.texts) {
      const Command* command = find_command(name);
      if (command == nullptr) {
        remark(e.line, "command",
               has_gap(name) ? "the command is not written in the script" : name + " is no command that scripts use");
        reply.add(Value::data());
        continue;
      }
      touch(e, *command, arguments);
      reply.add(reply_of(e, *command, arguments));
    }
    if (arguments[0].value.texts.empty() && recording_)
      remark(e.line, "command", "the command is not written in the script");
    return reply;
  }

  void check_spread(const Expression& unpack) {
    double most = 0;
    if (unpack.parts.size() == 4) {
      most = window(*unpack.parts[2], *unpack.parts[3]);
      if (most == kUnbounded && unpack.parts[2]->kind == Kind::number)
        most = upper(*unpack.parts[3]) - unpack.parts[2]->number + 1;
    } else {
      most = size_of(value_quietly(*unpack.parts[1]));
    }
    if (most > kMostArguments)
      remark(unpack.line, "variadic", "may hand over more than 1000 arguments at once");
  }

  void touch(const Expression& e, const Command& command, const std::vector<Argument>& arguments) {
    if (!recording_)
      return;
    if (command.name == "TIME")
      ++facts_.clock_reads;
    facts_.writes |= command.writes && !command.name.ends_with("PUBLISH");
    if (command.first == 0)
      return;
    std::set<std::string> fields;
    if (command.field != 0) {
      for (std::size_t i = static_cast<std::size_t>(command.field); i < arguments.size(); ++i) {
        if (arguments[i].spread) {
          // Fields and values are mixed there: what is named like a field of the row is taken for one.
          for (const RowField& one : registry_.fields) {
            if (arguments[i].value.texts.contains(one.name))
              fields.insert(one.name);
          }
          break;
        }
        fields.insert(arguments[i].value.texts.begin(), arguments[i].value.texts.end());
        if (command.field_step == 0)
          break;
        i += static_cast<std::size_t>(command.field_step) - 1;
      }
    }
    const std::size_t last = command.last == -1 ? arguments.size() - 1 : static_cast<std::size_t>(command.last);
    for (auto i = static_cast<std::size_t>(command.first); i <= last && i < arguments.size(); ++i) {
      std::set<std::string> patterns = arguments[i].value.texts;
      if (patterns.empty())
        patterns.insert(std::string(1, kData));
      for (const std::string& pattern : patterns) {
        facts_.touches.push_back({e.line, std::string(command.name), pattern, command.writes, fields});
        if (const std::string why = whole_read(command, arguments, pattern); !why.empty())
          remark(e.line, "read", why);
      }
    }
  }

  [[nodiscard]] bool has_option(const std::vector<Argument>& arguments, std::string_view option) const {
    return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& one) {
      return one.expression->kind == Kind::text && one.expression->text == option;
    });
  }
  /// A number, or the text of one; nothing (a gap) otherwise.
  [[nodiscard]] static double constant(const Expression& e) {
    if (e.kind == Kind::number)
      return e.number;
    if (e.kind == Kind::text && !e.text.empty() && e.text.find_first_not_of("-0123456789") == std::string::npos)
      return std::strtod(e.text.c_str(), nullptr);
    return kUnbounded;
  }

  /// Why this reads or clears a whole key of any size; empty when it does not.
  [[nodiscard]] std::string whole_read(const Command& command, const std::vector<Argument>& arguments,
                                       const std::string& pattern) const {
    static const std::set<std::string_view> whole_commands = {"HGETALL", "HKEYS", "HVALS", "SMEMBERS"};
    static const std::set<std::string_view> index_commands = {"ZRANGE", "ZREVRANGE", "LRANGE", "ZREMRANGEBYRANK"};
    static const std::set<std::string_view> score_commands = {"ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANGEBYLEX",
                                                              "ZREMRANGEBYSCORE", "ZREMRANGEBYLEX"};
    bool whole = whole_commands.contains(command.name);
    if (index_commands.contains(command.name) && arguments.size() > 3 && !has_option(arguments, "LIMIT"))
      whole = constant(*arguments[3].expression) < 0 && !(constant(*arguments[2].expression) < 0);
    if (score_commands.contains(command.name))
      whole = !has_option(arguments, "LIMIT");
    if (command.name == "XRANGE" || command.name == "XREVRANGE")
      whole = !has_option(arguments, "COUNT");
    if (!whole)
      return {};
    for (const std::string& type : registry_.types_of(pattern)) {
      const KeyEntry* key = registry_.key(type);
      if (key != nullptr && (key->at_most > 0 || key->type == "job" || key->type == "repeat:record"))
        return {};
    }
    return std::string(command.name) + " takes all of a key that has no bound";
  }

  [[nodiscard]] Value reply_of(const Expression& e, const Command& command, const std::vector<Argument>& arguments) {
    if (command.integer) {
      Value number = Value::a_number();
      number.other = true;
      return number;
    }
    Value reply = Value::data();
    reply.other = true;
    static const std::set<std::string_view> text_commands = {"GET",    "HGET", "ZSCORE", "TYPE",
                                                             "LINDEX", "SET",  "LMOVE",  "RPOPLPUSH"};
    if (text_commands.contains(command.name))
      return reply;
    Table& table = tables_[e.serial];
    table.elements = Value::data();
    table.made = place_;
    table.start = reply_size(command, arguments);
    reply = Value::table(e.serial);
    // One member without a count, many with one.
    if (command.name == "LPOP" || command.name == "RPOP" || command.name == "SPOP" || command.name == "SRANDMEMBER" ||
        command.name == "HRANDFIELD")
      reply.add(Value::data());
    return reply;
  }

  [[nodiscard]] double reply_size(const Command& command, const std::vector<Argument>& arguments) {
    const double pairs = has_option(arguments, "WITHSCORES") || command.name.starts_with("ZPOP") ? 2 : 1;
    if (command.name == "TIME")
      return 2;
    if (command.name == "HMGET" || command.name == "ZMSCORE" || command.name == "MGET" ||
        command.name == "SMISMEMBER") {
      double size = static_cast<double>(arguments.size());
      for (const Argument& one : arguments) {
        if (one.spread)
          size += size_of(value_quietly(*one.expression->parts[1]));
      }
      return size;
    }
    for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
      const Expression& option = *arguments[i].expression;
      if (option.kind != Kind::text)
        continue;
      if (option.text == "LIMIT" && i + 2 < arguments.size())
        return pairs * upper(*arguments[i + 2].expression);
      if (option.text == "COUNT")
        return pairs * upper(*arguments[i + 1].expression);
    }
    if ((command.name == "ZRANGE" || command.name == "LRANGE" || command.name == "ZREVRANGE") && arguments.size() > 3) {
      const double last = constant(*arguments[3].expression);
      if (last < 0)
        return kUnbounded;
      return pairs * (upper(*arguments[3].expression) + 1);
    }
    if (arguments.size() > 2)
      return pairs * upper(*arguments[2].expression);
    return command.name == "HGETALL" || command.name == "SMEMBERS" || command.name == "HKEYS" || command.name == "HVALS"
               ? kUnbounded
               : pairs;
  }

  Chunk chunk_;
  const ScriptEntry* entry_;
  const Registry& registry_;
  std::vector<Value> variables_;
  std::map<std::size_t, Table> tables_;
  std::map<const Function*, std::vector<Value>> returns_;
  std::multimap<int, Definition> definitions_;
  Place place_;
  bool changed_ = true;
  bool recording_ = false;
  Facts facts_;
};

}  // namespace

std::set<std::string> types_touched(const Touch& touch, const ScriptEntry* entry, const Registry& registry) {
  if (touch.pattern != std::string(1, kDeclared))
    return registry.types_of(touch.pattern);
  std::set<std::string> types;
  std::string word;
  for (const char c : (entry == nullptr ? std::string() : entry->more_keys) + " ") {
    if (c != ' ' && c != '(' && c != ')' && c != '|' && c != ',') {
      word += c;
    } else {
      if (registry.key(word) != nullptr)
        types.insert(word);
      word.clear();
    }
  }
  return types;
}

Facts analyse(const Source& source, const ScriptEntry* entry, const Registry& registry) {
  return Analyser(source, entry, registry).run();
}

}  // namespace echomq::law
