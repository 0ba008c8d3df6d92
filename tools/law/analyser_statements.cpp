// The rounds over the syntax tree, and what each statement does to the variables.
#include "law/analyser.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace echomq::law {

Analyser::Analyser(const Source& source, const ScriptEntry* entry, const Registry& registry)
    : chunk_(parse_lua(source.text)), entry_(entry), registry_(registry), variables_(chunk_.variables.size()) {
  tables_[kKeysTable].elements = Value::text(std::string(1, kDeclared));
  tables_[kArgumentsTable].elements = Value::data();
}

Facts Analyser::run() {
  for (int round = 0; round < kMostRounds && (changed_ || round < 2); ++round) {
    changed_ = false;
    walk_all();
  }
  recording_ = true;
  walk_all();
  return std::move(facts_);
}

void Analyser::walk_all() {
  definitions_.clear();
  place_ = Place();
  walk(chunk_.body);
}

void Analyser::remark(int line, const char* rule, std::string text) {
  if (recording_)
    facts_.remarks.push_back({line, rule, std::move(text)});
}

void Analyser::walk(const Block& block) {
  for (const auto& statement : block) {
    place_.order = statement->serial;
    walk(*statement);
  }
}

void Analyser::walk_inside(const Block& block, std::size_t id, const Statement* loop) {
  place_.path.push_back(id);
  if (loop != nullptr)
    place_.loops.push_back(loop);
  walk(block);
  if (loop != nullptr)
    place_.loops.pop_back();
  place_.path.pop_back();
}

void Analyser::walk(const Statement& s) {
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
        for (std::size_t n = 0; n < (i + 1 == s.values.size() ? given.size() : std::min<std::size_t>(1, given.size()));
             ++n) {
          auto& list = returns_[place_.function];
          list.resize(std::max(list.size(), i + n + 1));
          changed_ |= list[i + n].add(given[n]);
        }
      }
      break;
    case leave: break;
  }
}

void Analyser::walk_list_loop(const Statement& s) {
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

void Analyser::walk_assignment(const Statement& s) {
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

void Analyser::define(int variable, const Value& value, Definition definition) {
  changed_ |= variables_[static_cast<std::size_t>(variable)].add(value);
  definitions_.emplace(variable, std::move(definition));
}

void Analyser::store(const Expression& target, const Value& stored, std::size_t statement) {
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

void Analyser::append(std::size_t id, std::size_t statement) {
  Table& table = tables_[id];
  double times = table.made.function == place_.function ? 1 : kUnbounded;
  for (std::size_t depth = 0; depth < place_.loops.size() && times < kUnbounded; ++depth) {
    if (depth >= table.made.loops.size() || table.made.loops[depth] != place_.loops[depth])
      times *= trips(*place_.loops[depth]);
  }
  table.appended[statement] = times;
}

}  // namespace echomq::law
