#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

/// One tensor in row-major memory of somebody else's, who keeps it there and unchanged. Immutable.
class HostReader : public BoxReader {
 public:
  /// Requires as many bytes as the tensor has.
  HostReader(TensorInfo info, const std::byte* data)
      : info_(std::move(info)), whole_{data, Box::whole(info_.shape)} {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }

  void read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const override {
    copy_box(box, size_bytes(info_.dtype), whole_, {out.data(), box});
  }

  std::span<const std::byte> bytes() const {
    return {whole_.data, num_bytes(info_.shape, size_bytes(info_.dtype))};
  }

  const std::byte* contiguous(std::size_t /*tensor*/, const Box& box) const override {
    return find_contiguous(box, size_bytes(info_.dtype), whole_);
  }

 private:
  TensorInfo info_;
  ConstBoxView whole_;
};

}  // namespace shardwise::detail
