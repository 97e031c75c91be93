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

/// The first UTF-8 character of a text that is not empty; 0 if there is none.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = first < 0x80   ? 1
                            : first < 0xC2 ? 0
                            : first < 0xE0 ? 2
                            : first < 0xF0 ? 3
                            : first < 0xF5 ? 4
                                           : 0;
  if (bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

/// Whether a character is in C0 (but no line end or tab), in C1, or DEL.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) {
    return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
  }
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    text.remove_prefix(character.size());
    if (bytes > 0 && !is_control(character)) {
      shown += character;
      continue;
    }
    for (const char c : character) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return shown;
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
  fmt::print("{}\n", value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void write_file(std::string_view option, const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(ErrorCode::io, fmt::format("{}: {} cannot be written", option, path));
}

void print_note(std::string_view text) {
  // Not fmt::print: it throws if stderr is closed.
  std::fputs((printable(text) + '\n').c_str(), stderr);
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
