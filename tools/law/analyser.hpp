// What may stand in each variable of a script, how often each loop runs and how large each list is: the walk behind
// `analyse`. Its parts: statements (analyser_statements.cpp), bounds (analyser_bounds.cpp), expressions
// (analyser_expressions.cpp), calls and commands (analyser_calls.cpp).
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "law/analysis.hpp"
#include "law/commands.hpp"
#include "law/lua.hpp"

namespace echomq::law {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();
inline constexpr double kMostArguments = 1000;
inline constexpr std::size_t kMostTexts = 200;
inline constexpr std::size_t kLongestText = 300;
inline constexpr int kMostRounds = 30;
inline constexpr std::size_t kUnpacked = 20;
inline constexpr std::size_t kKeysTable = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kArgumentsTable = kKeysTable - 1;

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
  bool add(const Value& more);
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

[[nodiscard]] bool is_option(std::string_view text);
[[nodiscard]] std::string joined(const std::string& a, const std::string& b);
[[nodiscard]] bool has_gap(std::string_view text);

class Analyser {
 public:
  Analyser(const Source& source, const ScriptEntry* entry, const Registry& registry);
  [[nodiscard]] Facts run();

 private:
  using Kind = Expression::Kind;
  void walk_all();
  void remark(int line, const char* rule, std::string text);

  // ---- statements ----
  void walk(const Block& block);
  void walk_inside(const Block& block, std::size_t id, const Statement* loop);
  void walk(const Statement& s);
  void walk_list_loop(const Statement& s);
  void walk_assignment(const Statement& s);
  void define(int variable, const Value& value, Definition definition);
  void store(const Expression& target, const Value& stored, std::size_t statement);
  void append(std::size_t id, std::size_t statement);

  // ---- how many ----
  [[nodiscard]] static bool is_sum_with(const Expression& e, int variable, double& more);
  [[nodiscard]] static bool is_minimum(const Expression& e);
  /// `math.min(x + C, ...)` for the variable x, written there or bound to a name: C + 1.
  [[nodiscard]] double window(const Expression& from, const Expression& to) const;
  [[nodiscard]] double trips(const Statement& loop);
  [[nodiscard]] double size_of(const Value& value);
  /// The largest number that the expression can be.
  [[nodiscard]] double upper(const Expression& e, int depth = 0);
  [[nodiscard]] double upper_of_name(const Expression& e, int depth);

  // ---- loops ----
  void operands(const Expression& e, std::string_view sign, std::vector<const Expression*>& out) const;
  [[nodiscard]] bool counts(const Block& block, int variable) const;
  /// A loop ends when one part of its condition is a count that its body moves.
  void check_loop(const Statement& s);

  // ---- expressions ----
  [[nodiscard]] Value value(const Expression& e);
  /// Looks without noting facts.
  [[nodiscard]] Value value_quietly(const Expression& e);
  [[nodiscard]] std::vector<Value> results(const Expression& e);
  [[nodiscard]] Value single(const Expression& e);
  [[nodiscard]] Value function(const Expression& e);
  [[nodiscard]] Value name(const Expression& e);
  [[nodiscard]] std::string key_pattern(int number) const;
  [[nodiscard]] std::string argument_pattern(int number) const;
  void note_whole(const Value& list);
  [[nodiscard]] Value element_of(const Value& list);
  [[nodiscard]] Value index(const Expression& e);
  [[nodiscard]] Value table(const Expression& e);
  [[nodiscard]] std::set<std::string> as_texts(const Expression& e, const Value& v) const;
  [[nodiscard]] Value binary(const Expression& e);

  // ---- calls ----
  [[nodiscard]] std::vector<Value> call(const Expression& e);
  [[nodiscard]] std::vector<Value> builtin(const Expression& e, const std::string& name);
  [[nodiscard]] std::vector<Value> unpacked(const Expression& e);
  [[nodiscard]] static Value part_of(const Expression& e, const std::vector<Value>& arguments);
  [[nodiscard]] Value formatted(const Expression& e);

  // ---- commands ----
  struct Argument {
    const Expression* expression;
    Value value;
    bool spread = false;  ///< one of those that an unpack gives
  };
  [[nodiscard]] Value command(const Expression& e);
  void check_spread(const Expression& unpack);
  void touch(const Expression& e, const Command& command, const std::vector<Argument>& arguments);
  [[nodiscard]] bool has_option(const std::vector<Argument>& arguments, std::string_view option) const;
  /// A number, or the text of one; nothing (a gap) otherwise.
  [[nodiscard]] static double constant(const Expression& e);
  /// Why this reads or clears a whole key of any size; empty when it does not.
  [[nodiscard]] std::string whole_read(const Command& command, const std::vector<Argument>& arguments,
                                       const std::string& pattern) const;
  [[nodiscard]] Value reply_of(const Expression& e, const Command& command, const std::vector<Argument>& arguments);
  [[nodiscard]] double reply_size(const Command& command, const std::vector<Argument>& arguments);

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

}  // namespace echomq::law
