#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model.h"
#include "shardwise/loader/loader.h"
#include "shardwise/runtime/device.h"

namespace convnet {

/// A network, its momenta and its running statistics on a mesh.
class Training {
 public:
  /// Keeps a reference to `devices`. Throws as check() and Plan.
  Training(shardwise::Devices& devices, const shardwise::Mesh& mesh, const Plan& plan,
           const Sizes& sizes);

  /// Random weights; the same on every mesh.
  void begin(std::uint64_t seed);

  /// Weights without values, so that step() can only be planned.
  void begin_abstract();

  /// Placements of the fields "image" and "label" for a loader.
  std::vector<shardwise::FieldPlacement> placements() const;

  /// One step of stochastic gradient descent with momentum. Returns the batch's mean loss.
  double step(const shardwise::Batch& batch, double rate);

  /// The same step for images and labels without values, planned.
  std::shared_ptr<const shardwise::Executable> plan_step();

  /// How many of the batch's valid rows get the right label.
  std::int64_t count_correct(const shardwise::Batch& batch);

  const shardwise::Tracer& tracer() const { return tracer_; }

 private:
  void make(const std::function<shardwise::Tensor(const Weight&, shardwise::MemoryKind)>& tensor);
  shardwise::Tensor record_step(const shardwise::Tensor& image, const shardwise::Tensor& label,
                                const shardwise::Tensor& rate);

  shardwise::Mesh mesh_;
  Plan plan_;
  Sizes sizes_;
  shardwise::Tracer tracer_;
  std::vector<std::string> names_;
  std::vector<shardwise::Tensor> weights_, velocities_;
  Tensors statistics_;
};

}  // namespace convnet
