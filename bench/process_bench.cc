// How fast do several processes save and restore one checkpoint together, and train together,
// compared with one?
//
//   mpirun -n P process_bench DIR [MIB] [ROUNDS]
//   mpirun -n P process_bench --step [STEPS]
//
// The first: 64 tensors of f32, MIB in all (2,048 unless said otherwise), cut over P devices, one
// for each process. A process has the machine's cores divided by P as threads. Each round saves and
// restores; rank 0 prints the medians, from a barrier before to a barrier after. bench/processes.sh
// runs it with 1, 2 and 4 processes in turn.
//
// The second: steps of a perceptron of eight layers on 8 devices, its batch cut over two and its
// weights over four, so that each layer sums over devices, forward and backward. Prints the
// medians.

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/device.h"
#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/process/mpi_transport.h"
#include "shardwise/runtime/tracer.h"

using namespace shardwise;
using namespace shardwise::bench;

namespace {

void run(const std::filesystem::path& dir, std::int64_t mib, int rounds, const ProcessGroup& job) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = std::max(1, cores / job.size());
  const Shape shape{rows_of(mib), kColumns};
  const Sharding sharding(Mesh::line(job.size(), "job"), PartitionSpec::parse("job,-"));
  Devices devices(job.size(), {.threads = threads, .group = job});
  const ArraySpec spec{DType::f32, shape, sharding};
  std::vector<ShardedArray> arrays;
  std::vector<TensorSource> sources;
  std::vector<TensorRequest> requests;
  for (std::int64_t t = 0; t < kTensors; ++t) {
    arrays.push_back(random_tensor(devices, spec, t));
    sources.push_back(tensor_source(tensor_name(t), arrays.back()));
    requests.push_back({tensor_name(t), spec});
  }
  CheckpointManager manager(
      dir, {.keep = {.last = 1}, .write = {.increments = false, .threads = threads}, .group = job});
  std::vector<double> saving, restoring;
  for (int round = 0; round <= rounds; ++round) {
    job.barrier();
    const double save = seconds([&] {
      manager.save(round, sources, {.codec = Codec::none});
      job.barrier();
    });
    std::vector<ShardedArray> restored;
    const double restore = seconds([&] {
      const CheckpointReader reader(manager.latest()->step.directory, {.threads = threads});
      restored = reader.restore(devices, requests);
      job.barrier();
    });
    for (std::size_t t = 0; t < restored.size(); ++t) {
      const ConstBoxView found = restored[t].shard(job.rank()),
                         needed = arrays[t].shard(job.rank());
      const std::size_t bytes = num_bytes(found.box.shape(), sizeof(float));
      if (!std::equal(found.data, found.data + bytes, needed.data)) {
        throw std::runtime_error("other values came back");
      }
    }
    if (round == 0) continue;  // it makes the files that later rounds write in
    saving.push_back(save);
    restoring.push_back(restore);
  }
  if (job.rank() > 0) return;
  const double gb = static_cast<double>(mib) * 1048576 / 1e9;
  fmt::print("{} processes x {} threads: save {:.2f} GB/s, restore {:.2f} GB/s, medians of {}\n",
             job.size(), threads, gb / median(saving), gb / median(restoring), rounds);
}

void step(int steps, const ProcessGroup& job) {
  constexpr std::int64_t kLayers = 8, kWidth = 512, kBatch = 256;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  Devices devices(8, {.threads = std::max(1, cores / job.size()), .group = job});
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=4")});
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05F);
  const auto values = [&](std::int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& value : made) value = normal(random);
    return made;
  };
  std::vector<Tensor> weights, velocities;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = fmt::format("layers/{}/w", layer);
    const PartitionSpec spec = PartitionSpec::parse(layer % 2 == 0 ? "-,model" : "model,-");
    weights.push_back(tracer.tensor<float>({kWidth, kWidth}, values(kWidth * kWidth), name,
                                           MemoryKind::parameter));
    velocities.push_back(
        full(tracer, {DType::f32, {kWidth, kWidth}}, 0, name, MemoryKind::optimizer));
    mark_sharding(weights.back(), spec);
    mark_sharding(velocities.back(), spec);
  }
  const std::vector<float> batch = values(kBatch * kWidth);
  std::vector<double> each;
  float last = 0;
  for (int number = 0; number <= steps; ++number) {
    job.barrier();
    each.push_back(seconds([&] {
      Tensor h = tracer.tensor<float>({kBatch, kWidth}, batch, "x", MemoryKind::loader);
      mark_sharding(h, PartitionSpec::parse("data,-"));
      for (const Tensor& weight : weights) h = tanh(matmul(h, weight));
      const Tensor loss = mean(h * h);
      sgd_with_momentum(weights, velocities, grad(loss, weights), 0.05);
      tracer.mark_step();
      last = static_cast<float>(loss.item());
    }));
  }
  if (job.rank() > 0) return;
  each.erase(each.begin());  // it plans
  fmt::print("{} processes: {:.2f} ms a step, the median of {}; loss {:a}\n", job.size(),
             1e3 * median(each), steps, last);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr,
               "usage: mpirun -n PROCESSES process_bench DIR [MIB] [ROUNDS]\n"
               "       mpirun -n PROCESSES process_bench --step [STEPS]\n");
    return 2;
  }
  choose_blas_kernels();  // before there are other threads
  const ProcessGroup job(mpi_transport());
  try {
    if (std::string_view(argv[1]) == "--step") {
      step(argc > 2 ? std::stoi(argv[2]) : 50, job);
      return 0;
    }
    run(argv[1], argc > 2 ? std::stoll(argv[2]) : 2048, argc > 3 ? std::stoi(argv[3]) : kRounds,
        job);
    return 0;
  } catch (const std::exception& e) {
    job.abort(e.what());
    fmt::print(stderr, "process_bench: {}\n", e.what());
    return 3;
  }
}
