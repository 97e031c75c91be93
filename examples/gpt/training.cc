#include "training.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/shard/error.h"

namespace gpt {

namespace sw = shardwise;
using Json = nlohmann::ordered_json;

namespace {

const char* name(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::silu:
      return "silu";
  }
  return "unknown";
}

}  // namespace

std::string user_json(const Sizes& sizes, const Recipe& recipe) {
  Json json{{"model", "gpt"},
            {"layers", sizes.layers},
            {"width", sizes.width},
            {"heads", sizes.heads},
            {"context", sizes.context},
            {"activation", name(recipe.activation)},
            {"norm", recipe.norm == Norm::rms ? "rms" : "layer"},
            {"dropout", recipe.dropout},
            {"clip", recipe.clip}};
  if (recipe.scan) json["scan"] = true;
  if (recipe.experts.count > 0) {
    json["experts"] = recipe.experts.count;
    json["experts_per_token"] = recipe.experts.top_k;
    json["capacity"] = recipe.experts.capacity;
  }
  return json.dump();
}

void check_same_model(const sw::CheckpointReader& reader, const Sizes& sizes, const Recipe& recipe,
                      Use use) {
  const Json found = Json::parse(reader.user_json());
  Json needed = Json::parse(user_json(sizes, recipe));
  for (const char* const key : {"scan", "experts"}) {  // absent if the model has none
    if (found.is_object() && found.contains(key)) needed.emplace(key, nullptr);
  }
  std::string differences;
  for (const auto& [key, value] : needed.items()) {
    if (use == Use::serving && (key == "dropout" || key == "clip" || key == "capacity")) {
      continue;
    }
    const Json other = found.is_object() && found.contains(key) ? found[key] : Json();
    if (other == value) continue;
    differences += fmt::format("{}found {} {}, needed {}", differences.empty() ? "" : "; ", key,
                               other.dump(), value.dump());
  }
  if (differences.empty()) return;
  throw sw::Error(sw::ErrorCode::invalid_argument,
                  fmt::format("{} {}: {}", use == Use::training ? "resume from" : "generate from",
                              reader.directory().string(), differences));
}

Training::Training(sw::Devices& devices, const sw::Mesh& mesh, const Plan& plan, const Sizes& sizes,
                   const Recipe& recipe)
    : devices_(devices),
      mesh_(mesh),
      plan_(plan),
      sizes_(sizes),
      recipe_(plan.spread(recipe)),
      weights_(gpt::weights(sizes, recipe)),
      tracer_(devices, {.mesh = mesh}) {
  check(sizes, recipe);
  if (!(recipe.dropout >= 0 && recipe.dropout < 1)) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("found dropout {}, needed is 0 to less than 1", recipe.dropout));
  }
  if (!(recipe.clip >= 0)) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("found clip {}, needed is 0 or more", recipe.clip));
  }
}

void Training::begin(std::uint64_t seed, const std::optional<std::map<std::string, Given>>& given) {
  const auto marked = [&](sw::Tensor tensor, const Weight& weight) {
    sw::mark_sharding(tensor, mesh_, plan_.weight(weight.name, weight.shape));
    return tensor;
  };
  const auto one_value = [&](const Weight& weight, std::size_t number) {
    const sw::TensorType type{sw::DType::f32, weight.shape};
    if (!given) {
      return weight.deviation == 0
                 ? sw::full(tracer_, type, weight.value, weight.name)
                 : sw::normal(tracer_, type, weight.deviation, seed * 1000 + number, weight.name);
    }
    const auto found = given->find(weight.name);
    const bool is_there = found != given->end();
    if (!is_there || found->second.dtype != type.dtype || found->second.shape != type.shape) {
      const std::string what =
          is_there ? "of " + sw::to_string(sw::TensorType{found->second.dtype, found->second.shape})
                   : std::string("missing");
      throw sw::Error(sw::ErrorCode::invalid_argument,
                      fmt::format("begin with given weights: found \"{}\" {}, needed {}",
                                  weight.name, what, sw::to_string(type)));
    }
    return tracer_.tensor(type, found->second.bytes, weight.name, sw::MemoryKind::parameter);
  };
  // Stacked weights begin with the values of separate layers, one after the other.
  Recipe plain = recipe_;
  plain.scan = false;
  const std::vector<Weight> unstacked = gpt::weights(sizes_, plain);
  const auto first_value = [&](const Weight& weight, const sw::TensorType& type) {
    const bool is_stacked = weight.name.starts_with("layers.");
    std::vector<std::byte> bytes;
    for (std::size_t number = 0; number < unstacked.size(); ++number) {
      const std::string& name = unstacked[number].name;
      const bool is_part = is_stacked && name[0] == 'l' && name.find('.') != std::string::npos &&
                           name.substr(name.find('.')) == weight.name.substr(weight.name.find('.'));
      if (name == weight.name) return one_value(unstacked[number], number);
      if (!is_part) continue;
      const sw::Tensor part = one_value(unstacked[number], number);
      bytes.insert(bytes.end(), part.on_host()->begin(), part.on_host()->end());
    }
    return tracer_.tensor(type, bytes, weight.name, sw::MemoryKind::parameter);
  };
  std::vector<sw::Tensor> first, second;
  for (const Weight& weight : weights_) {
    const sw::TensorType type{sw::DType::f32, weight.shape};
    const auto moment = [&](const char* prefix) {
      return marked(sw::full(tracer_, type, 0, prefix + weight.name, sw::MemoryKind::optimizer),
                    weight);
    };
    values_.push_back(marked(first_value(weight, type), weight));
    first.push_back(moment("m."));
    second.push_back(moment("v."));
  }
  sw::Tensor steps = sw::full(tracer_, {sw::DType::f32, {}}, 0, "steps", sw::MemoryKind::optimizer);
  sw::mark_sharding(steps, mesh_, {});
  state_ = sw::AdamWState<sw::Tensor>{std::move(first), std::move(second), std::move(steps)};
}

void Training::restore(const sw::CheckpointReader& reader) {
  check_same_model(reader, sizes_, recipe_, Use::training);
  std::vector<sw::TensorRequest> requests;
  for (const char* const prefix : {"", "m.", "v."}) {
    for (const Weight& weight : weights_) {
      const sw::Sharding sharding(mesh_, plan_.weight(weight.name, weight.shape));
      requests.push_back({prefix + weight.name, {sw::DType::f32, weight.shape, sharding}});
    }
  }
  requests.push_back({"steps", {sw::DType::f32, {}, sw::Sharding::replicated(mesh_, 0)}});
  std::vector<sw::ShardedArray> arrays = reader.restore(devices_, requests);
  std::vector<sw::Tensor> tensors;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const sw::MemoryKind kind =
        i < weights_.size() ? sw::MemoryKind::parameter : sw::MemoryKind::optimizer;
    tensors.push_back(tracer_.tensor(std::move(arrays[i]), requests[i].name, kind));
  }
  const auto moments = tensors.begin() + static_cast<std::ptrdiff_t>(weights_.size());
  const auto second = moments + static_cast<std::ptrdiff_t>(weights_.size());
  values_.assign(tensors.begin(), moments);
  state_ =
      sw::AdamWState<sw::Tensor>{{moments, second}, {second, tensors.end() - 1}, tensors.back()};
}

sw::Tensor Training::input(const sw::HostBatch& batch, const char* field) {
  const sw::TensorType type{sw::DType::i32, {sizes_.batch, sizes_.context}};
  const sw::HostPart& whole = batch.field(field).parts.front();
  sw::Tensor tensor =
      tracer_.tensor(type, std::span(whole.data.get(), whole.bytes), field, sw::MemoryKind::loader);
  sw::mark_sharding(tensor, mesh_, plan_.batch());
  if (recipe_.context_blocks == 0) return tensor;
  sw::Tensor ordered = sw::zigzag(tensor, 1, recipe_.context_blocks);
  sw::mark_sharding(ordered, mesh_, plan_.ordered_batch());
  return ordered;
}

double Training::step(const sw::HostBatch& batch, double learning_rate) {
  // The tensors named in here are released before the step runs, so it can reuse their memory.
  const Loss loss = [&] {
    const sw::Tensor tokens = input(batch, "tokens"), targets = input(batch, "targets");
    std::map<std::string, sw::Tensor> by_name;
    for (std::size_t i = 0; i < weights_.size(); ++i) by_name.emplace(weights_[i].name, values_[i]);
    Loss made = gpt::loss(tracer_, sizes_, recipe_, by_name, state_->steps, tokens, targets);
    std::vector<sw::Tensor> gradients = sw::grad(made.mean, values_);
    const auto in_optimizer = tracer_.scope("optimizer");
    if (recipe_.clip > 0) sw::clip_by_global_norm(gradients, recipe_.clip);
    // A tensor, since as a number each rate of a schedule would make another program.
    const auto number = static_cast<float>(learning_rate);
    const sw::Tensor rate =
        tracer_.tensor({sw::DType::f32, {}}, std::as_bytes(std::span(&number, 1)), "learning rate");
    sw::adamw(values_, *state_, gradients, rate);
    return made;
  }();
  tracer_.mark_step();
  if (loss.dropped) dropped_ = std::llround(loss.dropped->item());
  return loss.mean.item();
}

std::vector<sw::TensorSource> Training::sources() const {
  std::vector<sw::TensorSource> sources;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const std::string& name = weights_[i].name;
    sources.push_back(sw::tensor_source(name, values_[i].array()));
    sources.push_back(sw::tensor_source("m." + name, state_->first[i].array()));
    sources.push_back(sw::tensor_source("v." + name, state_->second[i].array()));
  }
  sources.push_back(sw::tensor_source("steps", state_->steps.array()));
  return sources;
}

}  // namespace gpt
