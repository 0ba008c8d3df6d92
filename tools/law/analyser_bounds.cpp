// How large a number can be, how many elements a list has, how often a loop runs and that it ends.
#include "law/analyser.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace echomq::law {

bool Analyser::is_sum_with(const Expression& e, int variable, double& more) {
  if (e.kind != Kind::binary || e.text != "+" || e.parts[1]->kind != Kind::number)
    return false;
  more = e.parts[1]->number;
  return variable != kGlobal && e.parts[0]->kind == Kind::name && e.parts[0]->variable == variable;
}

bool Analyser::is_minimum(const Expression& e) {
  return e.kind == Kind::call && e.parts[0]->kind == Kind::index && e.parts[0]->parts[1]->text == "min" &&
         e.parts[0]->parts[0]->text == "math";
}

double Analyser::window(const Expression& from, const Expression& to) const {
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

double Analyser::trips(const Statement& loop) {
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

double Analyser::size_of(const Value& value) {
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

double Analyser::upper(const Expression& e, int depth) {
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

double Analyser::upper_of_name(const Expression& e, int depth) {
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

void Analyser::operands(const Expression& e, std::string_view sign, std::vector<const Expression*>& out) const {
  if (e.kind == Kind::binary && e.text == sign) {
    operands(*e.parts[0], sign, out);
    operands(*e.parts[1], sign, out);
  } else {
    out.push_back(&e);
  }
}

bool Analyser::counts(const Block& block, int variable) const {
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

void Analyser::check_loop(const Statement& s) {
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

}  // namespace echomq::law
