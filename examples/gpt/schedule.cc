#include "schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shardwise/shard/dims.h"

namespace gpt {

namespace sw = shardwise;

namespace {

constexpr std::array<const char*, 8> kColours = {"#a5b7ea", "#f8dd97", "#a3d8ac", "#ffc0b6",
                                                 "#d4b9da", "#9edae5", "#dbdb8d", "#f7b6d2"};
constexpr std::int64_t kSide = 28, kLeft = 70, kTop = 46;

std::string text(std::int64_t x, std::int64_t y, const char* anchor, std::string_view words) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, words);
}

std::string cell(std::int64_t column, std::int64_t stage, std::optional<std::int64_t> micro_batch,
                 bool is_backward) {
  const std::int64_t x = kLeft + column * kSide, y = kTop + stage * kSide;
  const std::string_view colour =
      micro_batch ? kColours[static_cast<std::size_t>(*micro_batch) % kColours.size()] : "#eee";
  std::string svg = fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"{}\"/>\n", x, y,
      kSide, kSide, colour, is_backward ? "#888" : "#fff");
  if (micro_batch) {
    svg += text(x + kSide / 2, y + kSide / 2 + 4, "middle", std::to_string(*micro_batch));
  }
  return svg;
}

}  // namespace

std::optional<std::int64_t> Schedule::micro_batch(std::int64_t stage, std::int64_t trip) const {
  const std::int64_t number = trip - stage;
  if (number < 0 || number >= micro_batches) return std::nullopt;
  return number;
}

std::vector<StageShare> stage_shares(const sw::Mesh& mesh, std::int64_t layers,
                                     const std::vector<std::size_t>& peaks) {
  const std::int64_t stages = mesh.axis_size("stage"), each = layers / stages;
  const auto axis = std::ranges::find(mesh.axes(), "stage", &sw::Axis::name);
  std::vector<StageShare> shares(sw::as_size(stages));
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    shares[sw::as_size(stage)] = {stage * each, (stage + 1) * each - 1, 0};
  }
  for (std::size_t position = 0; position < peaks.size(); ++position) {
    const std::int64_t stage = mesh.coordinate(
        static_cast<std::int64_t>(position), static_cast<std::size_t>(axis - mesh.axes().begin()));
    std::size_t& peak = shares[sw::as_size(stage)].peak_bytes;
    peak = std::max(peak, peaks[position]);
  }
  return shares;
}

std::string to_string(const Schedule& schedule, const std::vector<StageShare>& shares) {
  std::string all = fmt::format(
      "pipeline: {} stages, {} micro-batches; each stage waits {} of {} trips, {:.1f} %\n",
      schedule.stages, schedule.micro_batches, schedule.stages - 1, schedule.trips(),
      100 * schedule.bubble());
  for (std::size_t stage = 0; stage < shares.size(); ++stage) {
    const StageShare& share = shares[stage];
    all += fmt::format("stage {}     layers {} to {}, {} bytes at the peak of a device\n", stage,
                       share.first_layer, share.last_layer, share.peak_bytes);
  }
  return all;
}

std::string to_svg(const Schedule& schedule) {
  const std::int64_t trips = schedule.trips();
  const std::int64_t width = kLeft + 2 * trips * kSide + 10,
                     height = kTop + schedule.stages * kSide + 10;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  svg += text(kLeft, 16, "start",
              fmt::format("GPipe: {} stages, {} micro-batches, a bubble of {:.1f} %",
                          schedule.stages, schedule.micro_batches, 100 * schedule.bubble()));
  svg += text(kLeft, 36, "start", "forward");
  svg += text(kLeft + trips * kSide, 36, "start", "backward");
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    svg += text(kLeft - 8, kTop + stage * kSide + kSide / 2 + 4, "end",
                fmt::format("stage {}", stage));
    for (std::int64_t trip = 0; trip < trips; ++trip) {
      const auto micro_batch = schedule.micro_batch(stage, trip);
      svg += cell(trip, stage, micro_batch, false);
      svg += cell(2 * trips - 1 - trip, stage, micro_batch, true);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace gpt
