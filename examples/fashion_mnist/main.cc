// Trains a classifier of Fashion-MNIST on emulated devices, saving as it goes. If it is killed at
// any moment, it resumes exactly where the last checkpoint left off, on this mesh or another.
// scripts/demo.sh shows it.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/error.h"

namespace {

namespace sw = shardwise;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::string data = FASHION_MNIST_DIR;
  std::string mesh = "data=4,model=2", mode = "manual";
  std::string checkpoints;
  std::string digests;   ///< file that gets a line per batch
  std::string timeline;  ///< file that gets what happened when
  std::int64_t epochs = 5, batch = 256, save_every = 200, kill_in_save = -1;
  std::uint64_t seed = 1;
  double learning_rate = 0.05;
  bool resume = false, json = false;
};

/// Checks the fields that the model relies on. Throws invalid_argument.
void check(const sw::Source& source) {
  const sw::Field image{"image", sw::DType::u8, {28, 28}}, label{"label", sw::DType::u8, {}};
  if (!(source.fields()[0] == image && source.fields()[1] == label)) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    "the data is not 28 x 28 images with a label, all u8");
  }
  std::byte value{};
  for (std::int64_t record = 0; record < source.size(); ++record) {
    source.read_box(1, record, {&value, sw::Box()});
    if (std::to_integer<std::int64_t>(value) >= fashion_mnist::kClasses) {
      throw sw::Error(sw::ErrorCode::invalid_argument,
                      fmt::format("label {} of record {} is not one of {} classes",
                                  std::to_integer<int>(value), record, fashion_mnist::kClasses));
    }
  }
}

std::shared_ptr<const sw::Source> open_images(const fs::path& dir, const std::string& part) {
  auto source = sw::zip({sw::open_idx(dir / (part + "-images-idx3-ubyte.gz"), "image"),
                         sw::open_idx(dir / (part + "-labels-idx1-ubyte.gz"), "label")});
  check(*source);
  return source;
}

std::vector<sw::FieldPlacement> placements(const sw::Mesh& mesh) {
  return {{"image", sw::Sharding(mesh, sw::PartitionSpec::parse("data,-,-"))},
          {"label", sw::Sharding(mesh, sw::PartitionSpec::parse("data"))}};
}

/// FNV-1a over the whole global batch, to show that two runs get the same data.
std::uint64_t digest(const sw::Batch& batch) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const sw::ShardedArray& field : batch.fields) {
    for (const std::byte b : field.to_host()) {
      hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3u;
    }
  }
  return hash;
}

double sum(const sw::ShardedArray& array) {
  const std::vector<std::byte> bytes = array.to_host();
  long double total = 0;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    total += *reinterpret_cast<const float*>(bytes.data() + i);
  }
  return static_cast<double>(total);
}

/// Ends this process, as a power cut would, when half of the save is on its way.
sw::ProgressFunction kill_halfway() {
  return [](const sw::Progress& progress) {
    if (2 * progress.done_bytes >= progress.total_bytes) std::raise(SIGKILL);
  };
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        mesh_(sw::Mesh::parse(options.mesh)),
        timeline_(options.timeline.empty() ? nullptr : std::make_shared<sw::Timeline>()),
        devices_(mesh_.size(), {.timeline = timeline_}),
        manager_(options.checkpoints),
        source_(open_images(options.data, "train")) {
    if (options.mode == "traced") tracer_.emplace(devices_, sw::TracerOptions{.mesh = mesh_});
  }

  void train() {
    const sw::LoaderState start = begin();
    sw::Loader loader(devices_, source_, placements(mesh_),
                      {.batch_size = options_.batch, .epochs = options_.epochs}, start);
    const std::int64_t steps = options_.epochs * loader.batches_per_epoch();
    fmt::print(progress_, "mesh {}: steps {} to {}, batch {}\n", mesh_.to_string(),
               start.next_batch, steps, options_.batch);
    std::ofstream digests;
    if (!options_.digests.empty()) digests.open(options_.digests);
    double loss = 0;
    while (const auto batch = loader.next()) {
      if (digests.is_open()) digests << fmt::format("{} {:016x}\n", batch->index, digest(*batch));
      const float learning_rate = rate(batch->index, steps);
      loss = tracer_ ? fashion_mnist::train_step(*tracer_, state_, *batch, learning_rate)
                     : fashion_mnist::train_step(devices_, state_, *batch, learning_rate);
      const std::int64_t step = batch->index + 1;
      if (step % options_.save_every == 0 || step == steps) {
        fmt::print(progress_, "step {:5}: loss {:.4f}\n", step, loss);
        std::fflush(progress_);
        save(step, loader.state());
      }
    }
    if (!options_.digests.empty() && !digests.flush()) {
      throw sw::Error(sw::ErrorCode::io, options_.digests + " cannot be written");
    }
    manager_.close();
    if (timeline_) write_timeline();
    report(loader, loss);
  }

 private:
  void write_timeline() const {
    std::ofstream file(options_.timeline);
    if (!(file << sw::to_trace_json(*timeline_)).flush()) {
      throw sw::Error(sw::ErrorCode::io, options_.timeline + " cannot be written");
    }
    fmt::print(progress_, "{}\n", sw::to_string(sw::step_times(*timeline_)));
  }

  /// Restores the newest valid checkpoint if asked to, or makes a fresh model.
  sw::LoaderState begin() {
    const auto latest = options_.resume ? manager_.latest() : std::nullopt;
    if (!latest) {
      if (options_.resume) {
        throw sw::Error(sw::ErrorCode::not_found,
                        options_.checkpoints + " holds no checkpoint to resume");
      }
      if (!manager_.steps().empty()) {
        throw sw::Error(
            sw::ErrorCode::already_exists,
            options_.checkpoints + " holds checkpoints: --resume, or another directory");
      }
      state_ = fashion_mnist::initial_state(devices_, mesh_, options_.seed);
      return {.seed = options_.seed};
    }
    const sw::CheckpointReader reader(latest->step.directory);
    state_ = fashion_mnist::restore(devices_, mesh_, reader);
    const Json user = Json::parse(reader.user_json());
    fmt::print(progress_, "resumed from {}\n", latest->step.directory.string());
    return sw::loader_state_from_json(user.at("loader").dump());
  }

  float rate(std::int64_t step, std::int64_t steps) const {
    const double progress = static_cast<double>(step) / static_cast<double>(steps);
    return static_cast<float>(options_.learning_rate * 0.5 * (1 + std::cos(progress * 3.14159265)));
  }

  void save(std::int64_t step, const sw::LoaderState& loader) {
    const Json user = {{"model", "fashion-mnist two-layer perceptron"},
                       {"loader", Json::parse(sw::to_json(loader))}};
    // A resumed run passes damaged steps again: it replaces them.
    sw::SaveOptions save{.user_json = user.dump(), .existing = sw::Existing::replace};
    const bool last = step == options_.kill_in_save;
    if (last) {
      fmt::print(progress_, "step {:5}: SIGKILL in the middle of this save\n", step);
      std::fflush(progress_);
      save.progress = kill_halfway();
    }
    saves_.push_back(manager_.save_async(step, fashion_mnist::sources(state_), save));
    if (last) saves_.back().wait();
  }

  double test_accuracy() {
    const auto source = open_images(options_.data, "t10k");
    sw::Loader loader(devices_, source, placements(mesh_),
                      {.batch_size = 512,
                       .order = sw::RecordOrder::sequential,
                       .last_batch = sw::LastBatch::pad});
    std::int64_t correct = 0;
    while (const auto batch = loader.next()) {
      correct += tracer_ ? fashion_mnist::count_correct(*tracer_, state_, *batch)
                         : fashion_mnist::count_correct(devices_, state_, *batch);
    }
    return 100.0 * static_cast<double>(correct) / static_cast<double>(source->size());
  }

  void report(const sw::Loader& loader, double loss) {
    const double seconds = watch_.seconds();
    std::size_t peak = 0;
    for (const sw::DeviceId id : devices_.addressable()) {
      peak = std::max(peak, devices_.at(id).memory().peak_bytes);
    }
    double blocked = 0;
    for (const sw::PendingSave& save : saves_)
      blocked = std::max(blocked, save.wait().blocked_seconds);
    Json lines;
    const auto add = [&](const char* name, const char* format, double value) {
      const std::string text = fmt::format(fmt::runtime(format), value);
      if (!options_.json) fmt::print("{} {}\n", name, text);
      lines[name] = Json::parse(text);
    };
    add("loss", "{:.4f}", loss);
    add("accuracy", "{:.2f}", test_accuracy());
    add("w1_sum", "{:.9g}", sum(state_.arrays[0]));
    add("peak_bytes_per_device", "{:.0f}", static_cast<double>(peak));
    add("save_blocked_ms", "{:.3f}", 1000 * blocked);
    add("waited_for_data_s", "{:.2f}", loader.stats().consumer_waited_seconds);
    add("seconds", "{:.1f}", seconds);
    if (options_.json) fmt::print("{}\n", lines.dump());
  }

  Options options_;
  sw::Mesh mesh_;
  std::shared_ptr<sw::Timeline> timeline_;
  sw::Devices devices_;
  std::optional<sw::Tracer> tracer_;
  std::FILE* progress_ = options_.json ? stderr : stdout;
  sw::CheckpointManager manager_;
  std::shared_ptr<const sw::Source> source_;
  fashion_mnist::State state_;
  std::vector<sw::PendingSave> saves_;
  sw::Stopwatch watch_;
};

}  // namespace

// CLI11 throws while options are declared only if this file has a mistake.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  sw::choose_blas_kernels();  // before there are other threads
  Options options;
  CLI::App app{"Trains a classifier of Fashion-MNIST on emulated devices"};
  app.add_option("--data", options.data, "Folder with the idx.gz files")->capture_default_str();
  app.add_option("--mesh", options.mesh, "Mesh with the axes data and model")
      ->capture_default_str();
  app.add_option("--mode", options.mode,
                 "manual: each device's part by hand; traced: a program for one device")
      ->check(CLI::IsMember({"manual", "traced"}))
      ->capture_default_str();
  app.add_option("--checkpoints", options.checkpoints, "Where to save and resume")->required();
  app.add_option("--epochs", options.epochs)->capture_default_str();
  app.add_option("--batch", options.batch)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate)->capture_default_str();
  app.add_option("--save-every", options.save_every, "Steps between checkpoints")
      ->capture_default_str();
  app.add_flag("--resume", options.resume, "Continue from the newest valid checkpoint");
  app.add_option("--digests", options.digests, "File that gets the digest of each batch");
  app.add_option(
      "--timeline", options.timeline,
      "File that gets what happened when, for ui.perfetto.dev; says what steps wait for");
  app.add_option("--kill-in-save", options.kill_in_save,
                 "SIGKILL in the middle of this step's save");
  app.add_flag("--json", options.json, "Print the result as one JSON object, the rest to stderr");
  CLI11_PARSE(app, argc, argv);
  try {
    Run(options).train();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fashion_mnist: {}\n", error.what());
    return 3;
  }
}
