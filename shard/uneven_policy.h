#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// How a dim of size S is cut into k tiles if k does not divide S. The policies place elements
/// differently, so different policies are never equal.
///
/// - ceil: blocks of b = ceil(S / k), tile i is [min(i*b, S), min((i+1)*b, S)). The axes of a dim
///   are merged before dividing. (XLA and PyTorch/XLA.)
/// - strict: as ceil, but it is an error if a dim does not divide evenly. (JAX.)
/// - nested_chunk: axis by axis, major first, each cuts the part that the one before left, by ceil.
///   Size 5 over 2x2 gives 2,1,1,1; ceil gives 2,2,1,0. (DTensor; torch.chunk.)
/// - balanced: sizes differ by one at most, the larger first. (numpy.array_split.)
/// - tile_sizes: the sizes are given, for tensors of one shape.
///
/// Empty tiles are at [S, S) under the first three.
///
/// Immutable value type.
///
///   UnevenPolicy::parse("balanced");
///   UnevenPolicy::tile_sizes({{3, 2}, {}});        // sizes:3+2,-: dim 0 in 3 + 2, dim 1 whole
class UnevenPolicy {
 public:
  enum class Kind { ceil, strict, nested_chunk, balanced, tile_sizes };

  UnevenPolicy() = default;  ///< ceil
  static UnevenPolicy ceil() { return UnevenPolicy(Kind::ceil); }
  static UnevenPolicy strict() { return UnevenPolicy(Kind::strict); }
  static UnevenPolicy nested_chunk() { return UnevenPolicy(Kind::nested_chunk); }
  static UnevenPolicy balanced() { return UnevenPolicy(Kind::balanced); }

  /// Per dim the size of each tile, in order; an empty list for a whole dim. Throws
  /// invalid_argument if a size is negative or their sum overflows.
  static UnevenPolicy tile_sizes(std::vector<std::vector<std::int64_t>> sizes);

  /// Reads "ceil", "strict", "nested_chunk" (or "nested"), "balanced", "sizes:3+2,-". Throws
  /// invalid_argument.
  static UnevenPolicy parse(std::string_view text);

  Kind kind() const { return kind_; }

  /// The sizes of tile_sizes; empty for other policies.
  const std::vector<std::vector<std::int64_t>>& sizes() const { return sizes_; }

  /// The form that parse() reads.
  std::string to_string() const;

  bool operator==(const UnevenPolicy&) const = default;

 private:
  explicit UnevenPolicy(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::ceil;
  std::vector<std::vector<std::int64_t>> sizes_;
};

}  // namespace shardwise
