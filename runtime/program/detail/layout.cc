#include "shardwise/runtime/program/detail/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

namespace shardwise {
namespace {

__extension__ using Wide = __int128;  // holds products of extents

Wide floor_div(Wide a, Wide positive) {
  return a >= 0 ? a / positive : -((-a + positive - 1) / positive);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> Window::range(std::int64_t begin, std::int64_t end,
                                                    std::int64_t size) const {
  if (begin >= end || least >= limit) return {0, 0};
  Wide first = begin, last = Wide{end} - 1;
  if (scale < 0) std::swap(first, last);
  const Wide from = -floor_div(-(Wide{scale} * first + low), divide);  // rounded up
  const Wide to = floor_div(Wide{scale} * last + high, divide) + 1;
  const Wide lowest = std::clamp<Wide>(from, std::min(least, size), std::min(limit, size));
  return {static_cast<std::int64_t>(lowest),
          static_cast<std::int64_t>(std::clamp<Wide>(to, lowest, std::min(limit, size)))};
}

std::optional<Window> compose(const Window& window, std::int64_t size, const Window& frame,
                              std::int64_t middle) {
  const bool is_shift = window.scale == 1 && window.divide == 1;
  if (frame.divide != 1 && !is_shift) return std::nullopt;
  const std::int64_t low = window.scale < 0 ? frame.high : frame.low;
  const std::int64_t high = window.scale < 0 ? frame.low : frame.high;
  // (scale * ((frame.scale * i + f) / frame.divide) + w) / divide, where one divide is 1.
  const Wide scale = Wide{window.scale} * frame.scale;
  const Wide from = Wide{window.scale} * low + Wide{window.low} * frame.divide;
  const Wide to = Wide{window.scale} * high + Wide{window.high} * frame.divide;
  constexpr Wide kMost = std::numeric_limits<std::int64_t>::max();
  for (const Wide number : {scale, from, to}) {
    if (number > kMost || number < -kMost) return std::nullopt;
  }
  Window both{.extent = frame.extent,
              .scale = static_cast<std::int64_t>(scale),
              .low = static_cast<std::int64_t>(from),
              .high = static_cast<std::int64_t>(to),
              .divide = window.divide * frame.divide};
  const auto [first, last] =
      window.range(std::min(frame.least, middle), std::min(frame.limit, middle), size);
  both.least = first;
  both.limit = last;
  return both;
}

const Sharding& Layout::sharding() const {
  assert(!has_windows());
  return frame_;
}

Box Layout::box(std::int64_t position, const Shape& shape) const {
  if (!has_windows()) return frame_.box_at(position, shape);
  Box box = frame_.box_at(position, frame_shape_);
  for (std::size_t dim = 0; dim < windows_.size(); ++dim) {
    if (!windows_[dim].is_set()) continue;
    const auto [begin, end] = windows_[dim].range(box.begin(dim), box.end(dim), shape[dim]);
    box.set(dim, begin, end);
  }
  return box;
}

Shape Layout::largest(const Shape& shape) const {
  if (!has_windows()) return frame_.shard_shape(shape);
  Shape most = Dims::filled(shape.size(), 0);
  for (std::int64_t position = 0; position < mesh().size(); ++position) {
    const Box one = box(position, shape);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      most[dim] = std::max(most[dim], one.extent(dim));
    }
  }
  return most;
}

std::string to_string(const Window& window) {
  std::string text = window.scale == 1 ? "" : fmt::format("{}*", window.scale);
  text += window.low == window.high ? fmt::format("[{:+}]", window.low)
                                    : fmt::format("[{:+}..{:+}]", window.low, window.high);
  return window.divide == 1 ? text : text + fmt::format("/{}", window.divide);
}

std::string Layout::to_string() const {
  std::string text = frame_.to_string();
  for (std::size_t dim = 0; dim < windows_.size(); ++dim) {
    if (!windows_[dim].is_set()) continue;
    text += fmt::format(" dim {} of {} {}", dim, windows_[dim].extent,
                        shardwise::to_string(windows_[dim]));
  }
  return text;
}

std::string Layout::short_text() const {
  if (!has_windows()) return frame_.spec().to_string();
  const PartitionSpec spec = frame_.spec().padded(windows_.size());
  std::string text;
  for (std::size_t dim = 0; dim < windows_.size(); ++dim) {
    if (dim > 0) text += ',';
    text += PartitionSpec(std::vector<PartitionSpec::Entry>{spec[dim]}).to_string();
    if (windows_[dim].is_set()) text += shardwise::to_string(windows_[dim]);
  }
  return text;
}

}  // namespace shardwise
