#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reference_numbers.h"
#include "shardwise/runtime/graph/graph.h"

namespace shardwise {

/// A tensor as the reference computes it: one number for each element, row-major.
struct ReferenceTensor {
  TensorType type;
  std::vector<Number> elements;

  /// It depends on an op whose exact value few numbers can hold: exp, say.
  bool inexact = false;
};

/// The meaning of every op but those of manual regions, written index by index from op.h and
/// without the kernels: all nodes of a graph, given its inputs. For tests.
std::vector<ReferenceTensor> interpret(const Graph& graph,
                                       std::span<const std::vector<std::byte>> inputs);

}  // namespace shardwise
