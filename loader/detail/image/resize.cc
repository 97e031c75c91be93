#include "shardwise/loader/detail/image/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Weights have 22 bits of fraction, so that sums of weighted bytes fit a signed 32-bit integer.
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = std::int32_t{1} << (kWeightBits - 1);

/// The lines of the image that form one line of the result, and their weights.
struct Window {
  std::int64_t begin;
  std::size_t count, first_weight;
};

struct Filter {
  std::vector<Window> windows;
  std::vector<std::int32_t> weights;

  std::int64_t begin() const { return windows.front().begin; }
  std::int64_t end() const {
    return windows.back().begin + static_cast<std::int64_t>(windows.back().count);
  }
};

std::byte to_byte(std::int32_t sum) {
  return static_cast<std::byte>(std::clamp(sum >> kWeightBits, 0, 255));
}

// The filter for lines [first, first + count) when `from` lines are scaled to `to` lines.
Filter triangle_filter(std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t count) {
  Filter filter;
  filter.windows.reserve(static_cast<std::size_t>(count));
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);
  std::vector<double> weights;
  for (std::int64_t line = first; line < first + count; ++line) {
    const double center = (static_cast<double>(line) + 0.5) * scale;
    // Truncated toward zero as in Pillow, also below zero.
    const double first_center = center - support + 0.5, end_center = center + support + 0.5;
    const auto begin = std::max<std::int64_t>(static_cast<std::int64_t>(first_center), 0);
    const auto end = std::min(static_cast<std::int64_t>(end_center), from);
    weights.clear();
    double sum = 0;
    for (std::int64_t x = begin; x < end; ++x) {
      const double distance = (static_cast<double>(x) - center + 0.5) * (1.0 / support);
      weights.push_back(std::max(1.0 - std::abs(distance), 0.0));
      sum += weights.back();
    }
    filter.windows.push_back({begin, weights.size(), filter.weights.size()});
    for (const double weight : weights) {
      const double share = sum != 0.0 ? weight / sum : weight;
      const double fixed = share * (1 << kWeightBits) + 0.5;
      filter.weights.push_back(static_cast<std::int32_t>(fixed));
    }
  }
  return filter;
}

template <int kChannels>
void scale_row(const std::byte* row, const Filter& filter, std::byte* out) {
  for (const Window& window : filter.windows) {
    const std::byte* from = row + window.begin * kChannels;
    const std::int32_t* weights = filter.weights.data() + window.first_weight;
    std::int32_t sums[kChannels];
    for (std::int32_t& sum : sums) sum = kHalf;
    for (std::size_t i = 0; i < window.count; ++i, from += kChannels) {
      for (int c = 0; c < kChannels; ++c)
        sums[c] += std::to_integer<std::int32_t>(from[c]) * weights[i];
    }
    for (const std::int32_t sum : sums) *out++ = to_byte(sum);
  }
}

void scale_rows(const std::byte* image, std::int64_t rows, std::int64_t row_bytes, int channels,
                const Filter& filter, std::byte* out) {
  const std::size_t out_bytes = filter.windows.size() * static_cast<std::size_t>(channels);
  for (std::int64_t row = 0; row < rows; ++row, image += row_bytes, out += out_bytes) {
    switch (channels) {
      case 1:
        scale_row<1>(image, filter, out);
        break;
      case 3:
        scale_row<3>(image, filter, out);
        break;
      default:
        scale_row<4>(image, filter, out);
    }
  }
}

// `rows` begins with row filter.begin() of the image.
void scale_columns(const std::byte* rows, std::size_t row_bytes, const Filter& filter,
                   std::byte* out) {
  std::vector<std::int32_t> sums(row_bytes);
  for (const Window& window : filter.windows) {
    std::fill(sums.begin(), sums.end(), kHalf);
    const std::byte* from =
        rows + static_cast<std::size_t>(window.begin - filter.begin()) * row_bytes;
    for (std::size_t i = 0; i < window.count; ++i, from += row_bytes) {
      const std::int32_t weight = filter.weights[window.first_weight + i];
      for (std::size_t x = 0; x < row_bytes; ++x) {
        sums[x] += std::to_integer<std::int32_t>(from[x]) * weight;
      }
    }
    for (std::size_t x = 0; x < row_bytes; ++x) out[x] = to_byte(sums[x]);
    out += row_bytes;
  }
}

}  // namespace

ScaledPart stretched(const ImageSize& wanted) { return {wanted, 0, 0, wanted}; }

ScaledPart cropped(const ImageSize& image, const ImageSize& wanted) {
  ScaledPart part{wanted, 0, 0, wanted};
  // A half is rounded to the even neighbour, as in Python.
  const auto half = [](std::int64_t n) { return n / 2 + (n % 2 == 1 ? n / 2 % 2 : 0); };
  // Exact: no extent is over 2^31.
  if (wanted.height * image.width >= wanted.width * image.height) {
    part.full.width = image.width * wanted.height / image.height;
    part.left = half(part.full.width - wanted.width);
  } else {
    part.full.height = image.height * wanted.width / image.width;
    part.top = half(part.full.height - wanted.height);
  }
  return part;
}

void resize_image(const std::byte* image, const ImageSize& size, int channels,
                  const ScaledPart& part, std::int64_t max_pixels, ScratchMemory& scratch,
                  std::byte* out) {
  const bool same_width = size.width == part.full.width && part.wanted.width == part.full.width;
  const bool same_height = size.height == part.full.height;
  const std::int64_t most_rows = same_height ? part.wanted.height : size.height;
  if (most_rows > max_pixels / part.wanted.width) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} x {} pixels scaled to {} x {}, needed is {} x {} in between, at most {}",
                    size.height, size.width, part.wanted.height, part.wanted.width, most_rows,
                    part.wanted.width, max_pixels));
  }
  const Filter across = triangle_filter(size.width, part.full.width, part.left, part.wanted.width);
  const Filter down = triangle_filter(size.height, part.full.height, part.top, part.wanted.height);
  const std::int64_t first_row = same_height ? part.top : down.begin();
  const std::int64_t rows = same_height ? part.wanted.height : down.end() - down.begin();
  const std::int64_t row_bytes = size.width * channels;
  const auto scaled_bytes = static_cast<std::size_t>(part.wanted.width * channels);
  const std::byte* from = image + first_row * row_bytes;
  if (!same_width) {
    std::byte* const scaled =
        same_height ? out : scratch.take(static_cast<std::size_t>(rows) * scaled_bytes);
    scale_rows(from, rows, row_bytes, channels, across, scaled);
    from = scaled;
  }
  if (!same_height) {
    scale_columns(from, scaled_bytes, down, out);
  } else if (same_width) {
    std::memcpy(out, from, static_cast<std::size_t>(rows) * scaled_bytes);
  }
}

}  // namespace shardwise::detail
