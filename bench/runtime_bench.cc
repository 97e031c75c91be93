// How much does moving data between emulated devices cost, against memcpy of the same bytes by the
// same workers, and how much does the task graph cost per task?
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "shardwise/runtime/manual.h"

namespace shardwise {
namespace {

constexpr std::int64_t kDevices = 8;

ShardedArray ones(Devices& devices, const Shape& shape, const Sharding& sharding) {
  return ShardedArray::from_callback(devices, {DType::f32, shape, sharding},
                                     [](const BoxView& view) {
                                       const std::int64_t count = view.box.num_elements();
                                       std::fill_n(reinterpret_cast<float*>(view.data), count, 1.f);
                                     });
}

void set_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// The limit: one buffer per device, copied by the same workers.
void bm_memcpy(benchmark::State& state) {
  const Executor executor;
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)) / kDevices;
  std::vector<std::vector<char>> from(kDevices, std::vector<char>(bytes, 1)), to = from;
  for (auto _ : state) {
    executor.parallel_for(kDevices, [&](std::int64_t i) {
      const std::size_t device = static_cast<std::size_t>(i);
      std::memcpy(to[device].data(), from[device].data(), bytes);
    });
    benchmark::ClobberMemory();
  }
  set_bytes(state, state.range(0));
}
BENCHMARK(bm_memcpy)->Arg(2 << 20)->Arg(32 << 20)->Arg(64 << 20)->UseRealTime();

/// Bytes are those of all devices together. Includes recording and memory, as in a step.
void bm_all_reduce(benchmark::State& state) {
  Devices devices(kDevices);
  const Mesh mesh = Mesh::line(kDevices);
  const auto array = ones(devices, {state.range(0) / 4}, Sharding::replicated(mesh, 1));
  ManualRegion region(devices, mesh);
  for (auto _ : state) {
    region.all_reduce(region.input(array), {"devices"}, Reduction::sum);
    region.run();
    region.clear();
  }
  set_bytes(state, state.range(0) * kDevices);
}
BENCHMARK(bm_all_reduce)->Arg(256 << 10)->Arg(4 << 20)->UseRealTime();

/// The plain way: one thread adds everything up and copies the sum to each device.
void bm_all_reduce_by_hand(benchmark::State& state) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / 4;
  std::vector<std::vector<float>> from(kDevices, std::vector<float>(count, 1)), to = from;
  for (auto _ : state) {
    to[0] = from[0];
    for (std::size_t device = 1; device < from.size(); ++device) {
      for (std::size_t i = 0; i < count; ++i) to[0][i] += from[device][i];
    }
    for (std::size_t device = 1; device < to.size(); ++device) to[device] = to[0];
    benchmark::ClobberMemory();
  }
  set_bytes(state, state.range(0) * kDevices);
}
BENCHMARK(bm_all_reduce_by_hand)->Arg(256 << 10)->Arg(4 << 20)->UseRealTime();

void bm_redistribute_rows_to_columns(benchmark::State& state) {
  Devices devices(kDevices);
  const Mesh mesh = Mesh::line(kDevices);
  const Shape shape{4096, state.range(0) / 4 / 4096};
  const auto array = ones(devices, shape, Sharding(mesh, PartitionSpec::parse("devices,-")));
  const Sharding columns(mesh, PartitionSpec::parse("-,devices"));
  for (auto _ : state) benchmark::DoNotOptimize(array.redistribute(devices, columns));
  set_bytes(state, state.range(0));
}
BENCHMARK(bm_redistribute_rows_to_columns)->Arg(64 << 20)->UseRealTime();

/// Eight chains that meet every tenth step.
TaskGraph eight_chains() {
  constexpr int kSteps = 1000;
  TaskGraph graph;
  std::vector<TaskGraph::TaskId> last(kDevices), next(kDevices);
  for (auto& id : last) id = graph.add();
  for (int step = 1; step < kSteps; ++step) {
    for (std::size_t device = 0; device < last.size(); ++device) {
      next[device] = step % 10 == 0 ? graph.add(last) : graph.add({last[device]});
    }
    std::swap(last, next);
  }
  return graph;
}

/// Items are tasks, here as below. A graph is built once and run again and again.
void bm_graph_of_empty_tasks_run_again(benchmark::State& state) {
  const Executor executor(static_cast<int>(state.range(0)));
  const TaskGraph graph = eight_chains();
  for (auto _ : state) executor.run(graph, [](TaskGraph::TaskId) {});
  state.SetItemsProcessed(state.iterations() * graph.size());
}
BENCHMARK(bm_graph_of_empty_tasks_run_again)->Arg(1)->Arg(2)->UseRealTime();

void bm_graph_of_empty_tasks_built_and_run(benchmark::State& state) {
  const Executor executor;
  std::int64_t tasks = 0;
  for (auto _ : state) {
    const TaskGraph graph = eight_chains();
    tasks += graph.size();
    executor.run(graph, [](TaskGraph::TaskId) {});
  }
  state.SetItemsProcessed(tasks);
}
BENCHMARK(bm_graph_of_empty_tasks_built_and_run)->UseRealTime();

/// A training step of small ops: measures recording and running a device's share of a step.
void bm_map_steps_on_eight_devices(benchmark::State& state) {
  Devices devices(kDevices);
  ManualRegion region(devices, Mesh::line(kDevices));
  const PartitionSpec cut = PartitionSpec::parse("devices,-");
  constexpr int kSteps = 100;
  for (auto _ : state) {
    auto value =
        region.map("start", {}, {{DType::f32, {64, 64}, cut}}, [](const LocalContext&) {})[0];
    for (int step = 1; step < kSteps; ++step) {
      value =
          region.map("step", {value}, {{DType::f32, {64, 64}, cut}}, [](const LocalContext&) {})[0];
    }
    region.run();
    region.clear();
  }
  state.SetItemsProcessed(state.iterations() * kSteps * kDevices);
}
BENCHMARK(bm_map_steps_on_eight_devices)->UseRealTime();

}  // namespace
}  // namespace shardwise
