#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// Each step replaces the weights and the optimizer's state by their new values. Weights are a
// vector, with gradients in the same order, or a map by name, with gradients of the same names, as
// from grad(). `rate` is a number or a scalar tensor. A number is part of the program, so a rate
// that changes from step to step should be a tensor. All are of one dtype.

template <class T>
using ByName = std::map<std::string, T>;

namespace detail {

/// Calls update(weights, gradients) with the values of maps. Throws no_such_name if a weight has no
/// gradient.
template <TensorLike T, class Update>
void update_by_name(ByName<T>& weights, const ByName<T>& gradients, const Update& update) {
  std::vector<T> values, slopes;
  for (const auto& [name, weight] : weights) {
    const auto found = gradients.find(name);
    if (found == gradients.end()) {
      throw Error(ErrorCode::no_such_name,
                  "update weights: found no gradient of \"" + name + "\", needed one of each");
    }
    values.push_back(weight);
    slopes.push_back(found->second);
  }
  update(values, slopes);
  auto next = values.begin();
  for (auto& [name, weight] : weights) weight = *next++;
}

}  // namespace detail

/// w - rate * g
template <TensorLike T, class Rate>
void sgd(std::vector<T>& weights, std::span<const std::type_identity_t<T>> gradients,
         const Rate& rate) {
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = weights[i] - gradients[i] * rate;
}
template <TensorLike T, class Rate>
void sgd(ByName<T>& weights, const ByName<std::type_identity_t<T>>& gradients, const Rate& rate) {
  detail::update_by_name<T>(weights, gradients,
                            [&](auto& values, auto& slopes) { sgd(values, slopes, rate); });
}
template <TensorLike T, class... Rest>
void sgd(std::initializer_list<T>, const Rest&...) = delete;  // w -= grad(loss, w) * rate
void sgd(const TensorLike auto&, const auto&...) = delete;    // w -= grad(loss, w) * rate

/// velocity = momentum * velocity + g; w - rate * velocity
template <TensorLike T, class Rate>
void sgd_with_momentum(std::vector<T>& weights, std::vector<T>& velocities,
                       std::span<const std::type_identity_t<T>> gradients, const Rate& rate,
                       double momentum = 0.9) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    velocities[i] = momentum * velocities[i] + gradients[i];
    weights[i] = weights[i] - velocities[i] * rate;
  }
}

template <TensorLike T, class Rate>
void sgd_with_momentum(ByName<T>& weights, std::vector<T>& velocities,
                       const ByName<std::type_identity_t<T>>& gradients, const Rate& rate,
                       double momentum = 0.9) {
  detail::update_by_name<T>(weights, gradients, [&](auto& values, auto& slopes) {
    sgd_with_momentum(values, velocities, slopes, rate, momentum);
  });
}

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double decay = 0.01;  ///< of the weights: w * (1 - rate * decay)
};

/// All zero before the first step: adamw_state() (init.h).
template <TensorLike T>
struct AdamWState {
  std::vector<T> first, second;  ///< moments of the gradients, as the weights
  T steps;                       ///< a floating scalar, so that all steps are one program
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
template <TensorLike T, class Rate>
void adamw(std::vector<T>& weights, AdamWState<T>& state,
           std::span<const std::type_identity_t<T>> gradients, const Rate& rate,
           const AdamWOptions& options = {}) {
  state.steps = state.steps + 1.0;
  const auto unbiased = [&](double beta) {
    return 1.0 - pow(full_like(state.steps, beta), state.steps);
  };
  // Scalars, so an element costs one division and one root.
  const T first_scale = rate / unbiased(options.beta1);
  const T second_scale = 1.0 / unbiased(options.beta2);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const T& g = gradients[i];
    T& first = state.first[i];
    T& second = state.second[i];
    first = options.beta1 * first + (1 - options.beta1) * g;
    second = options.beta2 * second + (1 - options.beta2) * g * g;
    weights[i] = weights[i] * (1.0 - rate * options.decay) -
                 first * first_scale / (sqrt(second * second_scale) + options.epsilon);
  }
}

template <TensorLike T, class Rate>
void adamw(ByName<T>& weights, AdamWState<T>& state,
           const ByName<std::type_identity_t<T>>& gradients, const Rate& rate,
           const AdamWOptions& options = {}) {
  detail::update_by_name<T>(weights, gradients, [&](auto& values, auto& slopes) {
    adamw(values, state, slopes, rate, options);
  });
}

/// All tensors that a job saves, by name: the weights, and their optimizer's "adamw/first/w",
/// "adamw/second/w" and "adamw/steps". Requires the state of these weights.
template <TensorLike T>
ByName<T> with_state(const ByName<T>& weights, const AdamWState<T>& state) {
  ByName<T> all = weights;
  std::size_t i = 0;
  for (const auto& [name, weight] : weights) {
    all["adamw/first/" + name] = state.first[i];
    all["adamw/second/" + name] = state.second[i++];
  }
  all["adamw/steps"] = state.steps;
  return all;
}

// Optimizers are functions; the comments name them.
struct AdamW {
  template <class... A>
  AdamW(const A&...) = delete;  // adamw(weights, state, grad(loss, weights), rate)
};
struct Adam {
  template <class... A>
  Adam(const A&...) = delete;  // adamw(weights, state, grad(loss, weights), rate)
};
struct SGD {
  template <class... A>
  SGD(const A&...) = delete;  // sgd(weights, grad(loss, weights), rate)
};

/// Scales all gradients by one factor so that their common norm is at most `most`. Returns the norm
/// before that, a scalar. Requires a gradient.
template <TensorLike T>
T clip_by_global_norm(std::vector<T>& gradients, double most) {
  const auto square = [](const T& g) { return reduce_sum(g * g, all_dims(g.type().shape.size())); };
  T sum = square(gradients.front());
  for (std::size_t i = 1; i < gradients.size(); ++i) sum = sum + square(gradients[i]);
  T norm = sqrt(sum);
  const T factor = min(most / norm, full_like(norm, 1));
  for (T& g : gradients) g = g * factor;
  return norm;
}
template <TensorLike T>
T clip_by_global_norm(ByName<T>& gradients, double most) {
  std::vector<T> values;
  for (const auto& [name, g] : gradients) values.push_back(g);
  T norm = clip_by_global_norm(values, most);
  auto next = values.begin();
  for (auto& [name, g] : gradients) g = *next++;
  return norm;
}

// The initial tensors of a training.

/// A tensor of equal numbers, of a floating or integer dtype: gains, biases, optimizer state.
Tensor full(Tracer& tracer, const TensorType& type, double number, std::string_view label = "",
            MemoryKind kind = MemoryKind::parameter);

/// Normally distributed around 0, of a floating dtype. Each element depends only on the seed and
/// its index, so every mesh begins with the same weights.
Tensor normal(Tracer& tracer, const TensorType& type, double deviation, std::uint64_t seed,
              std::string_view label = "", MemoryKind kind = MemoryKind::parameter);

// Other names that people try; the comments have the code to write.
Tensor full(  // full(tracer, {DType::f32, {4, 3}}, 0, "b")
    Tracer&, const Shape&, double, std::string_view = "") = delete;
Tensor normal(  // normal(tracer, {DType::f32, {4, 3}}, 0.1, seed, "w")
    Tracer&, const Shape&, double, std::uint64_t, std::string_view = "") = delete;
void uniform(  // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
    Tracer&, const auto&...) = delete;
void rand(Tracer&, const auto&...) = delete;  // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
void arange(Tracer&, const auto&...) = delete;  // iota(x, {DType::i32, {10}}, 0)
void eye(Tracer&, const auto&...) = delete;     // eq(iota(x, type, 0), iota(x, type, 1))
void zeros(Tracer&, const auto&...) = delete;   // full(tracer, {DType::f32, {4, 3}}, 0, "b")
void ones(Tracer&, const auto&...) = delete;    // full(tracer, {DType::f32, {4, 3}}, 1, "b")
void randn(Tracer&, const auto&...) = delete;  // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
template <class Weights>
void adamw_state(Tracer&, const Weights&) = delete;  // adamw_state(weights)

/// The state of adamw() before the first step: zeros on the host, of the weights' dtype and shapes,
/// labelled with the names of with_state(). Requires a weight.
AdamWState<Tensor> adamw_state(const std::vector<Tensor>& weights);
AdamWState<Tensor> adamw_state(const std::map<std::string, Tensor>& weights);

}  // namespace shardwise
