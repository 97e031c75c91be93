#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

bool looks_like_number(std::string_view cell) {
  if (cell == "-") return true;  // no value
  const std::string_view digits = cell.substr(cell.starts_with('-') ? 1 : 0);
  return !digits.empty() && digits[0] >= '0' && digits[0] <= '9' &&
         cell.find_first_of("=[/") == std::string_view::npos;
}

/// Columns that a terminal needs for UTF-8 text, one per code point.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string in_one_line(const std::string& text) {
  const bool is_plain = std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
  return is_plain ? text : fmt::format("{:?}", text);
}

std::string TextTable::to_string() const {
  constexpr std::size_t kWidest = 120;
  std::vector<std::vector<std::string>> rows = rows_;
  for (auto& row : rows) std::ranges::transform(row, row.begin(), in_one_line);
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (width(row[i]) <= kWidest) widths[i] = std::max(widths[i], width(row[i]));
    }
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::string& cell = rows[r][i];
      const std::string& sample = r == 0 && rows.size() > 1 ? rows[1][i] : cell;
      const std::string space(widths[i] - std::min(widths[i], width(cell)), ' ');
      line += (i == 0 ? "" : "  ") + (looks_like_number(sample) ? space + cell : cell + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string human_bytes(std::size_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace shardwise
