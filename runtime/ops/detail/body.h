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

/// The innermost open body in the graph, else the graph itself.
GraphBuilder& innermost(GraphBuilder& graph);

/// The node, or the input of `graph` that stands for it: it may belong to a graph around `graph`.
/// Throws invalid_argument if it belongs to neither.
NodeId inside(GraphBuilder& graph, const NodeRef& node);

/// Appends an input of a body for a node outside: of its type, or for a slice of it of another
/// type, and of its kind if it is an input.
NodeId append_body_input(GraphBuilder& body, const NodeRef& from, std::string_view label,
                         const std::optional<TensorType>& type = {});

/// The type of a `result` node. Throws invalid_argument if its operand has no such result.
TensorType result_type(const Graph& graph, const Node& node);

/// A graph for the body of a node in `outside`, in the scope that is open there.
GraphBuilder new_body(GraphBuilder& outside);

/// While it lives, nodes are appended to the body.
class OpenBody {
 public:
  OpenBody(GraphBuilder& outside, GraphBuilder& body) : outside_(outside) { outside.body = &body; }
  ~OpenBody() { outside_.body = nullptr; }
  OpenBody(const OpenBody&) = delete;
  OpenBody& operator=(const OpenBody&) = delete;

 private:
  GraphBuilder& outside_;
};

/// The same graph with its inputs first, in order, so that its text shows the order.
Graph with_inputs_first(Graph&& graph);

/// Maps the operands and results of a scan or a cond to those of a body: a cond has no carries, and
/// nothing is stacked. Keeps a reference to the node's body.
struct BodyParts {
  enum class Which { first, otherwise };
  explicit BodyParts(const Node& node, Which which = Which::first);

  std::shared_ptr<const Graph> graph;
  std::int64_t length = 1;
  bool reverse = false, is_loop = false;
  std::size_t skip = 0;             ///< operands before those of the body: the scalar of a cond
  std::size_t consts, carries, xs;  ///< of the body's inputs, in this order
  std::size_t ys;                   ///< of the results, after the carries

  std::size_t first_x() const { return consts + carries; }
  std::size_t inputs() const { return consts + carries + xs; }
  bool is_stacked(std::size_t result) const { return is_loop && result >= carries; }
  const Graph& body() const { return *graph; }
  NodeId input(std::size_t i) const { return body().inputs[i].node; }
  NodeId output(std::size_t result) const { return body().outputs[result]; }
};

/// True for a cond, which has two bodies.
bool has_otherwise(const Node& node);

/// A shape without its first dim, and with one more.
Shape slice_shape(const Shape& stacked);
Shape stacked_shape(std::int64_t length, const Shape& slice);

/// Per result of a scan or cond, true if it depends on one of these operands, with floating values
/// all the way.
std::vector<bool> results_that_depend(const Node& node, const std::vector<bool>& operands);

}  // namespace shardwise::detail
