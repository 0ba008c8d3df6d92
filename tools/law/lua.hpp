// A reader of Lua 5.1 as scripts use it: text in, syntax tree out, every name bound to its declaration. Nothing is run.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace echomq::law {

struct Function;
struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// What a name stands for when it is declared nowhere: a global.
inline constexpr int kGlobal = -1;

struct Expression {
  enum class Kind { nil, boolean, number, text, vararg, function, name, index, call, method, table, binary, unary };
  Kind kind = Kind::nil;
  int line = 0;
  std::string text;        ///< of a text; a name, an operator, a method's name
  double number = 0;       ///< of a number
  int variable = kGlobal;  ///< of a name
  std::size_t serial = 0;  ///< unique in the script
  /// Operands; of a call the callee and its arguments; of an index the object and the key; of a table the values.
  std::vector<ExpressionPtr> parts;
  std::vector<ExpressionPtr> keys;  ///< of a table, beside its values; null: the next position
  std::unique_ptr<Function> function;
};

struct Function {
  std::vector<int> parameters;
  Block body;
  std::size_t serial = 0;
};

struct Statement {
  enum class Kind { local, assign, call, block, loop_while, loop_repeat, branch, loop_numbers, loop_list, give, leave };
  Kind kind = Kind::block;
  int line = 0;
  std::vector<int> variables;          ///< declared here: by `local`, by a loop
  std::vector<ExpressionPtr> targets;  ///< of an assignment
  /// Values of a declaration or assignment, conditions of a branch, bounds of a loop, what is returned, the call.
  std::vector<ExpressionPtr> values;
  std::vector<Block> blocks;  ///< bodies; of a branch one more than conditions when it has an `else`
  std::size_t serial = 0;
};

struct Variable {
  std::string name;
  int line = 0;
};

struct Chunk {
  Block body;
  std::vector<Variable> variables;
  std::size_t serials = 0;
};

struct SyntaxError : std::runtime_error {
  SyntaxError(int at, const std::string& what) : std::runtime_error(what), line(at) {}
  int line;
};

/// Throws SyntaxError. A first line that begins with `#` is passed over.
[[nodiscard]] Chunk parse_lua(std::string_view source);

}  // namespace echomq::law
