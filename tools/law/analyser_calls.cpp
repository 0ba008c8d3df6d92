// Calls: functions of the script, of Lua, and commands with the keys that they touch.
#include "law/analyser.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace echomq::law {

std::vector<Value> Analyser::call(const Expression& e) {
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

std::vector<Value> Analyser::builtin(const Expression& e, const std::string& name) {
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

std::vector<Value> Analyser::unpacked(const Expression& e) {
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

Value Analyser::part_of(const Expression& e, const std::vector<Value>& arguments) {
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

Value Analyser::formatted(const Expression& e) {
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

Value Analyser::command(const Expression& e) {
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

void Analyser::check_spread(const Expression& unpack) {
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

void Analyser::touch(const Expression& e, const Command& command, const std::vector<Argument>& arguments) {
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

bool Analyser::has_option(const std::vector<Argument>& arguments, std::string_view option) const {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& one) {
    return one.expression->kind == Kind::text && one.expression->text == option;
  });
}

double Analyser::constant(const Expression& e) {
  if (e.kind == Kind::number)
    return e.number;
  if (e.kind == Kind::text && !e.text.empty() && e.text.find_first_not_of("-0123456789") == std::string::npos)
    return std::strtod(e.text.c_str(), nullptr);
  return kUnbounded;
}

std::string Analyser::whole_read(const Command& command, const std::vector<Argument>& arguments,
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

Value Analyser::reply_of(const Expression& e, const Command& command, const std::vector<Argument>& arguments) {
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

double Analyser::reply_size(const Command& command, const std::vector<Argument>& arguments) {
  const double pairs = has_option(arguments, "WITHSCORES") || command.name.starts_with("ZPOP") ? 2 : 1;
  if (command.name == "TIME")
    return 2;
  if (command.name == "HMGET" || command.name == "ZMSCORE" || command.name == "MGET" || command.name == "SMISMEMBER") {
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

}  // namespace echomq::law
