#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/tensor.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/partition_spec.h"

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

/// A layer's perceptron as a mixture of experts.
struct Experts {
  std::int64_t count = 0;  ///< of a layer; 0: the perceptron is one
  std::int64_t top_k = 2;  ///< experts of a token
  double capacity = 1.25;  ///< of the experts over the sequence's choices; 0: nothing is dropped
  double balance = 0.01;   ///< weight of the layers' balance in the loss
  /// As in shardwise::ExpertsOptions. See Plan::spread().
  shardwise::PartitionSpec::Entry group_axes = {}, expert_axes = {};

  /// Tokens of a sequence of `tokens` that an expert takes.
  std::int64_t places(std::int64_t tokens) const;
};

/// Further choices of a run. The defaults make a GPT-2.
struct Recipe {
  Activation activation = Activation::gelu;
  Norm norm = Norm::layer;
  double dropout = 0;  ///< share of the outputs of attention and the perceptron that is dropped
  double clip = 0;     ///< largest common norm of the gradients; 0: no limit
  Recompute recompute = Recompute::none;
  bool scan = false;        ///< all layers are one scan, and their weights are stacked along dim 0
  std::int64_t stages = 0;  ///< with `scan`: of a pipeline of the layers; 0: no pipeline
  std::int64_t micro_batches = 0;   ///< of the pipeline
  std::int64_t context_blocks = 0;  ///< of ring attention; 0: attention on each device's positions
  Experts experts = {};
};

/// Throws invalid_argument if the heads do not divide the width, for impossible experts, and for
/// experts in a pipeline.
void check(const Sizes& sizes, const Recipe& recipe);

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

using Weights = std::map<std::string, shardwise::Tensor>;

/// The parts of the transformer, on its weights: norms come before attention and before the
/// perceptron. Keeps a reference to the tracer.
class Blocks {
 public:
  /// The values that the queries see, of q's shape: q, k, v are [batch, positions, heads, width /
  /// heads].
  using Attention = std::function<shardwise::Tensor(
      const shardwise::Tensor& q, const shardwise::Tensor& k, const shardwise::Tensor& v)>;
  /// One of a layer's two results, 0 (attention) or 1 (perceptron), as it is added to h.
  using Dropout = std::function<shardwise::Tensor(const shardwise::Tensor& x, double which)>;

  Blocks(shardwise::Tracer& tracer, const Sizes& sizes, const Recipe& recipe, Weights weights)
      : tracer_(tracer), sizes_(sizes), recipe_(recipe), weights_(std::move(weights)) {}

  const shardwise::Tensor& weight(const std::string& name) const { return weights_.at(name); }

  /// The weights of a layer by their last names, "wq"; if they are stacked, as slices.
  Weights layer_weights(std::int64_t number) const;

  /// The weights of all layers that are stacked, by their last names.
  Weights stacked_weights() const;

  struct After {
    shardwise::Tensor h;
    std::vector<shardwise::Tensor> mixture;  ///< of experts: Mixture::balance and dropped
  };

  /// h [batch, positions, width] after a layer with the weights `own`.
  After layer(const shardwise::Tensor& h, const Weights& own, const Attention& attention,
              const Dropout& dropout) const;

  /// h after the last layer as logits of the vocabulary.
  shardwise::Tensor logits(const shardwise::Tensor& h) const;

 private:
  Weights of(const std::string& prefix) const;
  shardwise::Tensor normed(const shardwise::Tensor& x, const Weights& from,
                           const std::string& number) const;
  shardwise::Tensor perceptron(const shardwise::Tensor& x, const Weights& own) const;

  shardwise::Tracer& tracer_;
  Sizes sizes_;
  Recipe recipe_;
  Weights weights_;
};

struct Loss {
  shardwise::Tensor mean;
  std::optional<shardwise::Tensor> dropped;  ///< of experts: f32, choices that found no place
};

/// The mean of -log p(target) over all positions, written as if for one device; with experts, their
/// weighted balance is added. tokens, targets: [batch, context], i32. `step`, a scalar, decides
/// what dropout drops. With Recipe::context_blocks, positions of tokens and targets are in the
/// order of zigzag().
Loss loss(shardwise::Tracer& tracer, const Sizes& sizes, const Recipe& recipe,
          const Weights& weights, const shardwise::Tensor& step, const shardwise::Tensor& tokens,
          const shardwise::Tensor& targets);

}  // namespace gpt
