// Trains a ResNet on Fashion-MNIST, written as if for one device. A plan cuts the images of a
// batch, the rows of each image, or both over a mesh of emulated devices; a device then fetches the
// rows of its neighbours that a convolution reads, and no more.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "../step_facts.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "training.h"

namespace {

namespace sw = shardwise;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  convnet::Sizes sizes;
  std::string data = FASHION_MNIST_DIR, mesh = "data=4,space=2", plan = "both";
  std::int64_t epochs = 3, steps = 0;
  std::uint64_t seed = 1;
  double learning_rate = 0.3;
  bool json = false, only_plans = false;
};

std::shared_ptr<const sw::Source> open_images(const fs::path& dir, const std::string& part) {
  return sw::zip({sw::open_idx(dir / (part + "-images-idx3-ubyte.gz"), "image"),
                  sw::open_idx(dir / (part + "-labels-idx1-ubyte.gz"), "label")});
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        mesh_(sw::Mesh::parse(options.mesh == "1" ? "" : options.mesh)),
        devices_(mesh_.size()),
        training_(devices_, mesh_, convnet::Plan(options.plan, mesh_), options.sizes) {}

  void plan() {
    training_.begin_abstract();
    training_.plan_step();
  }

  void train() {
    training_.begin(options_.seed);
    sw::Loader loader(devices_, open_images(options_.data, "train"), training_.placements(),
                      {.batch_size = options_.sizes.batch, .epochs = options_.epochs},
                      {.seed = options_.seed});
    const std::int64_t all = options_.epochs * loader.batches_per_epoch();
    const std::int64_t steps = options_.steps == 0 ? all : std::min(all, options_.steps);
    while (static_cast<std::int64_t>(losses_.size()) < steps) {
      const auto batch = loader.next();
      const sw::Stopwatch watch;
      losses_.push_back(training_.step(*batch, rate(batch->index, all)));
      seconds_.push_back(watch.seconds());
      const std::size_t done = losses_.size();
      if (done == 1) {
        const sw::StepSeconds first = training_.tracer().last_seconds();
        first_seconds_ = first.trace + first.compile;
      }
      if (done % 50 == 0 || done == 1) {
        fmt::print(stderr, "step {:4} of {}: loss {:.4f}, {:.1f} ms\n", done, steps, losses_.back(),
                   1e3 * seconds_.back());
      }
    }
    report_ = sw::report(*training_.tracer().last(), sw::machines().front());
  }

  /// Percentage of test images with the right label.
  double accuracy() {
    const auto source = open_images(options_.data, "t10k");
    sw::Loader loader(devices_, source, training_.placements(),
                      {.batch_size = options_.sizes.batch,
                       .order = sw::RecordOrder::sequential,
                       .last_batch = sw::LastBatch::pad});
    std::int64_t correct = 0;
    while (const auto batch = loader.next()) correct += training_.count_correct(*batch);
    return 100.0 * static_cast<double>(correct) / static_cast<double>(source->size());
  }

  Json facts() const { return examples::step_facts(training_.tracer().last(), mesh_.size()); }

  void print_plan() const {
    fmt::print("{}", sw::to_string(sw::report(*training_.tracer().last(), sw::machines().front())));
  }

  void print_result() {
    if (losses_.empty()) return;
    Json json = {{"losses", Json::array()}};
    for (const double loss : losses_) json["losses"].push_back(loss);
    json["first_step_seconds"] = first_seconds_;
    json["step_seconds"] = examples::median_after_first(seconds_);
    json.update(facts());
    const double percent = accuracy();
    json["accuracy"] = percent;
    json["seconds"] = watch_.seconds();
    if (options_.json) return fmt::print("{}\n", json.dump());
    fmt::print("mesh {}, plan {}: loss {:.4f} after {} steps, accuracy {:.2f} %\n",
               mesh_.to_string(), options_.plan, losses_.back(), losses_.size(), percent);
    fmt::print("first step {:.1f} ms to trace, partition and plan; a step {:.1f} ms\n",
               1e3 * first_seconds_, 1e3 * examples::median_after_first(seconds_));
    fmt::print("{}", sw::to_string(*report_));
  }

 private:
  /// Rises in the first tenth, then falls as a cosine.
  double rate(std::int64_t step, std::int64_t steps) const {
    const double at = static_cast<double>(step) / static_cast<double>(steps);
    const double down = 0.5 * (1 + std::cos(std::numbers::pi * at));
    return options_.learning_rate * std::min(1.0, 0.1 + 9 * at) * down;
  }

  Options options_;
  sw::Mesh mesh_;
  sw::Devices devices_;
  convnet::Training training_;
  std::vector<double> losses_, seconds_;
  std::optional<sw::StepReport> report_;
  double first_seconds_ = 0;
  sw::Stopwatch watch_;
};

}  // namespace

// CLI11 throws while options are declared only if this file has a mistake.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  sw::choose_blas_kernels();  // before there are other threads
  Options options;
  CLI::App app{"Trains a ResNet on Fashion-MNIST, sharded over emulated devices"};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "Folder with the idx.gz files");
  app.add_option("--depth", options.sizes.depth, "8, 18 or 50");
  app.add_option("--width", options.sizes.width, "Features of the first stage; 64 as published")
      ->check(CLI::Range(1, 4096));
  app.add_option("--batch", options.sizes.batch)->check(CLI::Range(2, 65536));
  app.add_option("--mesh", options.mesh, "Axes, as data=4,space=2; 1: one device");
  app.add_option(
      "--plan", options.plan,
      "What is cut: batch, the images over all axes; spatial, their rows; both, the rows "
      "over the axis space and the images over the others");
  app.add_option("--epochs", options.epochs)->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "End after as many; 0: after all epochs")
      ->check(CLI::Range(0, 1'000'000'000));
  app.add_option("--seed", options.seed, "Of the first weights and the order of images");
  app.add_option("--learning-rate", options.learning_rate);
  app.add_flag("--only-plan", options.only_plans,
               "Run nothing: print a step's needs, without data");
  app.add_flag("--json", options.json, "Print one JSON object: losses, accuracy, bytes, memory");
  CLI11_PARSE(app, argc, argv);
  try {
    Run run(options);
    if (options.only_plans) {
      run.plan();
      if (options.json) {
        fmt::print("{}\n", run.facts().dump());
      } else {
        run.print_plan();
      }
      return 0;
    }
    run.train();
    run.print_result();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "convnet: {}\n", error.what());
    return 3;
  }
}
