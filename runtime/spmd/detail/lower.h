#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {

struct LoweredBody;  // control/lower_body.h

/// The bodies of a loop; a cond has two.
struct LoweredBodies {
  std::shared_ptr<const LoweredBody> body, otherwise;
};

/// A partitioned graph as a Program.
struct LoweredProgram {
  Program program;

  /// By Graph::inputs and Graph::outputs. An output may be an input, and two may be one value.
  std::vector<Program::ValueId> inputs, outputs;

  /// By step: the operands whose memory a result may take over once they are not needed. The result
  /// has the same bytes and is written element by element, or is their sum over devices, or the
  /// operand with an update.
  struct InPlace {
    Program::ValueId operand, result;
  };
  std::vector<std::vector<InPlace>> in_place;

  /// By value: the value whose bytes it has, which need not be copied; else itself. Also their
  /// offset in each of its shards.
  std::vector<Program::ValueId> alias_of;
  std::vector<std::size_t> alias_offsets;

  /// By value: the node whose tensor, or part of a sum, it is.
  std::vector<NodeId> nodes;

  /// By step, for loops.
  std::map<std::size_t, LoweredBodies> bodies;
};

/// Implements the fused steps by the kernels of the op table. The program keeps the graph.
LoweredProgram lower(std::shared_ptr<const Graph> graph, const Mesh& mesh,
                     const PartitionedGraph& partitioned, const std::vector<FusedStep>& steps,
                     NanCheck nan_check, MovePlans move_plans);

}  // namespace shardwise
