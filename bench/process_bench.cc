// How fast do several processes save and restore one checkpoint together, compared with one?
//
//   mpirun -n P process_bench DIR [MIB] [ROUNDS]
//
// 64 tensors of f32, MIB in all (2,048 unless said otherwise), cut over P devices, one for each
// process. A process has the machine's cores divided by P as threads. Each round saves and
// restores; rank 0 prints the medians, from a barrier before to a barrier after. bench/processes.sh
// runs it with 1, 2 and 4 processes in turn.

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/device.h"
#include "shardwise/runtime/process/mpi_transport.h"

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
      dir, {.keep_last = 1, .increments = false, .threads = threads, .group = job});
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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: mpirun -n PROCESSES process_bench DIR [MIB] [ROUNDS]\n");
    return 2;
  }
  const ProcessGroup job(mpi_transport());
  try {
    run(argv[1], argc > 2 ? std::stoll(argv[2]) : 2048, argc > 3 ? std::stoi(argv[3]) : kRounds,
        job);
    return 0;
  } catch (const std::exception& e) {
    job.abort(e.what());
    fmt::print(stderr, "process_bench: {}\n", e.what());
    return 3;
  }
}
