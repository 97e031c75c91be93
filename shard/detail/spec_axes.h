#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise::detail {

/// A mesh axis, or a part of one, that cuts a dim. A part is the middle factor of the axis seen as
/// pre x size x rest, major first.
struct SpecAxis {
  std::size_t dim, axis;
  std::int64_t pre, size;
  std::int64_t stride;  ///< positions between neighbours
};

/// The axes that a spec names on a mesh, in order of dims, major first within one. Throws
/// no_such_name for an unknown axis, invalid_argument if a part does not divide its axis or is used
/// twice.
std::vector<SpecAxis> resolve(const Mesh& mesh, const PartitionSpec& spec);

/// The axes, and parts of axes, that are not among `used`, in mesh order; `dim` means nothing.
/// Parts of size 1 are left out.
std::vector<SpecAxis> unused(const Mesh& mesh, const std::vector<SpecAxis>& used);

}  // namespace shardwise::detail
