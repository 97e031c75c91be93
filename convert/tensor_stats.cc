#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/convert/detail/numbers.h"
#include "shardwise/convert/elements.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::Numbers;

constexpr std::size_t kStatsSlabBytes = std::size_t{32} << 20;       // bytes read at once
constexpr std::int64_t kStatsElementsATask = std::int64_t{1} << 14;  // 256 KiB as long double
constexpr std::int64_t kMostBars = 10'000;
constexpr long double kNan = std::numeric_limits<long double>::quiet_NaN();

/// Statistics of a run of elements. The means and the sums of squared distances to them are joined
/// by Chan's formula, so that no large sum is subtracted from another one.
struct Part {
  std::int64_t elements = 0, finite = 0, nan = 0, infinities = 0, zeros = 0;
  std::int64_t first_not_finite = -1;  ///< its number in the run; -1: all are finite
  long double min = std::numeric_limits<long double>::infinity(), max = -min;
  long double mean = 0, squares = 0;

  void add(const Part& other) {
    if (first_not_finite < 0 && other.first_not_finite >= 0) {
      first_not_finite = elements + other.first_not_finite;
    }
    elements += other.elements;
    nan += other.nan;
    infinities += other.infinities;
    zeros += other.zeros;
    if (other.finite == 0) return;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    const auto before = static_cast<long double>(finite),
               more = static_cast<long double>(other.finite);
    const long double distance = other.mean - mean, all = before + more;
    mean += distance * (more / all);
    squares += other.squares + distance * distance * (before * (more / all));
    finite += other.finite;
  }
};

class Looker {
 public:
  Looker(const BoxReader& reader, std::span<const std::size_t> tensors, const StatsOptions& options)
      : reader_(reader), options_(options), executor_(options.threads) {
    for (const std::size_t tensor : tensors) {
      const TensorInfo& info = reader.tensors()[tensor];
      progress_.total_bytes +=
          num_bytes(info.shape, size_bytes(info.dtype)) * (options.bars > 0 ? 2 : 1);
    }
  }

  TensorStats look(std::size_t tensor) {
    const Numbers numbers = detail::numbers_of(reader_.tensors()[tensor].dtype);
    const Shape& shape = reader_.tensors()[tensor].shape;
    Part all;
    for_each_slab(tensor, [&](const std::byte* elements, std::int64_t count) {
      for (const Part& part : parts_of<Part>(count, [&](std::int64_t begin, std::int64_t end) {
             return part_of(values_of(numbers, elements, begin, end));
           })) {
        all.add(part);
      }
    });
    TensorStats stats{.elements = all.elements,
                      .nan = all.nan,
                      .infinities = all.infinities,
                      .zeros = all.zeros,
                      .first_not_finite = {},
                      .min = kNan,
                      .max = kNan,
                      .mean = kNan,
                      .deviation = kNan,
                      .histogram = {},
                      .low = kNan,
                      .high = kNan};
    if (all.first_not_finite >= 0) {
      stats.first_not_finite = detail::index_at(Box::whole(shape), all.first_not_finite);
    }
    if (all.finite > 0) {
      stats.min = all.min;
      stats.max = all.max;
      stats.mean = all.mean;
      stats.deviation = std::sqrt(all.squares / static_cast<long double>(all.finite));
    }
    if (options_.bars > 0) count_bars(tensor, numbers, stats);
    return stats;
  }

 private:
  using Counts = std::vector<std::int64_t>;

  void count_bars(std::size_t tensor, const Numbers& numbers, TensorStats& stats) {
    const std::int64_t bars = options_.bars;
    stats.histogram.assign(as_size(bars), 0);
    const long double widening = stats.min == stats.max ? 0.5L : 0;
    stats.low = stats.min - widening;
    stats.high = stats.max + widening;
    const long double width = stats.high - stats.low;
    for_each_slab(tensor, [&](const std::byte* elements, std::int64_t count) {
      for (const Counts& part : parts_of<Counts>(count, [&](std::int64_t begin, std::int64_t end) {
             Counts counts(as_size(bars), 0);
             for (const long double value : values_of(numbers, elements, begin, end)) {
               if (!std::isfinite(value)) continue;
               const auto bar = static_cast<std::int64_t>((value - stats.low) / width *
                                                          static_cast<long double>(bars));
               ++counts[as_size(std::min(bar, bars - 1))];
             }
             return counts;
           })) {
        for (std::size_t i = 0; i < part.size(); ++i) stats.histogram[i] += part[i];
      }
    });
  }

  static std::vector<long double> values_of(const Numbers& numbers, const std::byte* elements,
                                            std::int64_t begin, std::int64_t end) {
    std::vector<long double> values(as_size(end - begin));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::byte* const at = elements + (as_size(begin) + i) * numbers.each * numbers.bytes;
      values[i] = numbers.each == 1
                      ? numbers.number(at)
                      : std::hypot(numbers.number(at), numbers.number(at + numbers.bytes));
    }
    return values;
  }

  static Part part_of(const std::vector<long double>& values) {
    Part part{.elements = std::ssize(values)};
    long double sum = 0;
    for (const long double& value : values) {
      part.nan += std::isnan(value) ? 1 : 0;
      part.infinities += std::isinf(value) ? 1 : 0;
      part.zeros += value == 0 ? 1 : 0;
      if (!std::isfinite(value)) {
        if (part.first_not_finite < 0) part.first_not_finite = &value - values.data();
        continue;
      }
      ++part.finite;
      part.min = std::min(part.min, value);
      part.max = std::max(part.max, value);
      sum += value;
    }
    if (part.finite == 0) return part;
    part.mean = sum / static_cast<long double>(part.finite);
    for (const long double value : values) {
      if (std::isfinite(value)) part.squares += (value - part.mean) * (value - part.mean);
    }
    return part;
  }

  /// body(begin, end) for runs of `count` elements, by all workers; the results in order.
  template <class Result, class Body>
  std::vector<Result> parts_of(std::int64_t count, const Body& body) const {
    std::vector<Result> parts(as_size((count + kStatsElementsATask - 1) / kStatsElementsATask));
    executor_.parallel_for(std::ssize(parts), [&](std::int64_t part) {
      const std::int64_t begin = part * kStatsElementsATask;
      parts[as_size(part)] = body(begin, std::min(begin + kStatsElementsATask, count));
    });
    return parts;
  }

  /// Calls body(elements, count) for parts of the tensor.
  template <class Body>
  void for_each_slab(std::size_t tensor, const Body& body) {
    const TensorInfo& info = reader_.tensors()[tensor];
    const std::size_t element_bytes = size_bytes(info.dtype);
    shardwise::for_each_slab(Box::whole(info.shape), element_bytes, kStatsSlabBytes,
                             [&](const Box& slab) {
                               room_.resize(num_bytes(slab.shape(), element_bytes));
                               reader_.read(tensor, slab, room_);
                               body(room_.data(), slab.num_elements());
                               progress_.done_bytes += room_.size();
                               if (options_.progress) options_.progress(progress_);
                             });
  }

  const BoxReader& reader_;
  const StatsOptions& options_;
  const Executor executor_;
  std::vector<std::byte> room_;
  Progress progress_;
};

}  // namespace

std::vector<TensorStats> tensor_stats(const BoxReader& reader, std::span<const std::size_t> tensors,
                                      const StatsOptions& options) {
  if (options.bars < 0 || options.bars > kMostBars) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("look at tensors: found {} bars, needed 0 to {}", options.bars, kMostBars));
  }
  Looker looker(reader, tensors, options);
  std::vector<TensorStats> all;
  all.reserve(tensors.size());
  for (const std::size_t tensor : tensors) all.push_back(looker.look(tensor));
  return all;
}

}  // namespace shardwise
