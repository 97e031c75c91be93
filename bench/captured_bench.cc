// Runs a captured program step by step, as a training loop does: the replaced weights and optimizer
// state are inputs of the next step, and stay on the devices. For bench/rivals/programs; command
// line and output are those of programs_bench.

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "given.h"
#include "shardwise/convert/program_file.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace {

using namespace shardwise;

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const std::map<std::string, std::string>& options) {
  const Stopwatch planning;
  const auto graph = std::make_shared<const Graph>(load_program(options.at("--program")));
  const auto given = gpt::read_all(options.at("--inputs"));
  const Mesh mesh = Mesh::parse(options.at("--mesh"));
  const std::size_t count = graph->inputs.size();
  const Executable executable(graph, mesh, {.may_donate = std::vector<bool>(count, true)});
  const double first = planning.seconds();
  Devices devices(mesh.size());
  const auto array = [&](std::size_t i, const std::string& name) {
    const auto found = given.find(name);
    if (found == given.end()) {
      throw Error(ErrorCode::not_found, fmt::format("found no input \"{}\" in the file", name));
    }
    return ShardedArray::from_host(devices, executable.input_spec(i), found->second.bytes,
                                   graph->inputs[i].label, graph->inputs[i].kind);
  };
  const auto is_data = [&](std::size_t i) {
    return graph->inputs[i].kind == MemoryKind::loader ||
           given.contains(graph->inputs[i].label + "0");
  };
  std::vector<std::optional<ShardedArray>> kept(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_data(i)) kept[i] = array(i, graph->inputs[i].label);
  }
  std::string losses;
  std::vector<double> seconds, processor;
  const int steps = std::stoi(options.at("--steps"));
  for (int step = 0; step < steps; ++step) {
    for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
    const double before = processor_seconds();
    const Stopwatch watch;
    std::vector<ShardedArray> inputs;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_data(i)) {
        inputs.push_back(array(i, fmt::format("{}{}", graph->inputs[i].label, step % 4)));
      } else {
        inputs.push_back(std::move(*kept[i]));
        kept[i].reset();
      }
    }
    std::vector<ShardedArray> outputs = executable.run(devices, std::move(inputs));
    float loss = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::int64_t input = executable.replaced()[i];
      if (input >= 0) {
        kept[static_cast<std::size_t>(input)] = std::move(outputs[i]);
      } else if (graph->node(graph->outputs[i]).type.shape.empty()) {
        outputs[i].read(Box::whole({}), std::as_writable_bytes(std::span(&loss, 1)));
      }
    }
    losses += fmt::format("{}\"{:a}\"", losses.empty() ? "" : ",", loss);
    seconds.push_back(watch.seconds());
    processor.push_back(processor_seconds() - before);
  }
  seconds.erase(seconds.begin());
  processor.erase(processor.begin());
  std::string planned, measured;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    planned += fmt::format("{}{}", p == 0 ? "" : ",", executable.memory(p).peak_bytes);
    measured += fmt::format("{}{}", p == 0 ? "" : ",", devices.at(p).memory().peak_bytes);
  }
  fmt::print(
      "{{\"losses\":[{}],\"collectives\":[],\"planned_peak_bytes\":[{}],\"measured_peak_bytes\":[{}"
      "],"
      "\"first_step_seconds\":{},\"step_seconds\":{},\"processor_seconds\":{}}}\n",
      losses, planned, measured, first, middle(seconds), middle(processor));
}

}  // namespace

int main(int argc, char** argv) {
  choose_blas_kernels();  // before there are other threads
  std::map<std::string, std::string> options{{"--mesh", "data=8"}, {"--steps", "20"}};
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  if (!options.contains("--program") || !options.contains("--inputs")) {
    fmt::print(stderr,
               "usage: captured_bench --program FILE.swp --inputs FILE.safetensors --mesh MESH "
               "[--steps N]; made by "
               "bench/rivals/programs/captured.py\n");
    return 2;
  }
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "captured_bench: {}\n", error.what());
    return 3;
  }
}
