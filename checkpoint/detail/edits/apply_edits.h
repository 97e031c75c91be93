#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/edits.h"

// What edits make of tensors: which boxes of the source each new tensor consists of.
namespace shardwise::detail {

/// A tensor of the source, or a range of one of its dims, at its place in a new tensor.
struct EditedPart {
  std::size_t source = 0;
  std::vector<std::size_t> order = {};  ///< dim d of the new tensor is this one; empty: the same
  std::int64_t from = 0;                ///< where the range begins in the source
  std::int64_t begin = 0, end = 0;      ///< the range in the new tensor, of one with several parts
};

/// A new tensor. Its parts are side by side along `dim`, which a scalar has not.
struct EditedTensor {
  TensorInfo info;
  std::size_t dim = 0;
  std::vector<EditedPart> parts;

  /// The part's elements of a box of this tensor, as a box of this tensor.
  Box common(const EditedPart& part, Box box) const;

  /// Such a box in the part's source, and back.
  Box in_source(const EditedPart& part, const Box& box) const;
  Box from_source(const EditedPart& part, const Box& box) const;
};

/// Sorted by name. Throws as EditedTensors.
std::vector<EditedTensor> apply_edits(std::span<const TensorInfo> tensors, const TensorEdits& edits,
                                      std::string_view operation);

}  // namespace shardwise::detail
