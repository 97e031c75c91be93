#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// The wanted cut of every tensor of a graph, as far as the marks determine it, and the tensor that
/// it comes from.
struct Propagation {
  /// By node. Inputs have the least tiles, as in specs.
  std::vector<Cut> cuts;

  /// By node and dim: the neighbour that the axes came from. The node itself if it is marked; -1 if
  /// the dim is not cut.
  std::vector<std::vector<NodeId>> origins;

  /// Two tensors of a node asked for different cuts.
  struct Conflict {
    NodeId node;
    NodeId kept, dropped;  ///< the tensors whose wishes these were
    std::string text;      ///< "found data on dim 0 of %3 and on dim 1 of %9, kept the larger"
  };
  std::vector<Conflict> conflicts;

  /// The factors of each node, for later passes.
  std::vector<FactorRule> rules;

  /// By Graph::outputs: the cut of each output. The next carries of a body leave as they come in.
  std::vector<Cut> outputs;

  /// By node, for scans and conds: the propagation of its body, and of a cond's other body, whose
  /// results leave like those of the first.
  std::map<NodeId, std::shared_ptr<const Propagation>> bodies, otherwise;

  /// Number of visits of nodes, the cost of the propagation.
  std::int64_t visits = 0;
};

/// Spreads the marks over the graph, through the factors that tensors share. The order puts the
/// strongest wishes first: element by element in both directions; forward through everything except
/// broadcasts that repeat; then backward and forward until nothing changes. Axes are only ever
/// added. If two tensors of one node ask for different cuts, the larger tensor decides. If they are
/// equally large, marks of data decide before marks of weights and optimizer state, and then the
/// earlier operand. (After Shardy's propagation by priorities.) Data counts as no less than the
/// tensors computed from it, and a table as no more than its looked-up rows: weights that are cut
/// to save memory do not outvote a batch. A node is visited again only after one of its tensors has
/// changed.
///
/// The bodies of a scan or cond are propagated with it: a tensor has the same cut inside and
/// outside, as far as neither has other axes, and so has a carry from trip to trip. Dim 0 of
/// stacked values does not take part.
///
/// Throws if a mark does not fit the mesh or its tensor, naming node and scope.
Propagation propagate(const Graph& graph, const Mesh& mesh);

/// Converts the cut of a stacked tensor to that of a slice, and the other way round.
Cut slice_cut(const Cut& stacked);
Cut stacked_cut(const Cut& slice);

/// All nodes with their cuts, one a line.
std::string dump(const Graph& graph, const Mesh& mesh, const Propagation& propagation);

/// The way back from a cut dim to the mark that its axes come from: at each neighbour, along the
/// dim that one of them cuts. Ends at the marked node, which may be the node itself (the way is
/// then empty), or at a loop, whose body explains the rest.
std::vector<NodeId> way_to_mark(const Graph& graph, const Propagation& propagation, NodeId node,
                                std::size_t dim);

/// "%17 dim 0 is cut by data: from %3, marked in \"attention\"", a line for each dim.
std::string explain(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                    NodeId node);

}  // namespace shardwise
