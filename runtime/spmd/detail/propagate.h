#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// How every tensor of a graph is to be cut, as far as the marks say, and which tensor that comes
/// from.
struct Propagation {
  /// By node. Inputs have the least tiles, as specs say.
  std::vector<Cut> cuts;

  /// By node and dim: the neighbour that the axes came from. The node itself if it is marked; -1 if
  /// nothing cuts the dim.
  std::vector<std::vector<NodeId>> origins;

  /// Two tensors of a node asked for different things.
  struct Conflict {
    NodeId node;
    NodeId kept, dropped;  ///< the tensors whose wishes these were
    std::string text;      ///< "found data on dim 0 of %3 and on dim 1 of %9, kept the larger"
  };
  std::vector<Conflict> conflicts;

  /// The factors of each node, for those that come after.
  std::vector<FactorRule> rules;

  /// By Graph::outputs: how each leaves. The next carries of a body leave as they come in.
  std::vector<Cut> outputs;

  /// By node that is a scan or cond: of its body, and of the other one of a cond, whose results
  /// leave as those of the first.
  std::map<NodeId, std::shared_ptr<const Propagation>> bodies, otherwise;

  /// Visits of nodes: what it took.
  std::int64_t visits = 0;
};

/// Spreads the marks over the graph, through the factors that tensors share. In this order, so that
/// the strongest wishes are heard first: element by element in both directions; forward through
/// everything but broadcasts that repeat; then backward and forward until nothing changes. Axes are
/// only ever added. If two tensors of one node ask for different things, the larger tensor decides.
/// Of equally large ones, marks of data decide before marks of weights and optimizer state, and
/// then the earlier operand. (After Shardy's propagation by priorities.) Data counts as no less
/// than what is computed from it, and a table as no more than what is looked up: weights that are
/// cut to save memory do not outvote a batch. A node is visited again only after one of its tensors
/// has changed.
///
/// The bodies of a scan or cond are propagated with it: a tensor that goes in or comes out is cut
/// as what it is there, as far as neither has other axes, and so is a carry from time to time. Dim
/// 0 of what is stacked says nothing and is told nothing.
///
/// Throws if a mark does not fit the mesh or its tensor, naming node and scope.
Propagation propagate(const Graph& graph, const Mesh& mesh);

/// How a slice of a stacked tensor is cut, and the other way round.
Cut slice_cut(const Cut& stacked);
Cut stacked_cut(const Cut& slice);

/// All nodes with their cuts, one a line.
std::string dump(const Graph& graph, const Mesh& mesh, const Propagation& propagation);

/// The way back from a dim that is cut to the mark that its axes come from: by the dim of each
/// neighbour that one of them cuts. Ends at the marked node, which may be the node itself (the way
/// is empty then), or at a loop, whose body says more.
std::vector<NodeId> way_to_mark(const Graph& graph, const Propagation& propagation, NodeId node,
                                std::size_t dim);

/// "%17 dim 0 is cut by data: from %3, marked in \"attention\"", a line for each dim.
std::string explain(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                    NodeId node);

}  // namespace shardwise
