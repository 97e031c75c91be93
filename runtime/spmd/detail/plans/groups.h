#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise::detail {

/// Inputs that are cut in the same way: one tensor of repeating layers, and its optimizer state.
struct InputGroup {
  std::vector<std::size_t> inputs;  ///< by Graph::inputs; the first stands for all
  TensorType type;                  ///< of each
  bool is_data = false;             ///< of the kind loader

  /// Bytes of all inputs of the group, uncut.
  std::size_t bytes() const {
    return num_bytes(type.shape, size_bytes(type.dtype)) * inputs.size();
  }
};

enum class Layers { together, apart };

/// All parameters, optimizer state and data of at least one dim. Layers are recognised by their
/// labels: "layers.3.wq" and "layers.4.wq", if layer 3 has another matrix besides wq. State belongs
/// to the parameter of its shape whose label has the longest common ending.
std::vector<InputGroup> input_groups(const Graph& graph, Layers layers);

/// A group cut in one way.
struct GroupMark {
  std::size_t group;
  PartitionSpec spec;
};

/// Marks of several groups, each at most once.
using Marks = std::vector<GroupMark>;

/// The graph with these groups marked.
std::shared_ptr<const Graph> with_marks(const Graph& graph, const std::vector<InputGroup>& groups,
                                        const Marks& marks);

/// In the form of --mark, for each group in turn.
std::vector<std::string> mark_texts(const Graph& graph, const std::vector<InputGroup>& groups,
                                    const Marks& marks);

/// In the form of --mark: "model.layers.*.wq=model,-"; several if no pattern matches only these
/// inputs.
std::vector<std::string> mark_texts(const Graph& graph, const std::vector<std::size_t>& inputs,
                                    const PartitionSpec& spec);

/// Possible cuts of a tensor: each axis over one of its dims, or none, as far as the dims divide
/// evenly; only over the longest dims if there would be more than `most`. The first is whole.
std::vector<PartitionSpec> even_specs(const Shape& shape, const Mesh& mesh, std::size_t most);

}  // namespace shardwise::detail
