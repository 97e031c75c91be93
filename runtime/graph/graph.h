#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/graph/op.h"
#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise {

/// Nodes are numbered from 0 on; a node's operands come before it.
using NodeId = std::int64_t;

/// One tensor of a program and how it is computed.
struct Node {
  Op op;
  TensorType type = {};
  std::vector<NodeId> operands = {};
  Attributes attributes = {};

  /// The user's mark: how to cut the tensor over the mesh.
  std::optional<PartitionSpec> mark = {};

  /// The scope that it was recorded in: an index of Graph::scopes.
  std::int32_t scope = 0;

  /// It belongs to a gradient.
  bool backward = false;

  /// It is in a manual region: its type is that of each device's part.
  bool manual = false;

  /// The block of checkpoint() that it was recorded in, from 1 on; 0: no block.
  std::int32_t block = 0;
  bool is_saved = false;  ///< the block's policy keeps it
};

/// A leaf with a value from outside.
struct GraphInput {
  NodeId node;
  std::string label;  ///< for people: "w1"
  MemoryKind kind = MemoryKind::array;
};

/// A program written as if for one device: tensors of global shape, each computed from others. A
/// plain value; a GraphBuilder builds it, and append() (ops/build.h) checks each node.
///
/// Thread-compatible.
struct Graph {
  std::vector<Node> nodes;
  std::vector<GraphInput> inputs;
  std::vector<NodeId> outputs;
  std::vector<std::string> scopes = {""};  ///< "layer0/attention"

  const Node& node(NodeId id) const { return nodes[static_cast<std::size_t>(id)]; }
  Node& node(NodeId id) { return nodes[static_cast<std::size_t>(id)]; }
};

/// The values that a block of checkpoint() (ops/autodiff.h) keeps for its gradient, in addition to
/// its inputs and outputs. All others are computed again. Both fields may be set.
struct CheckpointPolicy {
  bool save_products = false;                ///< of matrices and convolutions: JAX's dots_saveable
  std::vector<std::string> save_names = {};  ///< of checkpoint_name(): save_only_these_names
};

/// A graph and the state of its recording: append() (ops/build.h) adds a node to it.
///
/// Thread-compatible.
struct GraphBuilder : Graph {
  GraphBuilder() = default;

  /// Continues a graph; its blocks of checkpoint() keep their numbers.
  GraphBuilder(Graph graph);

  std::int32_t scope = 0;  ///< of nodes that are appended now
  bool backward = false;
  std::int32_t block = 0;   ///< that is open; 0: none
  std::int32_t blocks = 0;  ///< opened so far
  CheckpointPolicy policy;  ///< of the open block

  /// While the body of a scan or cond is recorded. In the body's builder, `outside` is the one
  /// around it; each of its nodes that the body uses is an input of the body. In the builder
  /// around, `body` is the body, to which new nodes are appended.
  GraphBuilder *outside = nullptr, *body = nullptr;
  struct Used {
    NodeId outside, inside;
  };
  std::vector<Used> used = {};
};

/// Same ops, shapes, marks and order; labels, scopes and blocks do not count. Equal graphs have one
/// hash.
std::uint64_t hash(const Graph& graph);
bool same_program(const Graph& a, const Graph& b);

/// "%17 = dot_general(%3, %9) \"btd,df->btf\" : f32[16, 128, 512] marked data,-,model", without
/// line end.
std::string to_string(const Graph& graph, NodeId id);

/// The scope of something recorded, for messages: ` in "layer0/attention"`; "" if no scope was
/// open.
std::string in_scope(const Graph& graph, std::int32_t scope);

/// The last name of a scope whose operations are one kernel on a device: attention whose scores
/// stay on the chip. A second one in the same scope is called "fused attention [2]". A plan may
/// treat them as if they took no memory: Attention::fused.
inline constexpr std::string_view kFusedAttention = "fused attention";

/// True if the scope is that of a kernel.
bool is_of_fused_attention(const Graph& graph, std::int32_t scope);

/// "fused" if operations are in such a scope, also in loops and branches; "written" for the output
/// of with_written_attention(); else "".
std::string_view planned_attention(const Graph& graph);

/// The same program without kernels, also in its loops and branches: their scopes are called
/// "written attention".
std::shared_ptr<const Graph> with_written_attention(const std::shared_ptr<const Graph>& graph);

/// By node: true if only operations of one kernel, in the same pass, use it. Empty without kernels.
std::vector<bool> within_kernels(const Graph& graph);

/// to_string() and the node's scope, for messages.
std::string with_scope(const Graph& graph, NodeId id);

/// All nodes, one per line, and bodies in braces after their node; the same text for the same
/// graph. The text is complete except for the elements of literals, which it names by their hash:
/// parse_graph() (ops/build.h) reads it.
std::string dump(const Graph& graph);

/// The nodes of its literals, and of those in bodies; one for each hash.
std::vector<const Node*> literals(const Graph& graph);

}  // namespace shardwise
