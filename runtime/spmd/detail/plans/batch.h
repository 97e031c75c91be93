#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise::detail {

/// A program whose batch is known: dim 0 of all its data. Which dims of other tensors grow with it
/// is what a mark on it says: a dim that would be cut by the batch's axis.
class BatchSize {
 public:
  /// Of a program without loops and manual regions, whose data has one extent of dim 0 in common:
  /// else get() is 0.
  explicit BatchSize(std::shared_ptr<const Graph> graph);

  /// 0: cannot be told.
  std::int64_t get() const { return batch_; }

  /// Why it cannot be told.
  const std::string& refused() const { return refused_; }

  /// The program for another batch. Throws unsupported or invalid_argument if it has parts that say
  /// the batch in another way than by shapes: a slice of it, a literal.
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
