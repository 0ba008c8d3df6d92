// What an expression may be.
#include "law/analyser.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace echomq::law {

bool Value::add(const Value& more) {
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

bool is_option(std::string_view text) {
  static const std::set<std::string_view> option_words = {
      "WITHSCORES", "WITHVALUES", "LIMIT", "XX",     "NX",   "CH",   "GT",  "LT",      "MAXLEN",
      "LEFT",       "RIGHT",      "COUNT", "FIELDS", "PX",   "EX",   "REV", "BYSCORE", "BYLEX",
      "KEEPTTL",    "-inf",       "+inf",  "MINID",  "EXAT", "PXAT", "GET", "TIME",    "*"};
  return option_words.contains(text) || find_command(text) != nullptr;
}

std::string joined(const std::string& a, const std::string& b) {
  std::string whole = a + b;
  const std::string twice(2, kData);
  for (std::size_t at = whole.find(twice); at != std::string::npos; at = whole.find(twice))
    whole.erase(at, 1);
  return whole.size() > kLongestText ? std::string(1, kData) : whole;
}

bool has_gap(std::string_view text) {
  return text.find(kData) != std::string_view::npos || text.find(kDeclared) != std::string_view::npos;
}

Value Analyser::value(const Expression& e) {
  std::vector<Value> all = results(e);
  return all.empty() ? Value::nothing() : std::move(all[0]);
}

Value Analyser::value_quietly(const Expression& e) {
  const bool recording = std::exchange(recording_, false);
  Value found = value(e);
  recording_ = recording;
  return found;
}

std::vector<Value> Analyser::results(const Expression& e) {
  if (e.kind == Kind::call)
    return call(e);
  return {single(e)};
}

Value Analyser::single(const Expression& e) {
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

Value Analyser::function(const Expression& e) {
  const Place outside = place_;
  place_.function = e.function.get();
  walk_inside(e.function->body, e.function->serial * 8, nullptr);
  place_ = outside;
  Value made;
  made.functions.insert(e.function.get());
  return made;
}

Value Analyser::name(const Expression& e) {
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

std::string Analyser::key_pattern(int number) const {
  if (entry_ == nullptr || number < 1 || static_cast<std::size_t>(number) > entry_->keys.size())
    return std::string(1, kDeclared);
  const std::string& type = entry_->keys[static_cast<std::size_t>(number) - 1];
  if (type == "base")
    return "emq:{q}:";
  const KeyEntry* key = registry_.key(type);
  return key == nullptr ? std::string(1, kDeclared) : key->pattern;
}

std::string Analyser::argument_pattern(int number) const {
  if (entry_ != nullptr && number >= 1 && static_cast<std::size_t>(number) <= entry_->arguments.size()) {
    const std::string& name = entry_->arguments[static_cast<std::size_t>(number) - 1].name;
    if (name == "base")
      return "emq:{q}:";
    if (name == "row_prefix")
      return "emq:{q}:job:";
  }
  return std::string(1, kData);
}

void Analyser::note_whole(const Value& list) {
  if (!recording_)
    return;
  facts_.keys_by_number |= list.tables.contains(kKeysTable);
  facts_.arguments_by_number |= list.tables.contains(kArgumentsTable);
}

Value Analyser::element_of(const Value& list) {
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

Value Analyser::index(const Expression& e) {
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

Value Analyser::table(const Expression& e) {
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

std::set<std::string> Analyser::as_texts(const Expression& e, const Value& v) const {
  if (e.kind == Kind::number)
    return {std::to_string(static_cast<long>(e.number))};
  std::set<std::string> texts = v.texts;
  if (v.number || texts.empty())
    texts.insert(std::string(1, kData));
  return texts;
}

Value Analyser::binary(const Expression& e) {
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

}  // namespace echomq::law
