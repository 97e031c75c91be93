// How much does a save cost if little has changed since the step before?
//
//   increments_bench [DIRECTORY] [MIB] [none|zstd|auto]
//
// Saves MIB (default 1,024) of f32 tensors of random normals in the caller's memory, and keeps two
// steps. Each round makes these saves, each once the disk is idle: a whole save without increments,
// the baseline; then three with increments, after no chunk, a twentieth and all of them have
// changed. Prints medians of five rounds, and the bytes written. The bars: for a twentieth, 0.15 of
// the baseline's time and bytes; for all, 1.05 of its time. Exits with 1 if a bar is missed.
// DIRECTORY is on the disk to measure; the default is the working directory.

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/jobs/manager.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The caller's tensors of one dim, one of 16 MiB after the other: their chunks are runs of 1 MiB.
class Model {
 public:
  explicit Model(std::size_t mib) : values_(mib * kMiB / sizeof(float)) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    for (float& value : values_) value = normal(random);
  }

  std::size_t bytes() const { return values_.size() * sizeof(float); }

  /// Changes one value in this part of all runs of 1 MiB.
  void change(double part) {
    constexpr std::size_t kRun = kMiB / sizeof(float);
    std::vector<std::size_t> runs(values_.size() / kRun);
    std::iota(runs.begin(), runs.end(), std::size_t{0});
    std::shuffle(runs.begin(), runs.end(), random_);
    runs.resize(static_cast<std::size_t>(part * static_cast<double>(runs.size()) + 0.5));
    for (const std::size_t run : runs) values_[run * kRun + random_() % kRun] += 1;
  }

  std::vector<TensorSource> sources() const {
    constexpr std::size_t kTensor = 16 * kMiB / sizeof(float);
    std::vector<TensorSource> sources;
    for (std::size_t begin = 0; begin < values_.size(); begin += kTensor) {
      sources.push_back(host_source(tensor_name(static_cast<std::int64_t>(begin / kTensor)),
                                    {static_cast<std::int64_t>(kTensor)},
                                    std::span(values_).subspan(begin, kTensor)));
    }
    return sources;
  }

 private:
  std::vector<float> values_;
  std::mt19937_64 random_{2};
};

struct Row {
  std::vector<double> seconds;
  std::size_t file_bytes = 0, unchanged_bytes = 0;
};

}  // namespace

int main(int count, char** words) {
  const fs::path directory = count > 1 ? words[1] : ".";
  const std::size_t mib = count > 2 ? std::stoul(words[2]) : 1024;
  const std::string codec_name = count > 3 ? words[3] : "zstd";
  const Codec codec = codec_name == "none"   ? Codec::none
                      : codec_name == "auto" ? Codec::automatic
                                             : Codec::zstd;
  const fs::path root = directory / "increments_bench.tmp";
  fs::remove_all(root);
  const Model model(mib);
  std::map<std::string, Row> rows;
  {
    // Each has a steady state of its own: a save recycles files of the saves before it.
    CheckpointManager whole(root / "whole", {.keep = {.last = 2}, .write = {.increments = false}});
    CheckpointManager fresh(root / "fresh", {.keep = {.last = 2},
                                             .write = {.reuse_files = false, .increments = false}});
    CheckpointManager all(root / "all", {.keep = {.last = 2}});
    CheckpointManager twentieth(root / "twentieth", {.keep = {.last = 2}});
    CheckpointManager none(root / "none", {.keep = {.last = 2}});
    Model all_changes = model, some_change = model;
    for (int round = -3; round < kRounds; ++round) {
      const auto measure = [&](const char* name, CheckpointManager& manager, const Model& of) {
        ::sync();
        const SaveStats stats = manager.save(round + 3, of.sources(), {.codec = codec});
        if (round < 0) return;
        Row& row = rows[name];
        row.seconds.push_back(stats.total_seconds);
        row.file_bytes = stats.file_bytes;
        row.unchanged_bytes = stats.unchanged_bytes;
      };
      all_changes.change(1);
      some_change.change(0.05);
      measure("whole", whole, all_changes);
      measure("all changed", all, all_changes);
      measure("a twentieth changed", twentieth, some_change);
      measure("none changed", none, model);
      measure("whole, in new room", fresh, all_changes);
    }
  }
  fs::remove_all(root);
  const Row& whole = rows["whole"];
  bool missed = false;
  fmt::print("{} MiB of f32, codec {}: medians of {} rounds\n", mib, codec_name, kRounds);
  for (const char* name :
       {"whole", "whole, in new room", "all changed", "a twentieth changed", "none changed"}) {
    const Row& row = rows[name];
    const double time = median(row.seconds) / median(whole.seconds);
    const double bytes =
        static_cast<double>(row.file_bytes) / static_cast<double>(whole.file_bytes);
    fmt::print(
        "{:<20} {:7.3f} s  {:8.1f} MiB written  {:8.1f} MiB unchanged  {:5.2f} x time  "
        "{:5.2f} x bytes\n",
        name, median(row.seconds), static_cast<double>(row.file_bytes) / kMiB,
        static_cast<double>(row.unchanged_bytes) / kMiB, time, bytes);
    if (std::strcmp(name, "all changed") == 0) missed = missed || time > 1.05;
    if (std::strcmp(name, "a twentieth changed") == 0) {
      const double fresh = median(row.seconds) / median(rows["whole, in new room"].seconds);
      missed = missed || fresh > 0.15 || bytes > 0.15;
    }
  }
  fmt::print("{}\n", missed ? "a bar is missed" : "all bars are met");
  return missed ? 1 : 0;
}
