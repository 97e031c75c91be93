#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// What is wrong with a JSON text, and at which byte. Caught by those who know its file and line.
struct JsonFault {
  std::size_t at;
  std::string found;
};

/// Reads one JSON text from front to back (RFC 8259, strictly). Every method throws JsonFault where
/// something else stands there. Thread-compatible.
class JsonScanner {
 public:
  static constexpr int kMostDepth = 200;

  /// The text must outlive the scanner and what it returns.
  explicit JsonScanner(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }

  /// The next character that is no blank; '\0' at the end.
  char peek();

  /// Passes the character, if it is the next.
  bool accept(char c);
  void expect(char c);

  /// A string, unescaped; valid until the next call with this scratch.
  std::string_view string(std::string& scratch);

  /// A number, as it stands there.
  std::string_view number();

  /// true or false.
  bool truth();

  /// Any value.
  void skip_value();

  /// Nothing may follow.
  void end();

  [[noreturn]] void fail(std::string found) const;

 private:
  void skip_blanks();
  void word(std::string_view word);
  void skip_value(int depth);
  void append_escape(std::string& out);
  unsigned hex4();

  std::string_view text_;
  std::size_t at_ = 0;
};

/// A number's text without fraction and exponent.
bool is_json_integer(std::string_view number);

}  // namespace shardwise::detail
