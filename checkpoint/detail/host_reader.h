#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

/// Boxes of one tensor in row-major memory of somebody else's, who keeps it there and unchanged.
/// Immutable.
class HostReader : public BoxReader {
 public:
  /// Requires boxes inside the tensor that have no element in common.
  HostReader(TensorInfo info, std::vector<ConstBoxView> shards)
      : info_(std::move(info)), shards_(std::move(shards)) {}

  /// All of the tensor.
  HostReader(const TensorInfo& info, const std::byte* data)
      : HostReader(info, std::vector<ConstBoxView>{{data, Box::whole(info.shape)}}) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }

  /// Throws invalid_argument if a part of the box is in no shard.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;

  const std::byte* contiguous(std::size_t tensor, const Box& box) const override;

  std::span<const ConstBoxView> shards() const { return shards_; }

 private:
  TensorInfo info_;
  std::vector<ConstBoxView> shards_;
};

}  // namespace shardwise::detail
