#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "shardwise/shard/view/detail/picture_planes.h"
#include "shardwise/shard/view/detail/xml.h"
#include "shardwise/shard/view/picture.h"

namespace shardwise {
namespace {

using Tile = detail::PicturePlanes::Tile;

/// Pixels. Letters are assumed to be as wide as those of the widest usual fonts.
constexpr int kMargin = 16, kGap = 28, kLine = 18, kLetter = 8, kPageWidth = 1120;
constexpr int kColors = 8;

constexpr std::string_view kHead = R"svg(<style>
text{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1c2126}
.page{fill:#ffffff}.quiet{fill:#5d6770}.tile{stroke:#ffffff;stroke-width:1.5}
.slot{fill:url(#padding);stroke:#98a2ab;stroke-width:1;stroke-dasharray:3 3}
.hatch{stroke:#b9c1c8;stroke-width:1.5}
.c0{fill:#b5d3f3}.c1{fill:#f7d0a5}.c2{fill:#bde5bf}.c3{fill:#f5bcc0}
.c4{fill:#d8caf0}.c5{fill:#e3d7b5}.c6{fill:#f5c7e2}.c7{fill:#bfdde0}
@media (prefers-color-scheme:dark){
text{fill:#eef1f4}.page{fill:#15181c}.quiet{fill:#a4afb9}.tile{stroke:#15181c}
.slot{stroke:#6b7680}.hatch{stroke:#4a545d}
.c0{fill:#2b557f}.c1{fill:#7d5321}.c2{fill:#2c6938}.c3{fill:#85373e}
.c4{fill:#594789}.c5{fill:#675831}.c6{fill:#803c66}.c7{fill:#275f66}
}
</style>
<defs><pattern id="padding" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="7"/></pattern></defs>
)svg";

int clamped(std::int64_t total, std::int64_t parts, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(total / parts, least, most));
}

class SvgPicture {
 public:
  SvgPicture(const Sharding& sharding, const Shape& shape, const PictureOptions& options)
      : planes_(sharding, shape, options.max_tiles) {
    std::size_t row_letters = 0, column_letters = 0;
    for (std::int64_t row = 0; row < rows(); ++row) {
      row_letters = std::max(row_letters, planes_.row_label(row).size());
    }
    for (std::int64_t column = 0; column < columns(); ++column) {
      column_letters = std::max(column_letters, planes_.column_label(column).size());
    }
    header_ = static_cast<int>(row_letters + 1) * kLetter;
    width_ =
        std::max(clamped(560, columns(), 56, 150), static_cast<int>(column_letters + 1) * kLetter);
    height_ = clamped(360, rows(), 40, 96);
  }

  std::string draw() {
    const int plane_width = header_ + width_ * static_cast<int>(columns());
    int labelled = plane_width;
    for (std::int64_t plane = 0; plane < planes_.planes().drawn; ++plane) {
      labelled = std::max(labelled, static_cast<int>(planes_.plane_label(plane).size()) * kLetter);
    }
    caption_ = planes_.plane_label(0).empty() ? 0 : kLine;
    const int plane_height = caption_ + kLine + height_ * static_cast<int>(rows()) + kGap;
    const auto shown = static_cast<int>(planes_.planes().drawn);
    const int side_by_side = std::clamp((kPageWidth + kGap) / (labelled + kGap), 1, shown);
    const std::string title = planes_.title(140), rest = planes_.rest();
    const int page_width =
        2 * kMargin + std::max({side_by_side * (labelled + kGap) - kGap,
                                static_cast<int>(std::max(title.size(), rest.size())) * kLetter});
    const int top = kMargin + kLine + kLine / 2;
    const int bottom = top + (shown + side_by_side - 1) / side_by_side * plane_height;
    const int page_height = bottom + kLine + kMargin;
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img">)",
        page_width, page_height);
    put("\n<title>{}</title>\n{}", detail::xml_text(title), kHead);
    put(R"(<rect class="page" width="{}" height="{}"/>)", page_width, page_height);
    text(kMargin, kMargin + 12, "", title);
    for (int plane = 0; plane < shown; ++plane) {
      draw_plane(plane, kMargin + plane % side_by_side * (labelled + kGap),
                 top + plane / side_by_side * plane_height);
    }
    if (padded_) {
      put("\n"
          R"(<rect class="slot" x="{}" y="{}" width="14" height="14"/>)",
          kMargin, bottom - 12);
      text(kMargin + 22, bottom, "quiet", "padding to whole blocks, not in the tensor");
    }
    if (!rest.empty()) text(kMargin, bottom + kLine, "quiet", rest);
    return std::move(out_) + "\n</svg>\n";
  }

 private:
  std::int64_t rows() const { return planes_.rows().drawn; }
  std::int64_t columns() const { return planes_.columns().drawn; }

  template <typename... Args>
  void put(fmt::format_string<const Args&...> format, const Args&... args) {
    fmt::format_to(std::back_inserter(out_), format, args...);
  }

  void text(int x, int y, std::string_view css, std::string_view content,
            std::string_view anchor = "start") {
    if (content.empty()) return;
    put("\n"
        R"(<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>)",
        css, x, y, anchor, detail::xml_text(content));
  }

  void draw_plane(std::int64_t plane, int left, int top) {
    text(left, top + 10, "", planes_.plane_label(plane));
    const int x0 = left + header_, y0 = top + caption_ + kLine;
    for (std::int64_t column = 0; column < columns(); ++column) {
      text(x0 + static_cast<int>(column) * width_ + width_ / 2, y0 - 7, "quiet",
           planes_.column_label(column), "middle");
    }
    for (std::int64_t row = 0; row < rows(); ++row) {
      const int y = y0 + static_cast<int>(row) * height_;
      text(x0 - kLetter, y + height_ / 2 + 4, "quiet", planes_.row_label(row), "end");
      for (std::int64_t column = 0; column < columns(); ++column) {
        draw_tile(planes_.tile(plane, row, column), x0 + static_cast<int>(column) * width_, y,
                  (plane * 5 + row * 3 + column) % kColors);
      }
    }
  }

  void draw_tile(const Tile& tile, int x, int y, std::int64_t color) {
    constexpr std::size_t kMostDevicesListed = 2000;
    put("\n"
        R"(<g data-box="{}"><title>tile {}: {}, {} elements, on {}</title>)",
        to_string(tile.box), to_string(tile.number), to_string(tile.box), tile.box.num_elements(),
        planes_.devices(tile, kMostDevicesListed));
    if (tile.down < 1 || tile.across < 1) {
      padded_ = true;
      put(R"(<rect class="slot" x="{}" y="{}" width="{}" height="{}"/>)", x + 1, y + 1, width_ - 2,
          height_ - 2);
    }
    const bool empty = tile.box.empty();
    if (!empty) {
      put(R"(<rect class="tile c{}" x="{}" y="{}" width="{:.1f}" height="{:.1f}"/>)", color, x, y,
          std::max(tile.across * width_, 3.0), std::max(tile.down * height_, 3.0));
    }
    const std::string devices =
        planes_.devices(tile, static_cast<std::size_t>(width_ / kLetter - 1));
    text(x + 7, y + 17, empty ? "quiet" : "", devices);
    if (empty) text(x + 7, y + 17 + kLine - 3, "quiet", "empty");
    put("</g>");
  }

  detail::PicturePlanes planes_;
  int caption_ = 0;             // above a plane
  int header_ = 0;              // of the row labels
  int width_ = 0, height_ = 0;  // of a slot
  bool padded_ = false;
  std::string out_;
};

}  // namespace

std::string svg_picture(const Sharding& sharding, const Shape& shape, PictureOptions options) {
  return SvgPicture(sharding, shape, options).draw();
}

}  // namespace shardwise
