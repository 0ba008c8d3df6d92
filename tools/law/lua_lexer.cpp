// Cuts Lua into words; comments and white space go.
#include "law/lua_lexer.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "law/lua.hpp"

namespace echomq::law {
namespace {

constexpr std::array<std::string_view, 21> kKeywords = {
    "and",   "break", "do",  "else", "elseif", "end",    "false", "for",  "function", "if",   "in",
    "local", "nil",   "not", "or",   "repeat", "return", "then",  "true", "until",    "while"};
constexpr std::array<std::string_view, 6> kLongSigns = {"...", "..", "==", "~=", "<=", ">="};

[[nodiscard]] bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
[[nodiscard]] bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  [[nodiscard]] std::vector<Word> run() {
    if (source_.starts_with('#'))
      at_ = std::min(source_.find('\n'), source_.size());
    std::vector<Word> words;
    do {
      words.push_back(next());
    } while (words.back().kind != Word::Kind::end);
    return words;
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  char take() {
    if (source_[at_] == '\n')
      ++line_;
    return source_[at_++];
  }
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError(line_, what); }

  void pass_over() {
    while (at_ < source_.size()) {
      if (std::isspace(static_cast<unsigned char>(peek())) != 0) {
        take();
      } else if (source_.substr(at_).starts_with("--")) {
        at_ += 2;
        if (peek() == '[' && (peek(1) == '[' || peek(1) == '=')) {
          (void)long_text();
        } else {
          at_ = std::min(source_.find('\n', at_), source_.size());
        }
      } else {
        return;
      }
    }
  }

  [[nodiscard]] std::string long_text() {
    const std::size_t open = source_.find('[', at_ + 1);
    const std::string close = "]" + std::string(source_.substr(at_ + 1, open - at_ - 1)) + "]";
    const std::size_t end = open == std::string_view::npos ? open : source_.find(close, open);
    if (end == std::string_view::npos)
      fail("a long text is not ended");
    std::string text(source_.substr(open + 1, end - open - 1));
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    at_ = end + close.size();
    if (text.starts_with('\n'))
      text.erase(0, 1);
    return text;
  }

  [[nodiscard]] char escape() {
    const char c = take();
    if (is_digit(c)) {
      int code = c - '0';
      for (int i = 0; i < 2 && is_digit(peek()); ++i)
        code = code * 10 + (take() - '0');
      return static_cast<char>(code);
    }
    switch (c) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'a': return '\a';
      case 'b': return '\b';
      case 'f': return '\f';
      case 'v': return '\v';
      default: return c;
    }
  }

  [[nodiscard]] std::string quoted(char quote) {
    std::string text;
    while (peek() != quote) {
      if (at_ >= source_.size() || peek() == '\n')
        fail("a text is not ended");
      const char c = take();
      text += c == '\\' ? escape() : c;
    }
    ++at_;
    return text;
  }

  [[nodiscard]] Word next() {
    pass_over();
    Word word;
    word.line = line_;
    if (at_ >= source_.size())
      return word;
    const char c = peek();
    if (is_letter(c)) {
      while (is_letter(peek()) || is_digit(peek()))
        word.text += take();
      const bool keyword = std::find(kKeywords.begin(), kKeywords.end(), word.text) != kKeywords.end();
      word.kind = keyword ? Word::Kind::keyword : Word::Kind::name;
    } else if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      word.kind = Word::Kind::number;
      const std::string digits(source_.substr(at_, 64));
      char* end = nullptr;
      word.number = std::strtod(digits.c_str(), &end);
      word.text = digits.substr(0, static_cast<std::size_t>(end - digits.c_str()));
      at_ += word.text.size();
    } else if (c == '"' || c == '\'') {
      ++at_;
      word.kind = Word::Kind::text;
      word.text = quoted(c);
    } else if (c == '[' && (peek(1) == '[' || peek(1) == '=')) {
      word.kind = Word::Kind::text;
      word.text = long_text();
    } else {
      word.kind = Word::Kind::sign;
      for (const std::string_view sign : kLongSigns) {
        if (source_.substr(at_).starts_with(sign)) {
          word.text = sign;
          break;
        }
      }
      if (word.text.empty())
        word.text = std::string(1, c);
      at_ += word.text.size();
    }
    return word;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Word> words_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace echomq::law
