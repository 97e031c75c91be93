#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "shardwise/shard/view/detail/picture_planes.h"
#include "shardwise/shard/view/picture.h"

namespace shardwise {
namespace {

using Tile = detail::PicturePlanes::Tile;

constexpr std::string_view kPadding = "\u2591";  // light shade
constexpr std::size_t kMostDeviceText = 20;
/// Pale colours of the 256-colour palette, on which black text is readable.
constexpr int kPalette[] = {153, 223, 157, 217, 189, 187, 225, 152};

std::string repeated(std::string_view text, std::size_t times) {
  std::string result;
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

/// A share of a number of characters. It is 0 or all of them only if the share is 0 or 1.
std::size_t part_of(double share, std::size_t all) {
  if (share == 0) return 0;
  return std::max<std::size_t>(static_cast<std::size_t>(share * static_cast<double>(all)), 1);
}

class TextPicture {
 public:
  TextPicture(const Sharding& sharding, const Shape& shape, const TextPictureOptions& options)
      : planes_(sharding, shape, options.max_tiles), options_(options) {
    for (std::int64_t row = 0; row < planes_.rows().drawn; ++row) {
      header_ = std::max(header_, planes_.row_label(row).size());
    }
    for (std::int64_t plane = 0; plane < planes_.planes().drawn; ++plane) {
      for (std::int64_t row = 0; row < planes_.rows().drawn; ++row) {
        for (std::int64_t column = 0; column < planes_.columns().drawn; ++column) {
          const Tile tile = planes_.tile(plane, row, column);
          cell_ = std::max(cell_, planes_.devices(tile, kMostDeviceText).size() + 2);
          padded_ |= tile.down < 1 || tile.across < 1;
          if (tile.down < 1) lines_ = 2;
        }
      }
    }
    for (std::int64_t column = 0; column < planes_.columns().drawn; ++column) {
      cell_ = std::max(cell_, planes_.column_label(column).size());
    }
  }

  std::string draw() {
    line(planes_.title(std::max<std::size_t>(options_.width, 40)));
    const auto room =
        static_cast<std::int64_t>(options_.width) - static_cast<std::int64_t>(header_) - 2;
    const std::int64_t band =
        std::max<std::int64_t>(room / static_cast<std::int64_t>(cell_ + 1), 1);
    for (std::int64_t plane = 0; plane < planes_.planes().drawn; ++plane) {
      line("");
      if (const std::string label = planes_.plane_label(plane); !label.empty()) line(label);
      for (std::int64_t first = 0; first < planes_.columns().drawn; first += band) {
        draw_band(plane, first, std::min(first + band, planes_.columns().drawn));
      }
    }
    if (padded_) line(fmt::format("{0}{0} padding to whole blocks, not in the tensor", kPadding));
    if (const std::string rest = planes_.rest(); !rest.empty()) line(rest);
    return std::move(out_);
  }

 private:
  void line(std::string_view text) { fmt::format_to(std::back_inserter(out_), "{}\n", text); }

  void rule(std::size_t cells, std::string_view left, std::string_view middle,
            std::string_view right) {
    out_ += std::string(header_ + 1, ' ') + std::string(left);
    for (std::size_t i = 0; i < cells; ++i) {
      out_ += repeated("\u2500", cell_);
      out_ += i + 1 < cells ? middle : right;
    }
    out_ += '\n';
  }

  void draw_band(std::int64_t plane, std::int64_t begin, std::int64_t end) {
    const auto cells = static_cast<std::size_t>(end - begin);
    std::string labels(header_ + 1, ' ');
    for (std::int64_t column = begin; column < end; ++column) {
      labels += fmt::format(" {:^{}}", planes_.column_label(column), cell_);
    }
    labels.erase(labels.find_last_not_of(' ') + 1);
    if (!labels.empty()) line(labels);
    rule(cells, "\u250c", "\u252c", "\u2510");
    for (std::int64_t row = 0; row < planes_.rows().drawn; ++row) {
      if (row > 0) rule(cells, "\u251c", "\u253c", "\u2524");
      for (int i = 0; i < lines_; ++i) {
        fmt::format_to(std::back_inserter(out_), "{:>{}} \u2502",
                       i == 0 ? planes_.row_label(row) : "", header_);
        for (std::int64_t column = begin; column < end; ++column) {
          draw_cell(planes_.tile(plane, row, column), i, plane * 5 + row * 3 + column);
          out_ += "\u2502";
        }
        out_ += '\n';
      }
    }
    rule(cells, "\u2514", "\u2534", "\u2518");
  }

  /// One line of a tile's slot: the tile, then padding; the devices are written over both.
  void draw_cell(const Tile& tile, int number, std::int64_t color) {
    const auto inside =
        number < static_cast<int>(part_of(tile.down, static_cast<std::size_t>(lines_)));
    const std::size_t filled = inside ? part_of(tile.across, cell_) : 0;
    std::string text(cell_, '\0');
    if (number == 0) {
      const std::string devices = planes_.devices(tile, kMostDeviceText);
      text.replace(1, devices.size(), devices);
    }
    const auto write = [&](std::size_t begin, std::size_t end, std::string_view blank) {
      for (std::size_t i = begin; i < end; ++i) {
        out_ += text[i] == '\0' ? blank : std::string_view(&text[i], 1);
      }
    };
    if (options_.color && filled > 0) {
      fmt::format_to(std::back_inserter(out_), "\x1b[30;48;5;{}m",
                     kPalette[static_cast<std::size_t>(color) % std::size(kPalette)]);
    }
    write(0, filled, " ");
    if (options_.color && filled > 0) out_ += "\x1b[0m";
    write(filled, cell_, kPadding);
  }

  detail::PicturePlanes planes_;
  TextPictureOptions options_;
  std::size_t header_ = 0;  // characters of the row labels
  std::size_t cell_ = 3;    // characters of a slot
  int lines_ = 1;           // of a slot
  bool padded_ = false;
  std::string out_;
};

}  // namespace

std::string text_picture(const Sharding& sharding, const Shape& shape, TextPictureOptions options) {
  return TextPicture(sharding, shape, options).draw();
}

}  // namespace shardwise
