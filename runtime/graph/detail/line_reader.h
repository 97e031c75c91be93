#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// Quotes a text. Quotes, backslashes and control characters are escaped: \", \\, \x0a.
std::string quoted(std::string_view text);

/// The same without the quotes; blanks at both ends are escaped.
std::string escaped(std::string_view text);

/// Undoes quoted() and escaped(), without the quotes. Throws invalid_argument for an invalid
/// escape.
std::string unescaped(std::string_view text);

/// Reads one line of text from left to right, skipping blanks. Throws invalid_argument naming the
/// found and the needed text. Thread-compatible; the text must outlive it.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  /// The unread text, from its first character other than a blank.
  std::string_view rest();
  bool is_done() { return rest().empty(); }

  /// True if the text comes next; skips it if so.
  bool take(std::string_view text);
  void need(std::string_view text);

  /// Up to the next blank; empty at the end.
  std::string_view word();

  /// Up to the first of these characters, which comes next then; the whole rest if none occurs.
  std::string_view before(std::string_view characters);

  /// Reads the output of quoted().
  std::string quoted_text();

  std::int64_t number(std::string_view needed = "a whole number");

  /// At least 0.
  std::int64_t count(std::string_view needed);

  /// Reads a list after its "[": `1, 2]`.
  Dims list();

  [[noreturn]] void fail(std::string_view needed);

 private:
  std::string_view rest_;
};

}  // namespace shardwise::detail
