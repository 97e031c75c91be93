#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"

// A new tensor as a list of parts.
namespace shardwise::reshape_detail {

/// In EditedPart::order: a dim that the source has not.
inline constexpr std::size_t kNewDim = static_cast<std::size_t>(-1);

/// A tensor of the source, or a range of one of its dims, at its place in a new tensor.
struct EditedPart {
  std::size_t source = 0;
  std::size_t source_rank = 0;

  /// Dim d of the new tensor is this one of the source, or kNewDim. A dim of the source that is not
  /// among them is left out: of it, `from` is the one index. Empty: all dims, in their order.
  std::vector<std::size_t> order = {};
  bool is_scalar = false;  ///< the one dim of the source is left out

  std::int64_t from = 0;            ///< where the range begins in the source
  std::int64_t begin = 0, end = 0;  ///< the range in the new tensor, if it has several parts

  /// True if elements are in the source's order.
  bool keeps_order() const;
};

/// A new tensor. Its parts are side by side along `dim`.
struct EditedTensor {
  TensorInfo info;
  std::size_t dim = kNewDim;
  std::vector<EditedPart> parts;

  /// The part's elements of a box of this tensor, as a box of this tensor.
  Box common(const EditedPart& part, Box box) const;

  /// Such a box in the part's source, and back.
  Box in_source(const EditedPart& part, const Box& box) const;
  Box from_source(const EditedPart& part, const Box& box) const;
};

}  // namespace shardwise::reshape_detail
