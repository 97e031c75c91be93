#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/tensor.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

// A ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015), written as if for one
// device. The cuts of the images decide which part each device computes: some of the images, some
// rows of all images, or both.
namespace convnet {

struct Sizes {
  /// 18 and 50 as published; 8 has three stages of one block and begins with a stride of 2.
  std::int64_t depth = 8;
  std::int64_t width = 16;  ///< features of the first stage; 64 as published
  std::int64_t image = 28;  ///< height and width; from 64 on they are halved twice at first
  std::int64_t channels = 1, classes = 10;
  std::int64_t batch = 128;
};

/// Throws invalid_argument for an unknown depth.
void check(const Sizes& sizes);

/// A tensor before it has values.
struct Weight {
  std::string name;
  shardwise::Shape shape;
  double deviation;  ///< standard deviation of its first values; 0: all are `value`
  double value = 0;
};

/// In the order of the optimizer's updates.
std::vector<Weight> weights(const Sizes& sizes);

/// The running means and variances of batchnorm.
std::vector<Weight> statistics(const Sizes& sizes);

/// How images are cut over the axes of a mesh.
class Plan {
 public:
  /// "batch": the images over all axes. "spatial": the rows of each image. "both": the rows over
  /// the axis "space", the images over the others. Throws invalid_argument for another name, and if
  /// the mesh has no axis "space".
  Plan(std::string_view name, const shardwise::Mesh& mesh);

  shardwise::PartitionSpec images() const;  ///< of [images, rows, columns]
  shardwise::PartitionSpec labels() const;

 private:
  shardwise::PartitionSpec::Entry images_, rows_;
};

using Tensors = std::map<std::string, shardwise::Tensor>;

/// [images, classes]. image: [images, channels, rows, columns], f32. In training, batchnorm uses
/// the statistics of the batch, and `statistics` become the new running ones.
shardwise::Tensor logits(shardwise::Tracer& tracer, const Sizes& sizes, const Tensors& weights,
                         Tensors& statistics, const shardwise::Tensor& image, bool is_training);

}  // namespace convnet
