#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shardwise/runtime/tensor.h"
#include "shardwise/runtime/tracer.h"

namespace gpt {

struct Sizes {
  std::int64_t layers = 4, width = 128, heads = 4, context = 128, batch = 16;
  std::int64_t vocabulary = 256;  ///< tokens are bytes
};

enum class Activation { gelu, gelu_erf, silu };
enum class Norm { layer, rms };

/// The parts of a layer that are recomputed for its gradient instead of kept: none; all but matrix
/// products; all but the results of attention and perceptron; all.
enum class Recompute { none, elementwise, inside, all };

/// Further choices of a run. The defaults make a GPT-2.
struct Recipe {
  Activation activation = Activation::gelu;
  Norm norm = Norm::layer;
  double dropout = 0;  ///< share of the outputs of attention and the perceptron that is dropped
  double clip = 0;     ///< largest common norm of the gradients; 0: no limit
  Recompute recompute = Recompute::none;
  bool scan = false;        ///< all layers are one scan, and their weights are stacked along dim 0
  std::int64_t stages = 0;  ///< with `scan`: of a pipeline of the layers; 0: no pipeline
  std::int64_t micro_batches = 0;  ///< of the pipeline
};

/// A weight before it has values.
struct Weight {
  std::string name;
  shardwise::Shape shape;
  double deviation;  ///< standard deviation of its first values; 0: all are `value`
  double value = 0;
};

/// All weights, in the order of the optimizer's updates: "l0.wq", "l1.wq", ..; with Recipe::scan,
/// "layers.wq" stands for those of all layers.
std::vector<Weight> weights(const Sizes& sizes, const Recipe& recipe = {});

/// The mean of -log p(target) over all positions: a transformer with norms before attention and
/// before the perceptron, written as if for one device. tokens, targets: [batch, context], i32.
/// `step`, a scalar, decides what dropout drops.
shardwise::Tensor loss(shardwise::Tracer& tracer, const Sizes& sizes, const Recipe& recipe,
                       const std::map<std::string, shardwise::Tensor>& weights,
                       const shardwise::Tensor& step, const shardwise::Tensor& tokens,
                       const shardwise::Tensor& targets);

}  // namespace gpt
