#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Reads a text from left to right; blanks between tokens mean nothing. Errors are invalid_argument
/// and name the text, the character, and the token that is needed there.
///
/// Thread-compatible. Valid as long as the text.
class Scanner {
 public:
  Scanner(std::string_view what, std::string_view text) : what_(what), text_(text) {}

  /// True if the token comes next; skips it if so. A word must match as a whole.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  bool at_end();
  void expect_end();

  /// True if the token comes next, without skipping it.
  bool peek(std::string_view token);

  /// A number from 0 to 2^63 - 1.
  std::int64_t number();
  bool peek_number();

  /// Letters, digits, '_' and '.'; at least one.
  std::string_view word();

  /// The text between two ' or two ".
  std::string_view quoted();
  bool peek_quote();

  /// Numbers between commas, up to `close`, which is skipped.
  std::vector<std::int64_t> numbers(std::string_view close);

  /// Throws an error saying that `needed` is needed here.
  [[noreturn]] void fail(const std::string& needed);

 private:
  void skip_blanks();

  std::string_view what_, text_;
  std::size_t at_ = 0;
};

}  // namespace shardwise::detail
