#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "study.h"

namespace memory_report {
namespace {

constexpr std::array<const char*, 8> kColours = {"#4269d0", "#a5b7ea", "#efb118", "#f8dd97",
                                                 "#3ca951", "#a3d8ac", "#ff725c", "#ffc0b6"};
constexpr double kWidth = 860, kHeight = 400, kLeft = 60, kRight = 200, kTop = 50, kBottom = 40;

template <class Of>
std::vector<std::string> names(const std::vector<Bar>& bars, Of of) {
  std::vector<std::string> all;
  for (const Bar& bar : bars) {
    if (std::ranges::find(all, of(bar)) == all.end()) all.push_back(of(bar));
  }
  return all;
}

/// Returns 1, 2 or 5 times a power of ten; about five of these make `most`.
double tick(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (power * step * 5 >= most) return power * step;
  }
  return 10 * power;
}

std::string text(double x, double y, const char* anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     words);
}

}  // namespace

std::string bar_chart(std::string_view title, std::string_view unit, const std::vector<Bar>& bars,
                      double limit) {
  const auto groups = names(bars, [](const Bar& bar) { return bar.group; });
  const auto series = names(bars, [](const Bar& bar) { return bar.series; });
  double most = limit;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  most *= 1.05;
  const double width = kWidth - kLeft - kRight, height = kHeight - kTop - kBottom;
  const auto y_of = [&](double value) { return kTop + height * (1 - value / most); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text(kLeft, 24, "start", title);
  for (double value = 0; value <= most; value += tick(most)) {
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                       kLeft, kLeft + width, y_of(value), y_of(value));
    svg += text(kLeft - 6, y_of(value) + 4, "end", fmt::format("{:g}", value));
  }
  svg += text(kLeft - 6, kTop - 10, "end", unit);
  const double group_width = width / static_cast<double>(groups.size());
  const double bar_width = 0.84 * group_width / static_cast<double>(series.size());
  for (const Bar& bar : bars) {
    const auto g = std::ranges::find(groups, bar.group) - groups.begin();
    const auto s = std::ranges::find(series, bar.series) - series.begin();
    const double x =
        kLeft + group_width * (static_cast<double>(g) + 0.08) + bar_width * static_cast<double>(s);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}, "
        "{}: "
        "{:.2f} {}</title></rect>\n",
        x, y_of(bar.value), bar_width, kTop + height - y_of(bar.value),
        kColours[static_cast<std::size_t>(s) % kColours.size()], bar.group, bar.series, bar.value,
        unit);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    svg += text(kLeft + group_width * (static_cast<double>(g) + 0.5), kTop + height + 18, "middle",
                groups[g]);
  }
  if (limit > 0) {
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#c00\" "
        "stroke-dasharray=\"6 4\"/>\n",
        kLeft, kLeft + width, y_of(limit), y_of(limit));
    svg += text(kLeft + width + 6, y_of(limit) + 4, "start", fmt::format("{:g} {}", limit, unit));
  }
  for (std::size_t s = 0; s < series.size(); ++s) {
    const double y = kTop + 18 * static_cast<double>(s);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                       kWidth - kRight + 12, y, kColours[s % kColours.size()]);
    svg += text(kWidth - kRight + 30, y + 10, "start", series[s]);
  }
  return svg + "</svg>\n";
}

}  // namespace memory_report
