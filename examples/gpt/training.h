#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "given.h"
#include "model.h"
#include "plan.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/tracer.h"

namespace gpt {

/// The model's sizes and recipe, for SaveOptions::user_json.
std::string user_json(const Sizes& sizes, const Recipe& recipe);

/// Dropout and clipping belong to training only.
enum class Use { training, serving };

/// Throws invalid_argument naming every difference between a checkpoint's user_json and this
/// model's.
void check_same_model(const shardwise::CheckpointReader& reader, const Sizes& sizes,
                      const Recipe& recipe, Use use);

/// A GPT in training: its weights and AdamW's state on a mesh of devices, cut as a plan says. Call
/// begin() or restore() first. Keeps a reference to the devices. Thread-compatible.
class Training {
 public:
  /// Throws invalid_argument as check() and Plan::spread(), and for an impossible rate of dropout
  /// or norm of gradients.
  Training(shardwise::Devices& devices, const shardwise::Mesh& mesh, const Plan& plan,
           const Sizes& sizes, const Recipe& recipe = {});

  /// Sets the first values: random, or given by name. Throws invalid_argument naming a weight that
  /// is missing or of another type.
  void begin(std::uint64_t seed, const std::optional<std::map<std::string, Given>>& given = {});

  /// Restores everything that sources() saved, from any mesh and plan. Throws invalid_argument
  /// naming the difference if the checkpoint's user_json is not this model's, and as
  /// CheckpointReader.
  void restore(const shardwise::CheckpointReader& reader);

  std::string user_json() const { return gpt::user_json(sizes_, recipe_); }

  /// One step on the fields "tokens" and "targets", i32 [batch, context]; gives the loss before it.
  double step(const shardwise::HostBatch& batch, double learning_rate);

  /// Choices of experts in the last step that found no place; absent without experts.
  std::optional<std::int64_t> dropped() const { return dropped_; }

  /// Weights ("l0.wq") and state ("m.l0.wq", "v.l0.wq", "steps"), as they are now.
  std::vector<shardwise::TensorSource> sources() const;

  const shardwise::Tracer& tracer() const { return tracer_; }

 private:
  shardwise::Tensor input(const shardwise::HostBatch& batch, const char* field);

  shardwise::Devices& devices_;
  shardwise::Mesh mesh_;
  Plan plan_;
  Sizes sizes_;
  Recipe recipe_;
  std::vector<Weight> weights_;
  shardwise::Tracer tracer_;
  std::vector<shardwise::Tensor> values_;  ///< by weight
  std::optional<shardwise::AdamWState<shardwise::Tensor>> state_;
  std::optional<std::int64_t> dropped_;
};

}  // namespace gpt
