#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "shardwise/runtime/ops/functions.h"

namespace shardwise {

// Each step replaces the weights and the optimizer's state by their new values. Gradients come in
// the order of the weights. `rate` is a number or a scalar tensor. A number is part of the program,
// so a rate that changes from step to step is better a tensor. All are of one dtype.

/// w - rate * g
template <TensorLike T, class Rate>
void sgd(std::vector<T>& weights, std::span<const std::type_identity_t<T>> gradients,
         const Rate& rate) {
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = weights[i] - gradients[i] * rate;
}

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

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double decay = 0.01;  ///< of the weights: w * (1 - rate * decay)
};

/// All zero before the first step.
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

/// Scales all gradients by one factor so that their common norm is at most `most`. Gives the norm
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

}  // namespace shardwise
