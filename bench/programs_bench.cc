// A traced perceptron of three layers, trained by SGD with momentum, for bench/rivals/programs,
// where it is case P1. Command line and output are those of examples/gpt.

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "given.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/error.h"

namespace {

using namespace shardwise;

constexpr const char* kNames[] = {"w1", "b1", "w2", "b2", "w3", "b3"};
constexpr double kRate = 0.05;

/// Cuts columns of the first weight and rows of the second over "model", and the longest dim that
/// is still whole and divides over "fsdp".
PartitionSpec spec_of(std::string_view name, const Shape& shape, const Mesh& mesh) {
  std::vector<PartitionSpec::Entry> entries(shape.size());
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "model" && (name == "w1" || name == "b1")) entries.back() = {"model"};
    if (axis.name == "model" && name == "w2") entries.front() = {"model"};
    if (axis.name != "fsdp") continue;
    std::size_t longest = shape.size();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (!entries[dim].empty() || shape[dim] % axis.size != 0) continue;
      if (longest == shape.size() || shape[dim] > shape[longest]) longest = dim;
    }
    if (longest < shape.size()) entries[longest] = {"fsdp"};
  }
  return PartitionSpec(std::move(entries));
}

void run(const std::map<std::string, std::string>& options) {
  const std::string& text = options.at("--mesh");
  const Mesh mesh = Mesh::parse(text == "1" ? "" : text);
  PartitionSpec::Entry batch_axes;
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "data" || axis.name == "fsdp") batch_axes.push_back(axis.name);
  }
  const auto given = gpt::read_all(options.at("--weights"));
  const auto batches = gpt::read_all(options.at("--tokens"));
  Devices devices(mesh.size());
  Tracer tracer(devices, {.mesh = mesh});
  std::vector<Tensor> weights, velocities;
  for (const char* const name : kNames) {
    const gpt::Given& array = given.at(name);
    const PartitionSpec spec = spec_of(name, array.shape, mesh);
    weights.push_back(
        tracer.tensor({array.dtype, array.shape}, array.bytes, name, MemoryKind::parameter));
    velocities.push_back(full(tracer, {array.dtype, array.shape}, 0, name, MemoryKind::optimizer));
    mark_sharding(weights.back(), spec);
    mark_sharding(velocities.back(), spec);
  }
  std::string losses;
  std::vector<double> seconds;
  double first = 0;
  const int steps = std::stoi(options.at("--steps"));
  for (int step = 0; step < steps; ++step) {
    const Stopwatch watch;
    for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
    const Tensor loss = [&] {
      const auto input = [&](const char* prefix) {
        const gpt::Given& array = batches.at(fmt::format("{}{}", prefix, step % 4));
        Tensor tensor =
            tracer.tensor({array.dtype, array.shape}, array.bytes, prefix, MemoryKind::loader);
        std::vector<PartitionSpec::Entry> entries(array.shape.size());
        entries[0] = batch_axes;
        mark_sharding(tensor, PartitionSpec(std::move(entries)));
        return tensor;
      };
      const Tensor x = input("x"), y = input("y");
      const Tensor h = relu(linear(x, weights[0], weights[1]));
      const Tensor logits = linear(relu(linear(h, weights[2], weights[3])), weights[4], weights[5]);
      const Tensor mean = cross_entropy(logits, y);
      sgd_with_momentum(weights, velocities, grad(mean, weights), kRate);
      return mean;
    }();
    tracer.mark_step();
    losses += fmt::format("{}\"{:a}\"", losses.empty() ? "" : ",", loss.item());
    if (step == 0) first = tracer.last_seconds().trace + tracer.last_seconds().compile;
    seconds.push_back(watch.seconds());
  }
  std::sort(seconds.begin() + 1, seconds.end());
  std::string collectives, planned, measured;
  for (const CollectiveTotal& total : tracer.last()->collectives()) {
    collectives += fmt::format("{}{{\"kind\":\"{}\",\"count\":{},\"bytes\":{},\"wire_bytes\":{}}}",
                               collectives.empty() ? "" : ",", name(total.kind), total.count,
                               total.bytes, total.wire_bytes);
  }
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    planned += fmt::format("{}{}", p == 0 ? "" : ",", tracer.last()->memory(p).peak_bytes);
    measured += fmt::format("{}{}", p == 0 ? "" : ",", devices.at(p).memory().peak_bytes);
  }
  fmt::print(
      "{{\"losses\":[{}],\"collectives\":[{}],\"planned_peak_bytes\":[{}],\"measured_peak_bytes\":["
      "{}],"
      "\"first_step_seconds\":{},\"step_seconds\":{}}}\n",
      losses, collectives, planned, measured, first, seconds[1 + (seconds.size() - 1) / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  choose_blas_kernels();  // before there are other threads
  std::map<std::string, std::string> options{{"--mesh", "data=8"}, {"--steps", "20"}};
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("--")) options[argv[i]] = argv[i + 1];
  }
  if (options.count("--weights") == 0 || options.count("--tokens") == 0) {
    fmt::print(
        stderr,
        "usage: programs_bench --mesh MESH --weights FILE.safetensors --tokens FILE.safetensors "
        "[--steps N]; made by bench/rivals/programs/run.py\n");
    return 2;
  }
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "programs_bench: {}\n", error.what());
    return 3;
  }
}
