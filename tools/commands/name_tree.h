#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"

namespace shardwise::tools {

/// Totals of some tensors.
struct TensorTotals {
  std::int64_t tensors = 0, elements = 0;
  std::size_t logical_bytes = 0;
  std::optional<std::size_t> stored_bytes = 0;  ///< absent: not known of one of them

  void add(const TensorInfo& tensor);
};

/// A line of a tree of names: a tensor, or a group of tensors whose names begin alike.
struct TreeLine {
  int level = 0;
  std::string name;                    ///< the part of this level, as "0." or "weight"
  const TensorInfo* tensor = nullptr;  ///< null: a group
  TensorTotals totals;
};

/// Names split after each '.' and '/', in natural order: "h.2." before "h.10.". A group with
/// one part is one line with that part. Of `depth` levels at most (negative: all); deeper ones are
/// only summed. The tensors must outlive the lines.
std::vector<TreeLine> name_tree(std::span<const TensorInfo> tensors, std::int64_t depth);

}  // namespace shardwise::tools
