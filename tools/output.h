#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools {

/// "45 s", "2 min 5 s", "1 h 3 min"
std::string human_time(double seconds);

/// "1 chunk", "2 chunks"
std::string counted(std::int64_t number, std::string_view what);

nlohmann::ordered_json dims_json(const Dims& dims);
nlohmann::ordered_json box_json(const Box& box);

/// On stdout, with a line end. Bytes that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& value);

/// The same for JSON that is text, as exact_text() gives it.
void print_json_text(std::string_view json);

/// Makes JSON safe for a terminal: controls, directions of writing and separators of lines become
/// \u escapes, which read back to the same text.
std::string escaped_json(std::string_view json);

/// Makes text that may hold names of files, tensors or fields safe for a terminal: the characters
/// that escaped_json() escapes and bytes that are no UTF-8 become text such as \x1b, so none of
/// them moves the cursor, sets a title or turns text around. Line ends stay as they are.
std::string printable(std::string_view text);

/// The same of a name or message that has to stay in its line: line ends and tabs become \n and \t.
std::string one_line(std::string_view text);

/// Words in lines of at most `width` columns; all lines but the first begin with `indent` blanks.
/// A longer word has a line of its own.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent);
inline constexpr std::size_t kWidth = 100;  ///< columns that texts are made for

/// On stdout, made printable.
void print_shown(std::string_view text);
inline void print_shown(const TextTable& table) { print_shown(table.to_string()); }

/// To a file that an option names. Throws io.
void write_file(std::string_view option, const std::string& path, std::string_view text);

/// one_line() on stderr; nothing if that is closed.
void print_note(std::string_view text);

/// A failure: its message on stderr and, if JSON was asked for, an object on stdout.
void report_error(bool json, std::string_view code, std::string_view message);

/// Throws io unless all that was printed on stdout has arrived there: it may be a full disk.
void finish_stdout();

/// Holds the numbers of standard streams that are closed, so that no file gets such a number and
/// the stream's output with it; writing there still fails. Call it before anything is opened.
void hold_closed_streams();

/// "reshard: 72 % of 4.53 GiB, 137.23 MiB/s, 9 s left", after this many seconds.
std::string progress_text(std::string_view what, const Progress& progress, double seconds);

/// Shows on stderr how far long work has come: only on a terminal, and only after a second. The
/// line is cleared when this object ends: end it before the result is printed.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Empty if stderr is not a terminal. Valid as long as this object.
  ProgressFunction function();

  /// The same for work that is counted: "plan: 12 of 91 meshes".
  std::function<void(std::int64_t done, std::int64_t of)> counter(std::string unit);

 private:
  /// Calls text(seconds) if it is time to show something.
  void show(const std::function<std::string(double)>& text);

  std::string what_;
  std::chrono::steady_clock::time_point start_, shown_;
  bool visible_ = false;
};

}  // namespace shardwise::tools
