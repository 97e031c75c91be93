#include "model.h"

#include <fmt/format.h>

#include "shardwise/runtime/nn/activations.h"
#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/layers.h"

namespace gpt {

using namespace shardwise;

namespace {

Tensor activated(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::silu:
      return silu(x);
  }
  return x;
}

CheckpointPolicy policy(Recompute recompute) {
  if (recompute == Recompute::elementwise) return {.save_products = true};
  if (recompute == Recompute::inside) return {.save_names = {"attention", "perceptron"}};
  return {};
}

}  // namespace

std::vector<Weight> weights(const Sizes& sizes, const Recipe& recipe) {
  const std::int64_t d = sizes.width;
  constexpr double kDeviation = 0.02;
  std::vector<Weight> all;
  all.push_back({"embed", {sizes.vocabulary, d}, kDeviation});
  all.push_back({"pos", {sizes.context, d}, kDeviation});
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    const auto add = [&](const char* name, const Shape& shape, double deviation, double value = 0) {
      all.push_back({fmt::format("l{}.{}", i, name), shape, deviation, value});
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

Tensor loss(Tracer& tracer, const Sizes& sizes, const Recipe& recipe,
            const std::map<std::string, Tensor>& weights, const Tensor& step, const Tensor& tokens,
            const Tensor& targets) {
  const auto w = [&](const std::string& name) -> const Tensor& { return weights.at(name); };
  const Shape whole{sizes.batch, sizes.context, sizes.width};
  const Shape by_head{sizes.batch, sizes.context, sizes.heads, sizes.width / sizes.heads};
  const auto normed = [&](const Tensor& x, const std::string& prefix, const char* number) {
    const Tensor& gain = w(prefix + "g" + number);
    return recipe.norm == Norm::rms ? rmsnorm(x, gain)
                                    : layernorm(x, gain, w(prefix + "c" + number));
  };
  std::int64_t drops = 0;
  const auto dropped = [&](const Tensor& x) {
    if (recipe.dropout == 0) return x;
    const double each = static_cast<double>(2 * sizes.layers);  // of a step
    const double number = static_cast<double>(drops++);
    return dropout(x, convert(convert(step, DType::f64) * each + number, DType::u64),
                   recipe.dropout);
  };
  const auto layer = [&](Tensor h, const std::string& prefix) {
    const auto mine = [&](const char* name) -> const Tensor& { return w(prefix + name); };
    {
      const auto in_attention = tracer.scope("attention");
      const Tensor x = normed(h, prefix, "1");
      const Tensor q = reshape(linear(x, mine("wq"), mine("bq")), by_head);
      const Tensor k = reshape(linear(x, mine("wk"), mine("bk")), by_head);
      const Tensor v = reshape(linear(x, mine("wv"), mine("bv")), by_head);
      const Tensor seen = checkpoint_name(reshape(attention(q, k, v), whole), "attention");
      h = h + dropped(linear(seen, mine("wo"), mine("bo")));
    }
    const auto in_perceptron = tracer.scope("perceptron");
    const Tensor x = normed(h, prefix, "2");
    const Tensor hidden = checkpoint_name(linear(x, mine("w1"), mine("b1")), "perceptron");
    return h + dropped(linear(activated(hidden, recipe.activation), mine("w2"), mine("b2")));
  };
  Tensor h = take(w("embed"), tokens, 0) + w("pos");
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    const auto in_layer = tracer.scope(fmt::format("layer{}", i));
    const auto numbered = [&](const Tensor& x) { return layer(x, fmt::format("l{}.", i)); };
    h = recipe.recompute == Recompute::none ? numbered(h)
                                            : checkpoint(numbered, h, policy(recipe.recompute));
  }
  const auto in_head = tracer.scope("head");
  return cross_entropy(linear(normed(h, "", "f"), w("head")), targets);
}

}  // namespace gpt
