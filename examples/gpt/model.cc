#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/experts.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/shard/error.h"

namespace gpt {

namespace sw = shardwise;

namespace {

sw::Tensor activated(const sw::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return sw::gelu(x);
    case Activation::gelu_erf:
      return sw::gelu_erf(x);
    case Activation::silu:
      return sw::silu(x);
  }
  return x;
}

sw::CheckpointPolicy policy(Recompute recompute) {
  if (recompute == Recompute::elementwise) return {.save_products = true};
  if (recompute == Recompute::inside) return {.save_names = {"attention", "perceptron"}};
  return {};
}

[[noreturn]] void refuse_recipe(const std::string& found_and_needed) {
  throw sw::Error(sw::ErrorCode::invalid_argument, found_and_needed);
}

sw::Shape stacked(std::int64_t extent, const sw::Shape& shape) {
  sw::Shape all{extent};
  for (const std::int64_t one : shape) all.push_back(one);
  return all;
}

}  // namespace

std::int64_t Experts::places(std::int64_t tokens) const {
  if (capacity == 0) return tokens;
  const double even = static_cast<double>(tokens * top_k) / static_cast<double>(count);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(capacity * even)));
}

void check(const Sizes& sizes, const Recipe& recipe) {
  if (sizes.width % sizes.heads != 0) {
    refuse_recipe(fmt::format("found {} heads for a width of {}, needed a divisor", sizes.heads,
                              sizes.width));
  }
  const Experts& experts = recipe.experts;
  if (experts.count < 0 ||
      (experts.count > 0 && (experts.top_k < 1 || experts.top_k > experts.count))) {
    refuse_recipe(fmt::format("found {} of {} experts for a token, needed 1 to all of them",
                              experts.top_k, experts.count));
  }
  if (!(experts.capacity >= 0 && experts.capacity <= static_cast<double>(sizes.context))) {
    refuse_recipe(fmt::format("found capacity {} of experts, needed 0 to the context of {}",
                              experts.capacity, sizes.context));
  }
  if (experts.count > 0 && recipe.stages > 0) {
    refuse_recipe("found experts in a pipeline, needed another plan");
  }
}

std::vector<Weight> weights(const Sizes& sizes, const Recipe& recipe) {
  const std::int64_t d = sizes.width;
  constexpr double kDeviation = 0.02;
  std::vector<Weight> all;
  all.push_back({"embed", {sizes.vocabulary, d}, kDeviation});
  all.push_back({"pos", {sizes.context, d}, kDeviation});
  for (std::int64_t i = 0; i < (recipe.scan ? 1 : sizes.layers); ++i) {
    const auto add = [&](const char* name, sw::Shape shape, double deviation, double value = 0) {
      if (recipe.scan) shape = stacked(sizes.layers, shape);
      const std::string layer = recipe.scan ? "layers" : fmt::format("l{}", i);
      all.push_back({fmt::format("{}.{}", layer, name), shape, deviation, value});
    };
    add("g1", {d}, 0, 1);
    if (recipe.norm == Norm::layer) add("c1", {d}, 0);
    add("wq", {d, d}, kDeviation), add("bq", {d}, 0);
    add("wk", {d, d}, kDeviation), add("bk", {d}, 0);
    add("wv", {d, d}, kDeviation), add("bv", {d}, 0);
    add("wo", {d, d}, kDeviation), add("bo", {d}, 0);
    add("g2", {d}, 0, 1);
    if (recipe.norm == Norm::layer) add("c2", {d}, 0);
    const std::int64_t e = recipe.experts.count;
    const auto of_experts = [e](const sw::Shape& shape) {
      return e > 0 ? stacked(e, shape) : shape;
    };
    if (e > 0) add("router", {d, e}, kDeviation);
    add("w1", of_experts({d, 4 * d}), kDeviation), add("b1", of_experts({4 * d}), 0);
    add("w2", of_experts({4 * d, d}), kDeviation), add("b2", of_experts({d}), 0);
  }
  all.push_back({"gf", {d}, 0, 1});
  if (recipe.norm == Norm::layer) all.push_back({"cf", {d}, 0});
  all.push_back({"head", {d, sizes.vocabulary}, kDeviation});
  return all;
}

Weights Blocks::of(const std::string& prefix) const {
  Weights own;
  for (auto at = weights_.lower_bound(prefix);
       at != weights_.end() && at->first.starts_with(prefix); ++at) {
    own.emplace(at->first.substr(prefix.size()), at->second);
  }
  return own;
}

Weights Blocks::stacked_weights() const { return of("layers."); }

Weights Blocks::layer_weights(std::int64_t number) const {
  if (!recipe_.scan) return of(fmt::format("l{}.", number));
  Weights own = stacked_weights();
  for (auto& [name, weight] : own) weight = weight[number];
  return own;
}

sw::Tensor Blocks::normed(const sw::Tensor& x, const Weights& from,
                          const std::string& number) const {
  const sw::Tensor& gain = from.at("g" + number);
  return recipe_.norm == Norm::rms ? sw::rmsnorm(x, gain)
                                   : sw::layernorm(x, gain, from.at("c" + number));
}

sw::Tensor Blocks::perceptron(const sw::Tensor& x, const Weights& own) const {
  const sw::Tensor hidden =
      sw::checkpoint_name(sw::linear(x, own.at("w1"), own.at("b1")), "perceptron");
  return sw::linear(activated(hidden, recipe_.activation), own.at("w2"), own.at("b2"));
}

Blocks::After Blocks::layer(const sw::Tensor& before, const Weights& own,
                            const Attention& attention, const Dropout& dropout) const {
  const auto mine = [&](const char* name) -> const sw::Tensor& { return own.at(name); };
  const std::int64_t positions = before.shape()[1];
  const sw::Shape whole{-1, positions, sizes_.width};  // a batch, or a part of one
  const sw::Shape by_head{-1, positions, sizes_.heads, sizes_.width / sizes_.heads};
  sw::Tensor h = before;
  {
    const auto in_attention = tracer_.scope("attention");
    const sw::Tensor x = normed(h, own, "1");
    const sw::Tensor q = sw::reshape(sw::linear(x, mine("wq"), mine("bq")), by_head);
    const sw::Tensor k = sw::reshape(sw::linear(x, mine("wk"), mine("bk")), by_head);
    const sw::Tensor v = sw::reshape(sw::linear(x, mine("wv"), mine("bv")), by_head);
    const sw::Tensor seen =
        sw::checkpoint_name(sw::reshape(attention(q, k, v), whole), "attention");
    h = h + dropout(sw::linear(seen, mine("wo"), mine("bo")), 0);
  }
  const auto in_perceptron = tracer_.scope("perceptron");
  const sw::Tensor x = normed(h, own, "2");
  const Experts& experts = recipe_.experts;
  if (experts.count == 0) return {h + dropout(perceptron(x, own), 1), {}};
  Weights each;
  for (const char* const name : {"w1", "b1", "w2", "b2"}) each.emplace(name, mine(name));
  const auto expert = [&](const sw::Tensor& rows, const Weights& one) {
    return perceptron(rows, one);
  };
  const sw::Mixture<sw::Tensor> mixed = sw::experts(expert, each, x, mine("router"),
                                                    {.top_k = experts.top_k,
                                                     .capacity = experts.places(positions),
                                                     .group_axes = experts.group_axes,
                                                     .expert_axes = experts.expert_axes});
  return {h + dropout(mixed.y, 1), {mixed.balance, mixed.dropped}};
}

sw::Tensor Blocks::logits(const sw::Tensor& h) const {
  const auto in_head = tracer_.scope("head");
  return sw::linear(normed(h, weights_, "f"), weight("head"));
}

namespace {

/// All layers one after the other, in training; with experts, the sums of their mixtures.
class Layers {
 public:
  Layers(sw::Tracer& tracer, const Sizes& sizes, const Recipe& recipe, const Blocks& blocks,
         const sw::Tensor& step)
      : tracer_(tracer), sizes_(sizes), recipe_(recipe), blocks_(blocks), step_(step) {}

  Blocks::After operator()(const sw::Tensor& h) const {
    return recipe_.scan ? stacked(h) : one_by_one(h);
  }

 private:
  /// A layer and its number, a tensor or not.
  Blocks::After layer(const sw::Tensor& h, const Weights& own, const auto& number) const {
    const auto attention = [&](const sw::Tensor& q, const sw::Tensor& k, const sw::Tensor& v) {
      return recipe_.context_blocks > 0 ? sw::ring_attention(q, k, v, recipe_.context_blocks)
                                        : sw::attention(q, k, v);
    };
    const auto dropout = [&](const sw::Tensor& x, double which) {
      if (recipe_.dropout == 0) return x;
      const double each = static_cast<double>(2 * sizes_.layers);  // per step
      return sw::dropout(
          x,
          sw::convert(sw::convert(step_, sw::DType::f64) * each + (number * 2.0 + which),
                      sw::DType::u64),
          recipe_.dropout);
    };
    const auto whole_layer = [&](const sw::Tensor& x) {
      return blocks_.layer(x, own, attention, dropout);
    };
    return recipe_.recompute == Recompute::none
               ? whole_layer(h)
               : sw::checkpoint(whole_layer, h, policy(recipe_.recompute));
  }

  Blocks::After one_by_one(sw::Tensor h) const {
    std::vector<sw::Tensor> sums;
    for (std::int64_t i = 0; i < sizes_.layers; ++i) {
      const auto in_layer = tracer_.scope(fmt::format("layer{}", i));
      const Blocks::After after = layer(h, blocks_.layer_weights(i), static_cast<double>(i));
      h = after.h;
      if (i == 0) {
        sums = after.mixture;
        continue;
      }
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] = sums[k] + after.mixture[k];
    }
    return {h, sums};
  }

  Blocks::After stacked(const sw::Tensor& h) const {
    const auto in_layers = tracer_.scope("layers");
    const sw::Tensor numbers = sw::iota(step_, {sw::DType::f64, {sizes_.layers}}, 0);
    using Layer = std::pair<Weights, sw::Tensor>;
    const Layer layers(blocks_.stacked_weights(), numbers);
    if (recipe_.stages > 0) {
      const auto block = [&](const sw::Tensor& x, const Layer& one) {
        return layer(x, one.first, one.second).h;
      };
      return {sw::pipeline(block, layers, h,
                           {.stages = recipe_.stages, .micro_batches = recipe_.micro_batches}),
              {}};
    }
    const auto body = [&](const sw::Tensor& x, const Layer& one) {
      Blocks::After after = layer(x, one.first, one.second);
      return std::pair(after.h, std::move(after.mixture));
    };
    auto [last, mixtures] = sw::scan(body, h, layers);
    for (sw::Tensor& each : mixtures) each = sw::sum(each);
    return {last, std::move(mixtures)};
  }

  sw::Tracer& tracer_;
  const Sizes& sizes_;
  const Recipe& recipe_;
  const Blocks& blocks_;
  const sw::Tensor& step_;
};

}  // namespace

Loss loss(sw::Tracer& tracer, const Sizes& sizes, const Recipe& recipe, const Weights& weights,
          const sw::Tensor& step, const sw::Tensor& tokens, const sw::Tensor& targets) {
  const Blocks blocks(tracer, sizes, recipe, weights);
  const sw::Tensor positions = recipe.context_blocks > 0
                                   ? sw::zigzag(blocks.weight("pos"), 0, recipe.context_blocks)
                                   : blocks.weight("pos");
  const auto [h, mixture] = Layers(tracer, sizes, recipe, blocks,
                                   step)(sw::take(blocks.weight("embed"), tokens, 0) + positions);
  const sw::Tensor logits = blocks.logits(h);
  const auto in_head = tracer.scope("head");
  const sw::Tensor mean = sw::cross_entropy(logits, targets);
  if (mixture.empty()) return {mean, std::nullopt};
  return {mean + mixture[0] * recipe.experts.balance, mixture[1]};
}

}  // namespace gpt
