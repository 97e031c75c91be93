#include "model.h"

#include <fmt/format.h>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/control.h"

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

/// The weights whose names begin with this prefix, by the rest of the name.
std::map<std::string, sw::Tensor> of_layer(const std::map<std::string, sw::Tensor>& weights,
                                           const std::string& prefix) {
  std::map<std::string, sw::Tensor> own;
  for (auto at = weights.lower_bound(prefix); at != weights.end() && at->first.starts_with(prefix);
       ++at) {
    own.emplace(at->first.substr(prefix.size()), at->second);
  }
  return own;
}

}  // namespace

std::vector<Weight> weights(const Sizes& sizes, const Recipe& recipe) {
  const std::int64_t d = sizes.width;
  constexpr double kDeviation = 0.02;
  std::vector<Weight> all;
  all.push_back({"embed", {sizes.vocabulary, d}, kDeviation});
  all.push_back({"pos", {sizes.context, d}, kDeviation});
  for (std::int64_t i = 0; i < (recipe.scan ? 1 : sizes.layers); ++i) {
    const auto add = [&](const char* name, sw::Shape shape, double deviation, double value = 0) {
      if (recipe.scan) {
        sw::Shape stacked{sizes.layers};
        for (const std::int64_t extent : shape) stacked.push_back(extent);
        shape = stacked;
      }
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
    add("w1", {d, 4 * d}, kDeviation), add("b1", {4 * d}, 0);
    add("w2", {4 * d, d}, kDeviation), add("b2", {d}, 0);
  }
  all.push_back({"gf", {d}, 0, 1});
  if (recipe.norm == Norm::layer) all.push_back({"cf", {d}, 0});
  all.push_back({"head", {d, sizes.vocabulary}, kDeviation});
  return all;
}

sw::Tensor loss(sw::Tracer& tracer, const Sizes& sizes, const Recipe& recipe,
                const std::map<std::string, sw::Tensor>& weights, const sw::Tensor& step,
                const sw::Tensor& tokens, const sw::Tensor& targets) {
  const auto w = [&](const std::string& name) -> const sw::Tensor& { return weights.at(name); };
  const sw::Shape whole{-1, sizes.context, sizes.width};  // a batch, or a part of one
  const sw::Shape by_head{-1, sizes.context, sizes.heads, sizes.width / sizes.heads};
  using Weights = std::map<std::string, sw::Tensor>;
  const auto normed = [&](const sw::Tensor& x, const Weights& from, const std::string& number) {
    const sw::Tensor& gain = from.at("g" + number);
    return recipe.norm == Norm::rms ? sw::rmsnorm(x, gain)
                                    : sw::layernorm(x, gain, from.at("c" + number));
  };
  // Two of each layer; `number` of the layer, a tensor or not.
  const auto dropped = [&](const sw::Tensor& x, const auto& number, double which) {
    if (recipe.dropout == 0) return x;
    const double each = static_cast<double>(2 * sizes.layers);  // per step
    return sw::dropout(
        x,
        sw::convert(sw::convert(step, sw::DType::f64) * each + (number * 2.0 + which),
                    sw::DType::u64),
        recipe.dropout);
  };
  const auto layer = [&](sw::Tensor h, const Weights& own, const auto& number) {
    const auto mine = [&](const char* name) -> const sw::Tensor& { return own.at(name); };
    {
      const auto in_attention = tracer.scope("attention");
      const sw::Tensor x = normed(h, own, "1");
      const sw::Tensor q = sw::reshape(sw::linear(x, mine("wq"), mine("bq")), by_head);
      const sw::Tensor k = sw::reshape(sw::linear(x, mine("wk"), mine("bk")), by_head);
      const sw::Tensor v = sw::reshape(sw::linear(x, mine("wv"), mine("bv")), by_head);
      const sw::Tensor seen =
          sw::checkpoint_name(sw::reshape(sw::attention(q, k, v), whole), "attention");
      h = h + dropped(sw::linear(seen, mine("wo"), mine("bo")), number, 0);
    }
    const auto in_perceptron = tracer.scope("perceptron");
    const sw::Tensor x = normed(h, own, "2");
    const sw::Tensor hidden =
        sw::checkpoint_name(sw::linear(x, mine("w1"), mine("b1")), "perceptron");
    return h + dropped(sw::linear(activated(hidden, recipe.activation), mine("w2"), mine("b2")),
                       number, 1);
  };
  const auto recomputed = [&](const sw::Tensor& h, const Weights& own, const auto& number) {
    const auto whole_layer = [&](const sw::Tensor& x) { return layer(x, own, number); };
    return recipe.recompute == Recompute::none
               ? whole_layer(h)
               : sw::checkpoint(whole_layer, h, policy(recipe.recompute));
  };
  sw::Tensor h = sw::take(w("embed"), tokens, 0) + w("pos");
  if (recipe.scan) {
    const auto in_layers = tracer.scope("layers");
    const sw::Tensor numbers = sw::iota(step, {sw::DType::f64, {sizes.layers}}, 0);
    using Layer = std::pair<Weights, sw::Tensor>;
    const Layer layers(of_layer(weights, "layers."), numbers);
    const auto block = [&](const sw::Tensor& x, const Layer& one) {
      return recomputed(x, one.first, one.second);
    };
    const auto body = [&](const sw::Tensor& x, const Layer& one) {
      return std::pair(block(x, one), nullptr);
    };
    h = recipe.stages == 0
            ? sw::scan(body, h, layers).first
            : sw::pipeline(block, layers, h,
                           {.stages = recipe.stages, .micro_batches = recipe.micro_batches});
  }
  for (std::int64_t i = 0; i < sizes.layers && !recipe.scan; ++i) {
    const auto in_layer = tracer.scope(fmt::format("layer{}", i));
    h = recomputed(h, of_layer(weights, fmt::format("l{}.", i)), static_cast<double>(i));
  }
  const auto in_head = tracer.scope("head");
  return sw::cross_entropy(sw::linear(normed(h, weights, "f"), w("head")), targets);
}

}  // namespace gpt
