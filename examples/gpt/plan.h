#pragma once

#include <string>
#include <string_view>

#include "model.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace gpt {

/// As Mesh::parse; "1" is one device.
shardwise::Mesh parse_mesh(const std::string& text);

/// Spreads the model over a mesh. The batch is cut over the axes "data" and "fsdp" that the mesh
/// has, and in the plan "expert" over "expert". The plan says how the weights are cut; the
/// optimizer's state is cut like them.
class Plan {
 public:
  /// none: no cuts. data: weights whole, the batch cut. fsdp: each weight's longest dim that
  /// divides is cut over "fsdp", or over "data" if the mesh has no such axis. tensor: Megatron's
  /// columns and rows over "model". 2d: both. pipeline: the layers, which are stacked, over
  /// "stage", embedding and head by their tokens over it, and as in tensor if the mesh has "model".
  /// context: the positions over "context", expert: the experts over "expert"; both cut the other
  /// weights as in tensor if the mesh has "model".
  /// Throws invalid_argument for another word, or if the mesh lacks the axes.
  Plan(std::string_view name, const shardwise::Mesh& mesh);

  /// The recipe, with the axes of its experts. Throws invalid_argument if the plan "expert" has no
  /// experts, or a number of them that its axis does not divide.
  Recipe spread(Recipe recipe) const;

  shardwise::PartitionSpec weight(std::string_view name, const shardwise::Shape& shape) const;

  /// Spec of a batch, [batch, context].
  shardwise::PartitionSpec batch() const;

  /// Spec of a batch whose positions are in the order of zigzag(), for the plan "context".
  shardwise::PartitionSpec ordered_batch() const;

  /// Spec of a layer's keys or values that are kept while a text is continued, [batch, heads,
  /// positions, width / heads]: the heads are cut over "model" if the weights are.
  shardwise::PartitionSpec cache() const;

 private:
  shardwise::Mesh mesh_;
  std::string gather_axis_, tensor_axis_, stage_axis_, context_axis_, expert_axis_;  // empty: none
  shardwise::PartitionSpec::Entry batch_axes_;
};

}  // namespace gpt
