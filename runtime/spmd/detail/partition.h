#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/runtime/spmd/detail/cut.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

struct PartitionedBody;

/// A graph cut over a mesh: values, whose boxes the devices have, and steps that fill them, in
/// order. Plain data; lower() (detail/lower.h) makes the Program.
struct PartitionedGraph {
  using ValueId = std::int64_t;

  struct Value {
    NodeId node;  ///< whose tensor it is, or a part of the sum that is it
    Cut cut;
    AxisSet partial = 0;  ///< along these axes devices hold parts of a sum, still to be combined
    Reduction reduction = Reduction::sum;  ///< of the parts, or of those that it was made of
    bool is_wide = false;  ///< in f32, although the tensor is bf16 or f16: see sum_type()
  };

  /// One op on each device's part. If the result is wide, operands of the node's dtype are
  /// converted first.
  struct Compute {
    NodeId node;
    std::vector<ValueId> operands;
    ValueId result;
    bool only_converts = false;  ///< the result is the operand, which is wide if this is not
  };

  /// Moves data between devices.
  struct Move {
    ValueId from, to;
    CollectiveKind kind;
    AxisSet axes;            ///< combined over these, or cut differently
    std::size_t bytes;       ///< of the largest result on one device
    std::size_t wire_bytes;  ///< that one device sends in a ring; see docs/programs.md
    NodeId consumer;         ///< the node that asked for it, or the node itself
  };

  /// A scan or cond, whose bodies are cut separately. A cond has its scalar first among the
  /// operands, and another body.
  struct Loop {
    NodeId node;
    std::vector<ValueId> operands, results;
    std::shared_ptr<const PartitionedBody> body, otherwise;
  };

  using Step = std::variant<Compute, Move, Loop>;

  std::vector<Value> values;
  std::vector<Step> steps;

  /// As Graph::inputs and Graph::outputs.
  std::vector<ValueId> inputs, outputs;

  /// The alternatives for each node that had a choice, with their costs; for explain().
  std::vector<std::pair<NodeId, std::string>> choices;
};

/// A body of a scan or cond: inputs and outputs match the operands and results of the loop.
struct PartitionedBody {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<const Propagation> propagation;
  PartitionedGraph partitioned;
};

/// Calls reads(value) for each value that a step reads and makes(value) for each that it makes.
template <class Reads, class Makes>
void visit_step(const PartitionedGraph::Step& step, const Reads& reads, const Makes& makes) {
  if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step)) {
    for (const PartitionedGraph::ValueId operand : compute->operands) reads(operand);
    makes(compute->result);
  } else if (const auto* const move = std::get_if<PartitionedGraph::Move>(&step)) {
    reads(move->from);
    makes(move->to);
  } else {
    const auto& loop = std::get<PartitionedGraph::Loop>(step);
    for (const PartitionedGraph::ValueId operand : loop.operands) reads(operand);
    for (const PartitionedGraph::ValueId result : loop.results) makes(result);
  }
}

/// The type of the value's elements.
TensorType type_of(const Graph& graph, const PartitionedGraph::Value& value);

/// The number of times that the body runs; for a cond, 1.
std::int64_t trips(const Graph& graph, const PartitionedGraph::Loop& loop);

/// Cuts the ops of a graph over the mesh: each by the factors whose moves cost the fewest bytes,
/// given the cuts of its operands, and the wishes of the propagation. The cuts of outputs and
/// marked tensors are met exactly; outputs have the least tiles. Sums over cut dims stay parts of a
/// sum as long as they have one use and that is linear. They are then combined at the node where
/// they are cut least.
///
/// `input_cuts`: the existing cuts of the inputs, by Graph::inputs. Inputs that the propagation
/// cuts differently are moved first.
PartitionedGraph partition(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                           const std::vector<Cut>& input_cuts, const PartitionOptions& options);

/// One line per step, with cuts and bytes.
std::string dump(const Graph& graph, const Mesh& mesh, const PartitionedGraph& partitioned);

}  // namespace shardwise
