#pragma once

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/graph/op.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// Writes our runtime's results of nodes for lax_test.py, which asks jax.lax for the same.
/// A case is a node: its op and attributes, its operands and its results, on one
/// device and on several. Thread-compatible.
class LaxCases {
 public:
  /// Writes arrays to `path`.bin, and on close() their description to `path`.json.
  explicit LaxCases(const std::string& path);

  /// A case for each node that is in no manual region. All nodes are computed on one device, one by
  /// one; then the outputs alone, fused, on one device and, marked as the graph is, on `mesh`.
  /// `origin` is for people.
  void add(const std::string& origin, const Graph& graph,
           const std::vector<std::vector<std::byte>>& inputs, const Mesh& mesh,
           bool zeros_have_signs);

  /// One case whose operands are the inputs of the graph and whose result is its only output, as
  /// the mesh gives it: `node` is in a manual region.
  void add_region(const Graph& graph, const std::vector<std::vector<std::byte>>& inputs,
                  const Mesh& mesh, NodeId node);

  /// A case for each output of a program with a scan, as the mesh gives it: `name` says which
  /// program of lax_test.py computes the same of the inputs.
  void add_scan(const std::string& name, const Graph& graph,
                const std::vector<std::vector<std::byte>>& inputs, const Mesh& mesh);

  void close();

 private:
  std::size_t add_array(const TensorType& type, const std::vector<std::byte>& bytes);

  std::string path_;
  std::ofstream data_;
  std::size_t bytes_ = 0;
  std::vector<std::string> arrays_, cases_;
};

/// Cases for every op, each with all dtypes that it takes, of numbers that are easily computed
/// wrongly: NaN, zeros of both signs, infinities, the extremes of each dtype.
void add_lax_table(LaxCases& cases);

}  // namespace shardwise
