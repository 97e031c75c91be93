#pragma once

#include <string>
#include <string_view>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace gpt {

/// Spreads the model over a mesh. The batch is cut over the axis "data" or "fsdp" (or both), if the
/// mesh has one. The plan says how the weights are cut; the optimizer's state is cut like them.
class Plan {
 public:
  /// none: no cuts. data: weights whole, the batch cut. fsdp: each weight's longest dim that
  /// divides is cut over "fsdp", or over "data" if the mesh has no such axis. tensor: Megatron's
  /// columns and rows over "model". 2d: both. pipeline: the layers, which are stacked, over
  /// "stage", and as in tensor if the mesh has "model". Throws invalid_argument for another word,
  /// or if the mesh lacks the axes.
  Plan(std::string_view name, const shardwise::Mesh& mesh);

  shardwise::PartitionSpec weight(std::string_view name, const shardwise::Shape& shape) const;

  /// Spec of a batch, [batch, context].
  shardwise::PartitionSpec batch() const;

 private:
  shardwise::Mesh mesh_;
  std::string gather_axis_, tensor_axis_, stage_axis_;  // empty: none
  shardwise::PartitionSpec::Entry batch_axes_;
};

}  // namespace gpt
