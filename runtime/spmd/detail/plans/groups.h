#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise::detail {

/// Inputs that are cut alike: one tensor of layers that repeat, and the optimizer state of it.
struct InputGroup {
  std::vector<std::size_t> inputs;  ///< by Graph::inputs; the first stands for all
  TensorType type;                  ///< of each
  bool is_data = false;             ///< of the kind loader

  /// Of all of them, whole.
  std::size_t bytes() const {
    return num_bytes(type.shape, size_bytes(type.dtype)) * inputs.size();
  }
};

enum class Layers { together, apart };

/// All parameters, optimizer state and data of at least one dim. Layers are known by their labels:
/// "layers.3.wq" and "layers.4.wq", if layer 3 has another matrix beside wq. State goes with the
/// parameter of its shape whose label ends most alike.
std::vector<InputGroup> input_groups(const Graph& graph, Layers layers);

/// A group cut in one way.
struct GroupMark {
  std::size_t group;
  PartitionSpec spec;
};

/// The graph with these groups marked.
std::shared_ptr<const Graph> with_marks(const Graph& graph, const std::vector<InputGroup>& groups,
                                        const std::vector<GroupMark>& marks);

/// As --mark takes them, for each in turn.
std::vector<std::string> mark_texts(const Graph& graph, const std::vector<InputGroup>& groups,
                                    const std::vector<GroupMark>& marks);

/// As --mark takes it: "model.layers.*.wq=model,-", several if no pattern matches these inputs
/// alone.
std::vector<std::string> mark_texts(const Graph& graph, const std::vector<std::size_t>& inputs,
                                    const PartitionSpec& spec);

/// How a tensor may be cut: each axis over one of its dims, or none, as far as the dims divide
/// evenly; over the longest dims, if all make more than `most`. The first is whole.
std::vector<PartitionSpec> even_specs(const Shape& shape, const Mesh& mesh, std::size_t most);

}  // namespace shardwise::detail
