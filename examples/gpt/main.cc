// Trains a small GPT on the bytes of a text, written as if for one device and spread over a mesh of
// emulated ones by a plan: weights and batch are marked, the rest follows. It saves as it goes, and
// begun again it goes on from the newest checkpoint, whatever mesh and plan that was written on.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model.h"
#include "npz.h"
#include "plan.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/nn/init.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/spmd/report.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "tokens.h"

namespace {

using namespace shardwise;  // an example reads better without prefixes
using Json = nlohmann::ordered_json;

struct Options {
  gpt::Sizes sizes;
  std::string mesh = "data=4,model=2", plan = "tensor";
  std::string weights, tokens = GPT_TEXT, checkpoints;
  std::int64_t steps = 100, save_every = 50, kill_in_save = -1;
  std::uint64_t seed = 1;
  double learning_rate = 1e-3;
  bool json = false;
};

class Training {
 public:
  explicit Training(const Options& options)
      : options_(options),
        mesh_(Mesh::parse(options.mesh == "1" ? "" : options.mesh)),
        plan_(options.plan, mesh_),
        devices_(mesh_.size()),
        tracer_(devices_, {.mesh = mesh_}),
        tokens_(options.tokens, options.sizes.batch, options.sizes.context),
        weights_(gpt::weights(options.sizes)) {
    if (options.sizes.width % options.sizes.heads != 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("found {} heads for a width of {}, needed a divisor",
                              options.sizes.heads, options.sizes.width));
    }
    if (!options.checkpoints.empty()) manager_.emplace(options.checkpoints);
    const auto latest = manager_ ? manager_->latest() : std::nullopt;
    if (latest) {
      restore(CheckpointReader(latest->step.directory));
      start_ = latest->step.step;
      fmt::print(stderr, "resumed from {}\n", latest->step.directory.string());
    } else {
      begin();
    }
  }

  void run() {
    for (std::int64_t step = start_; step < options_.steps; ++step) {
      const Stopwatch watch;
      train(step);
      seconds_.push_back(watch.seconds());
      if (step == start_) {
        first_seconds_ = tracer_.last_seconds().trace + tracer_.last_seconds().compile;
      }
      const std::int64_t done = step + 1;
      if (done % 10 == 0 || done == options_.steps || step == start_) {
        fmt::print(stderr, "step {:5}: loss {:.4f}, {:.1f} ms\n", done, losses_.back(),
                   1e3 * seconds_.back());
      }
      if (manager_ && (done % options_.save_every == 0 || done == options_.steps)) save(done);
    }
    if (manager_) manager_->close();
  }

  Json result() const {
    Json json = {{"losses", Json::array()}, {"collectives", Json::array()}};
    for (const double loss : losses_) json["losses"].push_back(fmt::format("{:a}", loss));
    const Executable* const step = tracer_.last();
    if (step != nullptr) {
      for (const CollectiveTotal& total : step->collectives()) {
        json["collectives"].push_back({{"kind", name(total.kind)},
                                       {"count", total.count},
                                       {"bytes", total.bytes},
                                       {"wire_bytes", total.wire_bytes}});
      }
    }
    json["planned_peak_bytes"] = Json::array();
    for (std::int64_t p = 0; step != nullptr && p < mesh_.size(); ++p) {
      json["planned_peak_bytes"].push_back(step->memory(p).peak_bytes);
    }
    json["measured_peak_bytes"] = measured_;
    json["first_step_seconds"] = first_seconds_;
    json["step_seconds"] = median_seconds();
    return json;
  }

  void summarize() const {
    if (losses_.empty()) return fmt::print("nothing to do: {} steps are done\n", start_);
    fmt::print("mesh {}, plan {}: loss {:.4f} after step {}\n", mesh_.to_string(), options_.plan,
               losses_.back(), options_.steps);
    fmt::print("first step {:.1f} ms to trace, partition and plan; a step {:.1f} ms\n",
               1e3 * first_seconds_, 1e3 * median_seconds());
    fmt::print("{}", to_string(report(*tracer_.last(), machines().front())));
  }

 private:
  Tensor marked(Tensor tensor, const gpt::Weight& weight) const {
    mark_sharding(tensor, mesh_, plan_.weight(weight.name, weight.shape));
    return tensor;
  }

  void begin() {
    std::map<std::string, gpt::NpzArray> given;
    if (!options_.weights.empty()) given = gpt::read_npz(options_.weights);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const gpt::Weight& weight = weights_[i];
      const TensorType type{DType::f32, weight.shape};
      values_.push_back(marked(first_value(weight, type, i, given), weight));
      for (auto* const moments : {&state_.first, &state_.second}) {
        const char* const prefix = moments == &state_.first ? "m." : "v.";
        moments->push_back(
            marked(full(tracer_, type, 0, prefix + weight.name, MemoryKind::optimizer), weight));
      }
    }
    state_.steps.push_back(full(tracer_, {DType::f32, {}}, 0, "steps", MemoryKind::optimizer));
    mark_sharding(state_.steps.back(), mesh_, {});
  }

  Tensor first_value(const gpt::Weight& weight, const TensorType& type, std::size_t number,
                     const std::map<std::string, gpt::NpzArray>& given) {
    if (!given.empty()) {
      const auto found = given.find(weight.name);
      if (found == given.end() || found->second.dtype != type.dtype ||
          !(found->second.shape == type.shape)) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("read {}: found no \"{}\" of {}", options_.weights, weight.name,
                                to_string(type)));
      }
      return tracer_.tensor(type, found->second.bytes, weight.name, MemoryKind::parameter);
    }
    if (weight.deviation == 0) return full(tracer_, type, weight.value, weight.name);
    return normal(tracer_, type, weight.deviation, options_.seed * 1000 + number, weight.name);
  }

  /// Every tensor of the state with its name in checkpoints.
  template <class Body>
  void for_each_tensor(const Body& body) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      body(weights_[i].name, values_[i]);
      body("m." + weights_[i].name, state_.first[i]);
      body("v." + weights_[i].name, state_.second[i]);
    }
    body("steps", state_.steps.back());
  }

  void restore(const CheckpointReader& reader) {
    std::vector<TensorRequest> requests;
    for (const gpt::Weight& weight : weights_) {
      const Sharding sharding(mesh_, plan_.weight(weight.name, weight.shape));
      for (const char* const prefix : {"", "m.", "v."}) {
        requests.push_back({prefix + weight.name, {DType::f32, weight.shape, sharding}});
      }
    }
    requests.push_back({"steps", {DType::f32, {}, Sharding::replicated(mesh_, 0)}});
    const std::vector<ShardedArray> arrays = reader.restore(devices_, requests);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::string& name = weights_[i].name;
      values_.push_back(tracer_.tensor(arrays[3 * i], name, MemoryKind::parameter));
      state_.first.push_back(tracer_.tensor(arrays[3 * i + 1], "m." + name, MemoryKind::optimizer));
      state_.second.push_back(
          tracer_.tensor(arrays[3 * i + 2], "v." + name, MemoryKind::optimizer));
    }
    state_.steps.push_back(tracer_.tensor(arrays.back(), "steps", MemoryKind::optimizer));
  }

  Tensor input(const std::vector<std::int32_t>& values, const char* label) {
    const TensorType type{DType::i32, {options_.sizes.batch, options_.sizes.context}};
    Tensor tensor =
        tracer_.tensor(type, std::as_bytes(std::span(values)), label, MemoryKind::loader);
    mark_sharding(tensor, mesh_, plan_.batch());
    return tensor;
  }

  void train(std::int64_t step) {
    const gpt::TokenBatch batch = tokens_.at(step);
    for (const DeviceId id : devices_.addressable()) devices_.at(id).reset_peak();
    Tensor loss = [&] {
      const Tensor x = input(batch.tokens, "tokens"), y = input(batch.targets, "targets");
      std::map<std::string, Tensor> by_name;
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        by_name.emplace(weights_[i].name, values_[i]);
      }
      Tensor mean = gpt::loss(tracer_, options_.sizes, by_name, x, y);
      const std::vector<Tensor> gradients = grad(mean, values_);
      const auto in_optimizer = tracer_.scope("optimizer");
      AdamWState<Tensor> state{std::move(state_.first), std::move(state_.second),
                               state_.steps.back()};
      state_.steps.clear();
      adamw(values_, state, gradients, options_.learning_rate);
      state_.first = std::move(state.first);
      state_.second = std::move(state.second);
      state_.steps.push_back(state.steps);
      return mean;
    }();
    tracer_.mark_step();
    losses_.push_back(loss.item());
    measured_.clear();
    for (const DeviceId id : devices_.addressable()) {
      measured_.push_back(devices_.at(id).memory().peak_bytes);
    }
  }

  void save(std::int64_t step) {
    std::vector<TensorSource> sources;
    for_each_tensor([&](const std::string& name, const Tensor& tensor) {
      sources.push_back(tensor_source(name, tensor.array()));
    });
    SaveOptions save{.user_json = Json{{"model", "gpt"}, {"plan", options_.plan}}.dump(),
                     .existing = Existing::replace};
    const bool last = step == options_.kill_in_save;
    if (last) {
      fmt::print(stderr, "step {:5}: SIGKILL in the middle of this save\n", step);
      save.progress = [](const Progress& progress) {
        if (2 * progress.done_bytes >= progress.total_bytes) std::raise(SIGKILL);
      };
    }
    PendingSave pending = manager_->save_async(step, std::move(sources), save);
    if (last) pending.wait();
  }

  double median_seconds() const {
    if (seconds_.empty()) return 0;
    std::vector<double> after(seconds_.begin() + (seconds_.size() > 1 ? 1 : 0), seconds_.end());
    std::nth_element(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(after.size() / 2),
                     after.end());
    return after[after.size() / 2];
  }

  /// The optimizer's state; `steps` holds one tensor, or none while a step is recorded.
  struct Moments {
    std::vector<Tensor> first, second, steps;
  };

  Options options_;
  Mesh mesh_;
  gpt::Plan plan_;
  Devices devices_;
  Tracer tracer_;
  gpt::Tokens tokens_;
  std::vector<gpt::Weight> weights_;
  std::optional<CheckpointManager> manager_;
  std::vector<Tensor> values_;
  Moments state_;
  std::int64_t start_ = 0;
  std::vector<double> losses_, seconds_;
  std::vector<std::size_t> measured_;
  double first_seconds_ = 0;
};

}  // namespace

// What CLI11 throws while options are declared is a mistake in this file.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains a small GPT on the bytes of a text, sharded over emulated devices"};
  app.option_defaults()->always_capture_default();
  app.add_option("--layers", options.sizes.layers)->check(CLI::PositiveNumber);
  app.add_option("--width", options.sizes.width)->check(CLI::PositiveNumber);
  app.add_option("--heads", options.sizes.heads)->check(CLI::PositiveNumber);
  app.add_option("--context", options.sizes.context)->check(CLI::PositiveNumber);
  app.add_option("--batch", options.sizes.batch)->check(CLI::PositiveNumber);
  app.add_option("--mesh", options.mesh,
                 "Axes data or fsdp (the batch) and model, as data=4,model=2; 1: one device");
  app.add_option("--plan", options.plan, "How the weights are cut: none, data, fsdp, tensor, 2d");
  app.add_option("--steps", options.steps, "Train up to this step");
  app.add_option("--learning-rate", options.learning_rate);
  app.add_option("--seed", options.seed, "Of the first weights");
  app.add_option("--weights", options.weights, "First weights: an .npz of numpy.savez");
  app.add_option("--tokens", options.tokens,
                 "A text, whose bytes are the tokens; or an .npz with batches x0, y0, x1, y1, ..");
  app.add_option("--checkpoints", options.checkpoints,
                 "Saves there, and goes on from the newest checkpoint that is there");
  app.add_option("--save-every", options.save_every, "Steps between checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--kill-in-save", options.kill_in_save,
                 "SIGKILL in the middle of this step's save");
  app.add_flag("--json", options.json, "Print one JSON object: losses, bytes, memory, seconds");
  CLI11_PARSE(app, argc, argv);
  try {
    Training training(options);
    training.run();
    if (options.json) {
      fmt::print("{}\n", training.result().dump());
    } else {
      training.summarize();
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return 3;
  }
}
