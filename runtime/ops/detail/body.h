#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/build.h"

// Graphs that are bodies of nodes of other graphs.

namespace shardwise::detail {

/// The body that is recorded in the graph, in one of that, and so on; else the graph.
Graph& innermost(Graph& graph);

/// The node, or the input of `graph` that stands for it: it may be of a graph around `graph`.
/// Throws invalid_argument if it is of none.
NodeId inside(Graph& graph, const NodeRef& node);

/// An input of a body for a node outside: of its type, or for a slice of it of another type, and of
/// the kind that it has if it is an input.
NodeId append_body_input(Graph& body, const NodeRef& from, std::string_view label,
                         std::optional<TensorType> type = {});

/// The type of a `result` node. Throws invalid_argument if its operand has no such result.
TensorType result_type(const Graph& graph, const Node& node);

/// The same graph with its inputs first, in their order, so that its text says the order.
Graph with_inputs_first(Graph graph);

/// How the parts of a scan's operands and results are numbered.
struct ScanParts {
  explicit ScanParts(const Node& scan);

  const ScanAttributes& attributes;
  std::size_t consts, carries, xs;  ///< of the operands, in this order
  std::size_t ys;                   ///< of the results, after the carries

  std::size_t first_x() const { return consts + carries; }
  const Graph& body() const { return *attributes.body; }
  NodeId input(std::size_t operand) const { return body().inputs[operand].node; }
  NodeId output(std::size_t result) const { return body().outputs[result]; }
};

/// A shape without its first dim, and with one more.
Shape slice_shape(const Shape& stacked);
Shape stacked_shape(std::int64_t length, const Shape& slice);

/// Whether each result of a scan depends on one of these operands, with floating values all the
/// way.
std::vector<bool> results_that_depend(const Node& scan, const std::vector<bool>& operands);

}  // namespace shardwise::detail
