#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise::detail {

/// A program with a known batch size: dim 0 of all its data. A mark on the batch shows which dims
/// of other tensors grow with it: those that would be cut by the batch's axis.
class BatchSize {
 public:
  /// Accepts programs without loops and manual regions, whose data have one common extent of dim 0;
  /// for others get() is 0.
  explicit BatchSize(std::shared_ptr<const Graph> graph);

  /// 0 if unknown.
  std::int64_t get() const { return batch_; }

  /// The reason why it is unknown.
  const std::string& refused() const { return refused_; }

  /// The program for another batch. Throws unsupported or invalid_argument if parts of it depend on
  /// the batch in other ways than by shapes: a slice of it, a literal.
  std::shared_ptr<const Graph> with(std::int64_t batch) const;

 private:
  void find_batch();
  void find_dims();
  std::int64_t scaled(std::int64_t extent, std::int64_t batch) const;
  void scale_attributes(Graph& graph, NodeId id, std::int64_t batch) const;

  std::shared_ptr<const Graph> graph_;
  std::int64_t batch_ = 0;
  std::string refused_;
  std::vector<std::vector<bool>> grows_;  ///< by node and dim
};

}  // namespace shardwise::detail
