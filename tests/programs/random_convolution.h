#pragma once

#include <random>

#include "shardwise/runtime/graph/attributes.h"

namespace shardwise {

struct RandomConvolution {
  ConvolutionAttributes attributes;
  Shape lhs, rhs;  ///< of operand and kernel
};

/// One to three spatial dims, any order of dims, strides, paddings (some negative), dilations of
/// both kinds, groups of features or images.
RandomConvolution random_convolution(std::mt19937& random);

/// The same for an operand of this shape, which has at least three dims.
RandomConvolution random_convolution(std::mt19937& random, const Shape& lhs);

/// Windows over a tensor of this shape: strides, dilations, paddings, some of them negative.
WindowAttributes random_windows(std::mt19937& random, const Shape& shape);

}  // namespace shardwise
