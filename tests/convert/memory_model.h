#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/weight_bytes.h"
#include "shardwise/checkpoint/box_reader.h"
#include "testing/host_tensor.h"

namespace shardwise {

/// Tensors in memory.
class Model final : public BoxReader {
 public:
  explicit Model(std::vector<HostTensor> tensors) : tensors_(std::move(tensors)) {
    for (const HostTensor& tensor : tensors_) {
      infos_.push_back(
          {.name = tensor.name, .dtype = tensor.spec.dtype, .shape = tensor.spec.shape});
    }
  }
  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const std::vector<std::byte> part = tensors_[tensor].part(box);
    std::copy(part.begin(), part.end(), out.begin());
  }

 private:
  std::vector<HostTensor> tensors_;
  std::vector<TensorInfo> infos_;
};

inline HostTensor whole_tensor(std::string name, DType dtype, const Shape& shape,
                               std::uint64_t seed = 1) {
  std::string spec;
  for (std::size_t d = 0; d < shape.size(); ++d) spec += d == 0 ? "-" : ",-";
  return host_tensor(std::move(name), dtype, shape, "x=1", spec, Values::noise, seed);
}

/// The same tensors, in any order, bit for bit.
inline void expect_same(const BoxReader& a, const BoxReader& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    const TensorInfo& info = a.tensors()[t];
    std::size_t other = 0;
    while (other + 1 < b.tensors().size() && b.tensors()[other].name != info.name) ++other;
    EXPECT_EQ(b.tensors()[other].name, info.name);
    EXPECT_EQ(b.tensors()[other].dtype, info.dtype);
    ASSERT_EQ(b.tensors()[other].shape, info.shape);
    EXPECT_TRUE(all_of(a, t) == all_of(b, other)) << info.name;
  }
}

}  // namespace shardwise
