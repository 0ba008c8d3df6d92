// The parser: recursive descent, operators by precedence.
#include "law/lua.hpp"

#include <map>
#include <utility>

#include "law/lua_lexer.hpp"

namespace echomq::law {
namespace {

/// How strongly an operator binds to the left and to the right; nothing for what is no operator.
struct Binding {
  int left = 0;
  int right = 0;
};

const std::map<std::string, Binding, std::less<>> kBindings = {
    {"or", {1, 1}}, {"and", {2, 2}}, {"<", {3, 3}},  {">", {3, 3}},  {"<=", {3, 3}},
    {">=", {3, 3}}, {"~=", {3, 3}},  {"==", {3, 3}}, {"..", {5, 4}}, {"+", {6, 6}},
    {"-", {6, 6}},  {"*", {7, 7}},   {"/", {7, 7}},  {"%", {7, 7}},  {"^", {10, 9}}};
constexpr int kUnary = 8;

class Parser {
 public:
  explicit Parser(std::string_view source) : words_(words_of(source)) {}

  [[nodiscard]] Chunk run() {
    scopes_.emplace_back();
    chunk_.body = block();
    if (word().kind != Word::Kind::end)
      fail("unexpected " + word().text);
    chunk_.serials = serial_;
    return std::move(chunk_);
  }

 private:
  using Kind = Expression::Kind;

  [[nodiscard]] const Word& word(std::size_t ahead = 0) const {
    return words_[std::min(at_ + ahead, words_.size() - 1)];
  }
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError(word().line, what); }
  [[nodiscard]] bool is(std::string_view text) const {
    return (word().kind == Word::Kind::sign || word().kind == Word::Kind::keyword) && word().text == text;
  }
  bool accept(std::string_view text) {
    if (!is(text))
      return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text))
      fail("expected " + std::string(text) + " at " + (word().text.empty() ? "the end" : word().text));
  }
  [[nodiscard]] std::string name() {
    if (word().kind != Word::Kind::name)
      fail("expected a name");
    return words_[at_++].text;
  }

  int declare(const std::string& name) {
    const int variable = static_cast<int>(chunk_.variables.size());
    chunk_.variables.push_back({name, word().line});
    scopes_.back()[name] = variable;
    return variable;
  }
  [[nodiscard]] int find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end())
        return found->second;
    }
    return kGlobal;
  }

  [[nodiscard]] ExpressionPtr make(Kind kind) {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = word().line;
    expression->serial = serial_++;
    return expression;
  }
  [[nodiscard]] std::unique_ptr<Statement> make(Statement::Kind kind) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = word().line;
    statement->serial = serial_++;
    return statement;
  }

  [[nodiscard]] Block block() {
    scopes_.emplace_back();
    Block body = open_block();
    scopes_.pop_back();
    return body;
  }
  /// A block whose scope the caller has opened, and closes.
  [[nodiscard]] Block open_block() {
    Block body;
    while (word().kind != Word::Kind::end && !is("end") && !is("else") && !is("elseif") && !is("until")) {
      const bool last = is("return");
      body.push_back(statement());
      accept(";");
      if (last)
        break;
    }
    return body;
  }

  [[nodiscard]] std::unique_ptr<Statement> statement() {
    if (accept("do")) {
      auto made = make(Statement::Kind::block);
      made->blocks.push_back(block());
      expect("end");
      return made;
    }
    if (accept("while")) {
      auto made = make(Statement::Kind::loop_while);
      made->values.push_back(expression());
      expect("do");
      made->blocks.push_back(block());
      expect("end");
      return made;
    }
    if (accept("repeat")) {
      auto made = make(Statement::Kind::loop_repeat);
      scopes_.emplace_back();  // the condition sees the body's names
      made->blocks.push_back(open_block());
      expect("until");
      made->values.push_back(expression());
      scopes_.pop_back();
      return made;
    }
    if (accept("if"))
      return branch();
    if (accept("for"))
      return loop();
    if (accept("local"))
      return declaration();
    if (accept("function")) {
      auto made = make(Statement::Kind::assign);
      made->targets.push_back(named());
      while (accept("."))
        made->targets.back() = member(std::move(made->targets.back()));
      made->values.push_back(function_body());
      return made;
    }
    if (accept("return")) {
      auto made = make(Statement::Kind::give);
      if (word().kind != Word::Kind::end && !is("end") && !is("else") && !is("elseif") && !is("until") && !is(";"))
        made->values = expressions();
      return made;
    }
    if (accept("break"))
      return make(Statement::Kind::leave);

    ExpressionPtr first = suffixed();
    if (is("=") || is(",")) {
      auto made = make(Statement::Kind::assign);
      made->line = first->line;
      made->targets.push_back(std::move(first));
      while (accept(","))
        made->targets.push_back(suffixed());
      expect("=");
      made->values = expressions();
      return made;
    }
    if (first->kind != Kind::call && first->kind != Kind::method)
      fail("a statement that does nothing");
    auto made = make(Statement::Kind::call);
    made->line = first->line;
    made->values.push_back(std::move(first));
    return made;
  }

  [[nodiscard]] std::unique_ptr<Statement> branch() {
    auto made = make(Statement::Kind::branch);
    do {
      made->values.push_back(expression());
      expect("then");
      made->blocks.push_back(block());
    } while (accept("elseif"));
    if (accept("else"))
      made->blocks.push_back(block());
    expect("end");
    return made;
  }

  [[nodiscard]] std::unique_ptr<Statement> loop() {
    auto made = make(Statement::Kind::loop_list);
    std::vector<std::string> names = {name()};
    if (accept("=")) {
      made->kind = Statement::Kind::loop_numbers;
    } else {
      while (accept(","))
        names.push_back(name());
      expect("in");
    }
    made->values = expressions();
    expect("do");
    scopes_.emplace_back();
    for (const std::string& one : names)
      made->variables.push_back(declare(one));
    made->blocks.push_back(block());
    scopes_.pop_back();
    expect("end");
    return made;
  }

  [[nodiscard]] std::unique_ptr<Statement> declaration() {
    auto made = make(Statement::Kind::local);
    if (accept("function")) {
      made->variables.push_back(declare(name()));
      made->values.push_back(function_body());
      return made;
    }
    std::vector<std::string> names = {name()};
    while (accept(","))
      names.push_back(name());
    if (accept("="))
      made->values = expressions();
    for (const std::string& one : names)
      made->variables.push_back(declare(one));
    return made;
  }

  [[nodiscard]] ExpressionPtr function_body() {
    ExpressionPtr made = make(Kind::function);
    made->function = std::make_unique<Function>();
    made->function->serial = serial_++;
    expect("(");
    scopes_.emplace_back();
    while (!accept(")")) {
      if (!accept("..."))
        made->function->parameters.push_back(declare(name()));
      accept(",");
    }
    made->function->body = block();
    scopes_.pop_back();
    expect("end");
    return made;
  }

  [[nodiscard]] std::vector<ExpressionPtr> expressions() {
    std::vector<ExpressionPtr> list;
    do {
      list.push_back(expression());
    } while (accept(","));
    return list;
  }

  [[nodiscard]] ExpressionPtr expression(int limit = 0) {
    ExpressionPtr left;
    if (is("not") || is("-") || is("#")) {
      left = make(Kind::unary);
      left->text = words_[at_++].text;
      left->parts.push_back(expression(kUnary));
      const Expression& operand = *left->parts[0];
      if (left->text == "-" && operand.kind == Kind::number) {
        ExpressionPtr negative = make(Kind::number);
        negative->line = left->line;
        negative->number = -operand.number;
        left = std::move(negative);
      }
    } else {
      left = simple();
    }
    while (word().kind == Word::Kind::sign || word().kind == Word::Kind::keyword) {
      const auto binding = kBindings.find(word().text);
      if (binding == kBindings.end() || binding->second.left <= limit)
        break;
      ExpressionPtr whole = make(Kind::binary);
      whole->text = words_[at_++].text;
      whole->parts.push_back(std::move(left));
      whole->parts.push_back(expression(binding->second.right));
      left = std::move(whole);
    }
    return left;
  }

  [[nodiscard]] ExpressionPtr simple() {
    if (word().kind == Word::Kind::number || word().kind == Word::Kind::text) {
      ExpressionPtr made = make(word().kind == Word::Kind::number ? Kind::number : Kind::text);
      made->text = word().text;
      made->number = word().number;
      ++at_;
      return made;
    }
    if (is("nil") || is("true") || is("false")) {
      ExpressionPtr made = make(is("nil") ? Kind::nil : Kind::boolean);
      made->text = words_[at_++].text;
      return made;
    }
    if (accept("..."))
      return make(Kind::vararg);
    if (accept("function"))
      return function_body();
    if (is("{"))
      return table();
    return suffixed();
  }

  [[nodiscard]] ExpressionPtr table() {
    ExpressionPtr made = make(Kind::table);
    expect("{");
    while (!accept("}")) {
      ExpressionPtr key;
      if (accept("[")) {
        key = expression();
        expect("]");
        expect("=");
      } else if (word().kind == Word::Kind::name && word(1).kind == Word::Kind::sign && word(1).text == "=") {
        key = make(Kind::text);
        key->text = name();
        expect("=");
      }
      made->keys.push_back(std::move(key));
      made->parts.push_back(expression());
      if (!accept(","))
        accept(";");
    }
    return made;
  }

  [[nodiscard]] ExpressionPtr named() {
    ExpressionPtr made = make(Kind::name);
    made->text = name();
    made->variable = find(made->text);
    return made;
  }
  /// `object.name`, the dot already read.
  [[nodiscard]] ExpressionPtr member(ExpressionPtr object) {
    ExpressionPtr made = make(Kind::index);
    ExpressionPtr key = make(Kind::text);
    key->text = name();
    made->parts.push_back(std::move(object));
    made->parts.push_back(std::move(key));
    return made;
  }

  [[nodiscard]] ExpressionPtr suffixed() {
    ExpressionPtr made;
    if (accept("(")) {
      made = expression();
      expect(")");
    } else {
      made = named();
    }
    for (;;) {
      if (accept(".")) {
        made = member(std::move(made));
      } else if (accept("[")) {
        ExpressionPtr index = make(Kind::index);
        index->parts.push_back(std::move(made));
        index->parts.push_back(expression());
        expect("]");
        made = std::move(index);
      } else if (accept(":")) {
        ExpressionPtr call = make(Kind::method);
        call->text = name();
        call->parts.push_back(std::move(made));
        arguments(*call);
        made = std::move(call);
      } else if (is("(") || is("{") || word().kind == Word::Kind::text) {
        ExpressionPtr call = make(Kind::call);
        call->line = made->line;
        call->parts.push_back(std::move(made));
        arguments(*call);
        made = std::move(call);
      } else {
        return made;
      }
    }
  }
  void arguments(Expression& call) {
    if (is("{") || word().kind == Word::Kind::text) {
      call.parts.push_back(simple());
      return;
    }
    expect("(");
    if (accept(")"))
      return;
    for (ExpressionPtr& one : expressions())
      call.parts.push_back(std::move(one));
    expect(")");
  }

  std::vector<Word> words_;
  std::size_t at_ = 0;
  std::size_t serial_ = 0;
  Chunk chunk_;
  std::vector<std::map<std::string, int>> scopes_;
};

}  // namespace

Chunk parse_lua(std::string_view source) { return Parser(source).run(); }

}  // namespace echomq::law
