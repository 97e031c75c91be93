// Trains a small GPT on the bytes of a text, written as if for one device. A plan spreads it over a
// mesh of emulated devices: weights and batch are marked, the rest follows. It saves as it trains.
// Started again, it continues from the newest checkpoint, on any mesh and plan. With --generate it
// continues texts instead.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../step_facts.h"
#include "generate.h"
#include "model.h"
#include "plan.h"
#include "schedule.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "tokens.h"
#include "training.h"

namespace {

namespace sw = shardwise;
using Json = nlohmann::ordered_json;

struct Options {
  gpt::Sizes sizes;
  gpt::Recipe recipe;
  std::string mesh = "data=4,model=2", plan = "tensor";
  std::string weights, tokens = GPT_TEXT, checkpoints, program, schedule;
  std::int64_t micro_batches = 8;
  std::int64_t steps = 100, save_every = 50, kill_in_save = -1;
  std::uint64_t seed = 1;
  double learning_rate = 1e-3;
  bool json = false;

  gpt::GenerateCommand generate;
  std::string stop;
  bool plan_only = false;
};

/// The plan "pipeline" has a stage for each device along the axis "stage", the plan "context" a
/// block of positions for each along "context".
gpt::Recipe recipe_of(const Options& options, const sw::Mesh& mesh) {
  gpt::Recipe recipe = options.recipe;
  if (options.plan == "context") recipe.context_blocks = mesh.axis_size("context");
  if (options.plan != "pipeline") return recipe;
  recipe.scan = true;
  recipe.stages = mesh.axis_size("stage");
  recipe.micro_batches = options.micro_batches;
  return recipe;
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        mesh_(gpt::parse_mesh(options.mesh)),
        devices_(mesh_.size()),
        training_(devices_, mesh_, gpt::Plan(options.plan, mesh_), options.sizes,
                  recipe_of(options, mesh_)) {
    if (!options.checkpoints.empty()) manager_.emplace(options.checkpoints);
    const auto latest = manager_ ? manager_->latest() : std::nullopt;
    sw::LoaderState state{.seed = options.seed};
    if (latest) {
      const sw::CheckpointReader reader(latest->step.directory);
      training_.restore(reader);
      state = sw::loader_state_from_json(Json::parse(reader.user_json()).at("loader").dump());
      start_ = latest->step.step;
      fmt::print(stderr, "resumed from {}\n", latest->step.directory.string());
    } else if (options.weights.empty()) {
      training_.begin(options.seed);
    } else {
      training_.begin(options.seed, gpt::read_all(options.weights));
    }
    tokens_ = gpt::read_tokens(options.tokens, options.sizes.batch, options.sizes.context, state);
  }

  void train() {
    for (std::int64_t step = start_; step < options_.steps; ++step) {
      for (const sw::DeviceId id : devices_.addressable()) devices_.at(id).reset_peak();
      const sw::Stopwatch watch;
      losses_.push_back(training_.step(*tokens_->next(), options_.learning_rate));
      if (const auto dropped = training_.dropped()) dropped_.push_back(*dropped);
      seconds_.push_back(watch.seconds());
      if (step == start_) {
        const sw::StepSeconds first = training_.tracer().last_seconds();
        first_seconds_ = first.trace + first.compile;
        if (!options_.program.empty()) {
          sw::save_program(training_.tracer().last()->graph(), options_.program);
        }
      }
      measured_.clear();
      for (const sw::DeviceId id : devices_.addressable()) {
        measured_.push_back(devices_.at(id).memory().peak_bytes);
      }
      const std::int64_t done = step + 1;
      if (done % 10 == 0 || done == options_.steps || step == start_) {
        fmt::print(stderr, "step {:5}: loss {:.4f}{}, {:.1f} ms\n", done, losses_.back(),
                   dropped_text(), 1e3 * seconds_.back());
      }
      if (manager_ && (done % options_.save_every == 0 || done == options_.steps)) save(done);
    }
    if (manager_) manager_->close();
  }

  Json result() const {
    Json json = {{"losses", Json::array()}};
    for (const double loss : losses_) json["losses"].push_back(fmt::format("{:a}", loss));
    if (!dropped_.empty()) json["dropped"] = dropped_;
    json.update(examples::step_facts(training_.tracer().last(), mesh_.size()));
    json["measured_peak_bytes"] = measured_;
    json["first_step_seconds"] = first_seconds_;
    json["step_seconds"] = examples::median_after_first(seconds_);
    if (options_.plan == "pipeline") {
      json["bubble"] = schedule().bubble();
      json["stages"] = Json::array();
      for (const gpt::StageShare& share : shares()) {
        json["stages"].push_back(
            {{"layers", {share.first_layer, share.last_layer}}, {"peak_bytes", share.peak_bytes}});
      }
    }
    return json;
  }

  void summarize() const {
    if (losses_.empty()) return fmt::print("nothing to do: {} steps are done\n", start_);
    fmt::print("mesh {}, plan {}: loss {:.4f}{} after step {}\n", mesh_.to_string(), options_.plan,
               losses_.back(), dropped_text(), options_.steps);
    fmt::print("first step {:.1f} ms to trace, partition and plan; a step {:.1f} ms\n",
               1e3 * first_seconds_, 1e3 * examples::median_after_first(seconds_));
    if (options_.plan == "pipeline") fmt::print("{}", gpt::to_string(schedule(), shares()));
    fmt::print("{}", sw::to_string(sw::report(*training_.tracer().last(), sw::machines().front())));
  }

 private:
  gpt::Schedule schedule() const { return {mesh_.axis_size("stage"), options_.micro_batches}; }

  /// By the plan of the last step; empty without one.
  std::vector<gpt::StageShare> shares() const {
    std::vector<std::size_t> peaks;
    const sw::Executable* const step = training_.tracer().last();
    for (std::int64_t p = 0; step != nullptr && p < mesh_.size(); ++p) {
      peaks.push_back(step->memory(p).peak_bytes);
    }
    if (peaks.empty()) return {};
    return gpt::stage_shares(mesh_, options_.sizes.layers, peaks);
  }

  /// The dropped choices of the last step; empty without experts.
  std::string dropped_text() const {
    if (dropped_.empty()) return "";
    const gpt::Sizes& sizes = options_.sizes;
    return fmt::format(", dropped {} of {} choices", dropped_.back(),
                       sizes.layers * sizes.batch * sizes.context * options_.recipe.experts.top_k);
  }

  void save(std::int64_t step) {
    Json user = Json::parse(training_.user_json());
    user["loader"] = Json::parse(sw::to_json(tokens_->state()));
    sw::SaveOptions save{.user_json = user.dump(), .existing = sw::Existing::replace};
    const bool last = step == options_.kill_in_save;
    if (last) {
      fmt::print(stderr, "step {:5}: SIGKILL in the middle of this save\n", step);
      save.progress = [](const sw::Progress& progress) {
        if (2 * progress.done_bytes >= progress.total_bytes) std::raise(SIGKILL);
      };
    }
    const sw::PendingSave pending = manager_->save_async(step, training_.sources(), save);
    if (last) pending.wait();
  }

  Options options_;
  sw::Mesh mesh_;
  sw::Devices devices_;
  gpt::Training training_;
  std::unique_ptr<sw::HostLoader> tokens_;
  std::optional<sw::CheckpointManager> manager_;
  std::int64_t start_ = 0;
  std::vector<double> losses_, seconds_;
  std::vector<std::int64_t> dropped_;  ///< by step; empty without experts
  std::vector<std::size_t> measured_;
  double first_seconds_ = 0;
};

void add_model(CLI::App& app, Options& options) {
  app.add_option("--layers", options.sizes.layers)->check(CLI::PositiveNumber);
  app.add_option("--width", options.sizes.width)->check(CLI::PositiveNumber);
  app.add_option("--heads", options.sizes.heads)->check(CLI::PositiveNumber);
  app.add_option("--context", options.sizes.context)->check(CLI::PositiveNumber);
  app.add_option("--batch", options.sizes.batch)->check(CLI::PositiveNumber);
  app.add_option("--activation", options.recipe.activation, "gelu, gelu_erf or silu")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, gpt::Activation>{{"gelu", gpt::Activation::gelu},
                                                 {"gelu_erf", gpt::Activation::gelu_erf},
                                                 {"silu", gpt::Activation::silu}}));
  app.add_option("--norm", options.recipe.norm, "layer or rms")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, gpt::Norm>{{"layer", gpt::Norm::layer}, {"rms", gpt::Norm::rms}}));
  app.add_option("--dropout", options.recipe.dropout,
                 "Share of each block's output that is dropped");
  app.add_option("--clip", options.recipe.clip, "Most that the gradients' common norm may be");
  app.add_option("--recompute", options.recipe.recompute,
                 "Parts of each layer to compute again for its gradient, to save memory: none, "
                 "elementwise (all but products), inside (all but two results), all")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, gpt::Recompute>{{"none", gpt::Recompute::none},
                                                {"elementwise", gpt::Recompute::elementwise},
                                                {"inside", gpt::Recompute::inside},
                                                {"all", gpt::Recompute::all}}));
  app.add_flag("--scan", options.recipe.scan,
               "The layers are one scan: the program is no larger than that of one layer, and "
               "weights of layers are stacked (\"layers.wq\")");
}

void add_experts(CLI::App& app, gpt::Experts& experts) {
  app.add_option("--experts", experts.count,
                 "Experts of each layer, in place of one perceptron; 0: none");
  app.add_option("--experts-per-token", experts.top_k);
  app.add_option("--capacity", experts.capacity,
                 "Places of the experts over the choices of a sequence's tokens; choices without a "
                 "place are dropped. 0: none is dropped");
}

void add_serving(CLI::App& app, Options& options) {
  gpt::GenerateCommand& command = options.generate;
  app.add_option("--generate", command.texts,
                 "Continues this text from the newest checkpoint and trains nothing; may be given "
                 "several times")
      ->allow_extra_args(false);
  app.add_option("--new-tokens", command.options.tokens, "Most bytes that a text is continued by");
  app.add_option("--temperature", command.options.temperature,
                 "0: always the most likely byte; else draws by the logits over this");
  app.add_option("--top-k", command.options.top_k, "Draws among the k most likely bytes; 0: all");
  app.add_option("--stop", options.stop,
                 "Ends a text before this character, or the byte of this number");
  app.add_flag("--plan-only", options.plan_only,
               "Prints what continuing --batch texts that fill --context needs, and runs nothing");
  app.add_option("--memory", command.memory_bytes,
                 "With --plan-only: a device's memory, as 24GiB, for the most that fits")
      ->transform(CLI::AsSizeValue(false));
}

/// True if the options ask for texts, which are then printed.
bool serve(Options& options) {
  gpt::GenerateCommand& command = options.generate;
  if (command.texts.empty() && !options.plan_only) return false;
  command.mesh = options.mesh;
  command.plan = options.plan;
  command.checkpoints = options.checkpoints;
  command.json = options.json;
  command.options.seed = options.seed;
  if (!options.stop.empty()) command.options.stop = gpt::stop_byte(options.stop);
  const gpt::Recipe recipe = recipe_of(options, gpt::parse_mesh(options.mesh));
  options.plan_only ? plan_serving(command, options.sizes, recipe)
                    : generate(command, options.sizes, recipe);
  return true;
}

void draw_schedule(const Options& options) {
  if (options.schedule.empty()) return;
  if (options.plan != "pipeline") {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("--schedule: found the plan {}, needed pipeline", options.plan));
  }
  const sw::Mesh mesh = gpt::parse_mesh(options.mesh);
  static_cast<void>(gpt::Plan(options.plan, mesh));  // throws without an axis "stage"
  std::ofstream file(options.schedule);
  file << gpt::to_svg({mesh.axis_size("stage"), options.micro_batches});
  if (!file.flush()) {
    throw sw::Error(sw::ErrorCode::io,
                    fmt::format("--schedule: {} cannot be written", options.schedule));
  }
}

}  // namespace

// CLI11 throws while options are declared only if this file has a mistake.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  sw::choose_blas_kernels();  // before there are other threads
  Options options;
  CLI::App app{
      "Trains a small GPT on the bytes of a text, sharded over emulated devices, or continues "
      "texts"};
  app.option_defaults()->always_capture_default();
  add_model(app, options);
  add_experts(app, options.recipe.experts);
  add_serving(app, options);
  app.add_option(
      "--mesh", options.mesh,
      "Axes data or fsdp (the batch), model, stage, context and expert, as data=4,model=2; 1: one "
      "device");
  app.add_option(
      "--plan", options.plan,
      "How the weights are cut: none, data, fsdp, tensor, 2d, pipeline (then --scan), context "
      "(the positions), expert (then --experts)");
  app.add_option("--micro-batches", options.micro_batches, "Of the plan pipeline");
  app.add_option("--schedule", options.schedule,
                 "Draws the schedule of the plan pipeline into this file, an SVG");
  app.add_option("--steps", options.steps, "Train up to this step");
  app.add_option("--learning-rate", options.learning_rate);
  app.add_option("--seed", options.seed,
                 "Of the first weights, the order of the text, and bytes that are drawn");
  app.add_option("--weights", options.weights, "First weights: a .safetensors");
  app.add_option(
      "--tokens", options.tokens,
      "A text, whose bytes are the tokens; or a .safetensors with batches x0, y0, x1, y1, ..");
  app.add_option("--checkpoints", options.checkpoints,
                 "Saves there, and goes on from the newest checkpoint that is there");
  app.add_option(
      "--save-program", options.program,
      "Writes the step to this file: shardwise plan FILE --mesh .. plans it on any mesh");
  app.add_option("--save-every", options.save_every, "Steps between checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--kill-in-save", options.kill_in_save,
                 "SIGKILL in the middle of this step's save");
  app.add_flag("--json", options.json, "Print one JSON object: losses, bytes, memory, seconds");
  CLI11_PARSE(app, argc, argv);
  try {
    if (serve(options)) return 0;
    if (options.tokens.empty()) {
      throw sw::Error(
          sw::ErrorCode::invalid_argument,
          "found no text to train on, needed --tokens, or Debian's bible-kjv when built");
    }
    draw_schedule(options);
    Run run(options);
    run.train();
    if (options.json) {
      fmt::print("{}\n", run.result().dump());
    } else {
      run.summarize();
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt: {}\n", error.what());
    return 3;
  }
}
