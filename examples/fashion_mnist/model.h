#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/loader/loader.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/runtime/tracer.h"

// A two-layer perceptron:
//   hidden = relu(x w1 + b1), logits = hidden w2 + b2, loss = mean cross entropy.
// The hidden layer is cut over "model", the batch over "data". It is written twice. In manual mode
// each device's part, the gradient and the collectives are written by hand (model.cc). In traced
// mode all three follow from the program for one device (traced.cc). Both work on the same state.
namespace fashion_mnist {

inline constexpr std::int64_t kPixels = 784, kHidden = 256, kClasses = 10;

/// Parameters and their momenta: w1, b1, w2, b2, then the same with ".momentum".
struct State {
  std::vector<std::string> names;
  std::vector<shardwise::ArraySpec> specs;
  std::vector<shardwise::ShardedArray> arrays;
};

/// Names and specs on a mesh with the axes "data" and "model"; no arrays yet.
State describe(const shardwise::Mesh& mesh);

/// Random weights, zero biases and momenta. Each element depends on its global index only, so every
/// mesh starts from the same values.
State initial_state(shardwise::Devices& devices, const shardwise::Mesh& mesh, std::uint64_t seed);

State restore(shardwise::Devices& devices, const shardwise::Mesh& mesh,
              const shardwise::CheckpointReader& reader);

std::vector<shardwise::TensorSource> sources(const State& state);

/// One step of stochastic gradient descent with momentum 0.9. Returns the batch's mean loss.
double train_step(shardwise::Devices& devices, State& state, const shardwise::Batch& batch,
                  float learning_rate);

/// How many of the batch's valid rows get the right label.
std::int64_t count_correct(shardwise::Devices& devices, const State& state,
                           const shardwise::Batch& batch);

/// The same two, traced; the tracer has the state's mesh.
double train_step(shardwise::Tracer& tracer, State& state, const shardwise::Batch& batch,
                  float learning_rate);
std::int64_t count_correct(shardwise::Tracer& tracer, const State& state,
                           const shardwise::Batch& batch);

}  // namespace fashion_mnist
