// Measures saves and restores that `shardwise bench` does not (bench/checkpoint.py runs that).
//
//   checkpoint_memory_bench [DIRECTORY] [MIB]
//
// How long does save_async block a caller whose tensors are host buffers, which it copies, against
// one memcpy of them by two threads? And how fast is a cold restore that reads each byte once
// (ReadOptions::read_once), against reading the shard file from two threads? 64 tensors of f32,
// 1024 MiB in all unless MIB says otherwise; medians of five rounds. DIRECTORY is on the disk to
// measure; the default is the working directory.

#include <fmt/core.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/peak_memory.h"
#include "bench/raw_io.h"
#include "checkpoint_bench.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"

namespace fs = std::filesystem;
using namespace shardwise;

namespace {

/// Times one copy of all the bytes, half of them on each of two threads.
double copy_raw(std::byte* to, const std::byte* from, std::size_t bytes) {
  return bench::seconds([&] {
    const std::jthread other([=] { std::memcpy(to, from, bytes / 2); });
    std::memcpy(to + bytes / 2, from + bytes / 2, bytes - bytes / 2);
  });
}

/// Rounds of a baseline and of the case that is compared with it.
struct Rounds {
  std::vector<double> baseline, times;

  void print(const char* name, const char* compared, double limit) const {
    std::vector<double> ratios;
    for (std::size_t r = 0; r < times.size(); ++r) ratios.push_back(baseline[r] / times[r]);
    fmt::print("{:<40} {:8.3f} s  {:5.2f} of {} (limit {:.2f})\n", name, bench::median(times),
               bench::median(ratios), compared, limit);
  }
};

void run(const fs::path& directory, std::int64_t mib) {
  const Shape shape{bench::rows_of(mib), bench::kColumns};
  const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  const ArraySpec spec{DType::f32, shape, sharding};
  const std::size_t size = num_bytes(shape, sizeof(float)), bytes = size * bench::kTensors;
  const fs::path root = directory / "checkpoint_memory_bench.tmp";
  fs::remove_all(root);
  Devices devices(8);
  const tools::TouchedPages from(bytes), to(bytes);
  std::vector<TensorSource> sources;
  std::vector<TensorRequest> requests;
  for (std::int64_t t = 0; t < bench::kTensors; ++t) {
    const auto at = from.bytes().subspan(static_cast<std::size_t>(t) * size, size);
    bench::random_tensor(devices, spec, t).read(Box::whole(shape), at);
    sources.push_back(host_source(bench::tensor_name(t), spec, at));
    requests.push_back({bench::tensor_name(t), spec});
  }
  CheckpointManager manager(root, {.keep = {.last = 1}, .write = {.increments = false}});
  Rounds blocked;
  for (int round = 0; round <= bench::kRounds; ++round) {
    const double copied = copy_raw(to.bytes().data(), from.bytes().data(), bytes);
    const SaveStats stats = manager.save_async(round, sources, {.codec = Codec::none}).wait();
    if (round == 0) continue;  // it has warmed up
    blocked.baseline.push_back(copied);
    blocked.times.push_back(stats.blocked_seconds);
  }
  blocked.print("save_async of host buffers, blocked", "memcpy, 2 threads", 0.87);
  for (const auto& [codec, limit] : {std::pair(Codec::none, 1.0), std::pair(Codec::zstd, 1.1)}) {
    const fs::path step =
        manager.save(codec == Codec::none ? 100 : 101, sources, {.codec = codec}).directory;
    const fs::path file = step / "shards-00000-of-00001.h5";
    const auto drop = [&] {
      for (const auto& entry : fs::directory_iterator(step)) tools::drop_from_cache(entry.path());
      tools::touch_free_memory(2 * bytes);
    };
    Rounds cold;
    for (int round = 0; round < bench::kRounds; ++round) {
      drop();
      const double raw = tools::read_raw({&file, 1}, to.bytes(), 2, {});
      cold.baseline.push_back(raw * static_cast<double>(bytes) /
                              static_cast<double>(fs::file_size(file)));  // for as many bytes
      drop();
      cold.times.push_back(bench::seconds(
          [&] { CheckpointReader(step, {.read_once = true}).restore(devices, requests); }));
    }
    cold.print(
        codec == Codec::none ? "cold restore, none, read_once" : "cold restore, zstd, read_once",
        "raw reads, 2 threads", limit);
  }
  fs::remove_all(root);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : ".", argc > 2 ? std::stoll(argv[2]) : 1024);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint_memory_bench: {}\n", e.what());
    return 3;
  }
}
