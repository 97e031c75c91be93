#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// In quotes. Quotes, backslashes and control characters are escaped: \", \\, \x0a.
std::string quoted(std::string_view text);

/// The same without the quotes; blanks at both ends are escaped.
std::string escaped(std::string_view text);

/// Undoes quoted() and escaped(), without the quotes. Throws invalid_argument for what is no
/// escape.
std::string unescaped(std::string_view text);

/// Reads one line of text from left to right. Blanks before what is read are passed over. Throws
/// invalid_argument with what was found and what was needed. Thread-compatible; the text must
/// outlive it.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  /// What has not been read, from the first that is no blank on.
  std::string_view rest();
  bool is_done() { return rest().empty(); }

  /// Whether the text is next. It is then passed over.
  bool take(std::string_view text);
  void need(std::string_view text);

  /// Up to the next blank; empty at the end.
  std::string_view word();

  /// Up to the first of these characters, which is next then; the whole rest if none is there.
  std::string_view before(std::string_view characters);

  /// What quoted() writes.
  std::string quoted_text();

  std::int64_t number(std::string_view needed = "a whole number");

  /// At least 0.
  std::int64_t count(std::string_view needed);

  /// What follows a "[": `1, 2]`.
  Dims list();

  [[noreturn]] void fail(std::string_view needed);

 private:
  std::string_view rest_;
};

}  // namespace shardwise::detail
