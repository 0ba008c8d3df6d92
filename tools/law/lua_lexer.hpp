// Lua's words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace echomq::law {

struct Word {
  enum class Kind { name, keyword, number, text, sign, end };
  Kind kind = Kind::end;
  std::string text;  ///< of a text: its bytes, escapes resolved
  double number = 0;
  int line = 0;
};

/// Throws SyntaxError. The last word is of kind `end`.
[[nodiscard]] std::vector<Word> words_of(std::string_view source);

}  // namespace echomq::law
