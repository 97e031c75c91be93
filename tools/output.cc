#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>

#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

struct Character {
  std::size_t bytes = 0;  ///< 0: the text does not begin with UTF-8
  char32_t code = 0;
};

/// The first character of a text that is not empty. A surrogate alone, as strings of Python can
/// have it, is one; overlong forms are no UTF-8.
Character first_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {1, first};
  const std::size_t bytes = first < 0xC2   ? 0
                            : first < 0xE0 ? 2
                            : first < 0xF0 ? 3
                            : first < 0xF5 ? 4
                                           : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  char32_t code = first & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3F);
  }
  const bool is_overlong = code < (bytes == 4 ? 0x10000U : bytes == 3 ? 0x800U : 0x80U);
  if (is_overlong || code > 0x10FFFF) return {};
  return {bytes, code};
}

/// Whether a character changes how the text around it is shown: controls, and the format characters
/// and separators of Unicode (Cc, Cf, Zl, Zp), as Python's repr escapes them.
bool is_unseen(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kRanges[] = {
      {0x00, 0x1F},       {0x7F, 0x9F},       {0xAD, 0xAD},       {0x600, 0x605},
      {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
      {0x8E2, 0x8E2},     {0x180E, 0x180E},   {0x200B, 0x200F},   {0x2028, 0x202E},
      {0x2060, 0x206F},   {0xD800, 0xDFFF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
      {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
      {0x1D173, 0x1D17A}, {0xE0001, 0xE007F}};
  return std::ranges::any_of(
      kRanges, [code](const Range& range) { return range.first <= code && code <= range.last; });
}

/// Calls take(bytes, character) for each character, and for each byte that is no UTF-8.
template <class Take>
void for_each_character(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t bytes = std::max<std::size_t>(character.bytes, 1);
    take(text.substr(0, bytes), character);
    text.remove_prefix(bytes);
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for_each_character(text, [&](std::string_view bytes, const Character& character) {
    const char32_t code = character.code;
    if (character.bytes > 0 && (code == '\n' || code == '\t' || !is_unseen(code))) {
      shown += bytes;
    } else if (code < 0x80) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[0]));
    } else {
      shown += code < 0x10000 ? fmt::format("\\u{:04x}", static_cast<unsigned>(code))
                              : fmt::format("\\U{:08x}", static_cast<unsigned>(code));
    }
  });
  return shown;
}

std::string escaped_json(std::string_view json) {
  std::string escaped;
  for_each_character(json, [&](std::string_view bytes, const Character& character) {
    const auto code = static_cast<unsigned>(character.code);
    if (code < 0x7F || !is_unseen(code)) {
      escaped += bytes;
    } else if (code < 0x10000) {
      escaped += fmt::format("\\u{:04x}", code);
    } else {  // as two surrogates
      escaped += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    }
  });
  return escaped;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string lines;
  std::size_t column = 0;
  bool is_first = true;
  for (const std::string_view word : split(text, ' ')) {
    if (!is_first && column > indent && column + 1 + word.size() > width) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!is_first) {
      lines += ' ';
      ++column;
    }
    is_first = false;
    lines += word;
    column += word.size();
  }
  return lines;
}

void print_shown(std::string_view text) { fmt::print("{}", printable(text)); }

std::string human_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::round(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string counted(std::int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

nlohmann::ordered_json dims_json(const Dims& dims) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::int64_t value : dims) list.push_back(value);
  return list;
}

nlohmann::ordered_json box_json(const Box& box) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    list.push_back(nlohmann::ordered_json::array({box.begin(dim), box.end(dim)}));
  }
  return list;
}

void print_json(const nlohmann::ordered_json& value) {
  print_json_text(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_json_text(std::string_view json) { fmt::print("{}\n", escaped_json(json)); }

void write_file(std::string_view option, const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(ErrorCode::io, fmt::format("{}: {} cannot be written", option, path));
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : printable(text)) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else {
      line += c;
    }
  }
  return line;
}

void print_note(std::string_view text) {
  // Not fmt::print: it throws if stderr is closed.
  std::fputs((one_line(text) + '\n').c_str(), stderr);
}

void report_error(bool json, std::string_view code, std::string_view message) {
  if (json && std::ferror(stdout) == 0) {
    try {
      print_json({{"error", {{"code", code}, {"message", message}}}});
    } catch (const std::exception&) {
      // stdout takes nothing; stderr and the exit status report the failure.
    }
  }
  print_note(fmt::format("shardwise: {}", message));
}

void finish_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw Error(ErrorCode::io,
              fmt::format("the result cannot be written to stdout: {}", std::strerror(errno)));
}

void hold_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is taken, so it is this one; for the wrong direction.
    ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

std::string progress_text(std::string_view what, const Progress& progress, double seconds) {
  const double done = static_cast<double>(progress.done_bytes);
  const double total = static_cast<double>(std::max<std::size_t>(progress.total_bytes, 1));
  std::string text = fmt::format("{}: {:.0f} % of {}, {}/s", what, 100 * done / total,
                                 human_bytes(progress.total_bytes),
                                 human_bytes(static_cast<std::size_t>(done / seconds)));
  if (done > 0) {
    text += fmt::format(", {} left", human_time(seconds * std::max(0.0, total - done) / done));
  }
  return text;
}

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), start_(std::chrono::steady_clock::now()), shown_(start_) {}

ProgressLine::~ProgressLine() {
  if (visible_) std::fputs("\r\033[K", stderr);
}

ProgressFunction ProgressLine::function() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [this](const Progress& progress) {
    show([&](double seconds) { return progress_text(what_, progress, seconds); });
  };
}

std::function<void(std::int64_t, std::int64_t)> ProgressLine::counter(std::string unit) {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [this, unit = std::move(unit)](std::int64_t done, std::int64_t of) {
    show([&](double) { return fmt::format("{}: {} of {} {}", what_, done, of, unit); });
  };
}

void ProgressLine::show(const std::function<std::string(double)>& text) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds < 1 || now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  visible_ = true;
  std::fputs(("\r\033[K" + text(seconds)).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace shardwise::tools
