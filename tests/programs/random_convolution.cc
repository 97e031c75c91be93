#include "random_convolution.h"

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

std::int64_t draw(std::mt19937& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random()) % (most - least + 1);
}

Dims shuffled(std::mt19937& random, std::size_t rank) {
  Dims dims;
  for (std::size_t d = 0; d < rank; ++d) dims.push_back(static_cast<std::int64_t>(d));
  std::shuffle(dims.begin(), dims.end(), random);
  return dims;
}

std::int64_t divisor(std::mt19937& random, std::int64_t of) {
  const std::int64_t number = draw(random, 1, std::max<std::int64_t>(of, 1));
  return of % number == 0 ? number : 1;
}

/// `may_be_large`: along one dim, now and then, a kernel is larger than the part of any device.
RandomConvolution convolution_of(std::mt19937& random, const Shape& lhs, bool may_be_large) {
  RandomConvolution made{{}, lhs, Dims::filled(lhs.size(), 1)};
  ConvolutionAttributes& a = made.attributes;
  a.lhs = shuffled(random, lhs.size());
  a.rhs = shuffled(random, lhs.size());
  a.out = shuffled(random, lhs.size());
  const std::int64_t images = lhs[as_size(a.lhs[0])], features = lhs[as_size(a.lhs[1])];
  const std::int64_t which = draw(random, 0, 3);
  if (which == 0) a.feature_groups = divisor(random, features);
  if (which == 1) a.batch_groups = divisor(random, images);
  made.rhs[as_size(a.rhs[0])] = a.feature_groups * a.batch_groups * draw(random, 1, 3);
  made.rhs[as_size(a.rhs[1])] = features / a.feature_groups;
  const auto large = static_cast<std::size_t>(may_be_large ? draw(random, 2, 12) : 12);
  for (std::size_t i = 2; i < lhs.size(); ++i) {
    const bool is_large = i == large;
    made.rhs[as_size(a.rhs[i])] = draw(random, 1, is_large ? 9 : 3);
    a.stride.push_back(draw(random, 1, is_large ? 4 : 2));
    a.lhs_dilation.push_back(draw(random, 0, 3) == 0 ? draw(random, 2, is_large ? 3 : 2) : 1);
    a.rhs_dilation.push_back(draw(random, 0, 3) == 0 ? draw(random, 2, is_large ? 3 : 2) : 1);
    a.low.push_back(draw(random, -1, is_large ? 8 : 2));
    // At least nothing is left of a dim.
    a.high.push_back(
        std::max(draw(random, -1, is_large ? 8 : 2), -lhs[as_size(a.lhs[i])] - a.low[i - 2]));
  }
  return made;
}

}  // namespace

RandomConvolution random_convolution(std::mt19937& random) {
  Shape lhs;
  for (std::int64_t dims = draw(random, 3, 5); dims > 0; --dims) {
    lhs.push_back(draw(random, 1, dims > 2 ? 6 : 9));
  }
  return convolution_of(random, lhs, true);
}

RandomConvolution random_convolution(std::mt19937& random, const Shape& lhs) {
  return convolution_of(random, lhs, false);
}

WindowAttributes random_windows(std::mt19937& random, const Shape& shape) {
  WindowAttributes a;
  for (const std::int64_t extent : shape) {
    const bool is_plain = draw(random, 0, 2) == 0;
    a.window.push_back(is_plain ? 1 : draw(random, 1, 4));
    a.stride.push_back(is_plain ? 1 : draw(random, 1, 3));
    a.dilation.push_back(draw(random, 0, 3) == 0 ? 2 : 1);
    a.low.push_back(is_plain ? 0 : draw(random, -1, 3));
    a.high.push_back(is_plain ? 0
                              : std::max(draw(random, -1, 3), -extent - a.low[a.low.size() - 1]));
  }
  return a;
}

}  // namespace shardwise
