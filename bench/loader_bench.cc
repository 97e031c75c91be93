// How many records of 784 bytes a second reach the devices, next to a memcpy of the same bytes in
// the same run: mesh data=4,model=2, spec data,-,- (so each row is on two devices), batches of 256
// in shuffled order, one epoch of 60,000 records per iteration.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/loader.h"
#include "shardwise/loader/sources/arrays.h"

namespace shardwise {
namespace {

constexpr std::int64_t kRecords = 60000, kBatchSize = 256;
constexpr std::size_t kRecordBytes = 784;
constexpr std::int64_t kRows =
    kRecords / kBatchSize * kBatchSize;  // per epoch: the rest is dropped

std::vector<std::byte> pixels() {
  std::vector<std::byte> data(kRecords * kRecordBytes);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return data;
}

void count_rows(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * kRows);
  state.SetBytesProcessed(state.iterations() * kRows * static_cast<std::int64_t>(kRecordBytes));
}

// Into one buffer of a batch, again and again: the naive loop that loads nothing.
void BM_MemcpyInOrder(benchmark::State& state) {
  const std::vector<std::byte> data = pixels();
  std::vector<std::byte> batch(kBatchSize * kRecordBytes);
  for (auto _ : state) {
    for (std::size_t row = 0; row < kRows; row += kBatchSize) {
      std::memcpy(batch.data(), data.data() + row * kRecordBytes, batch.size());
      benchmark::ClobberMemory();
    }
  }
  count_rows(state);
}
BENCHMARK(BM_MemcpyInOrder)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);

// The same bytes as the loader, two copies of each row, in its order.
void BM_MemcpyShuffledTwice(benchmark::State& state) {
  const std::vector<std::byte> data = pixels();
  std::vector<std::byte> batch(kBatchSize * kRecordBytes), replica(batch.size());
  for (auto _ : state) {
    const Shuffle order(kRecords, 1, 0);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::size_t to = static_cast<std::size_t>(row % kBatchSize) * kRecordBytes;
      std::memcpy(batch.data() + to,
                  data.data() + static_cast<std::size_t>(order.at(row)) * kRecordBytes,
                  kRecordBytes);
      std::memcpy(replica.data() + to, batch.data() + to, kRecordBytes);
      benchmark::ClobberMemory();
    }
  }
  count_rows(state);
}
BENCHMARK(BM_MemcpyShuffledTwice)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void run_epochs(benchmark::State& state, const std::shared_ptr<const Source>& source) {
  Devices devices(8, {.threads = 1});
  const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,-,-"));
  LoaderStats stats;
  for (auto _ : state) {
    Loader loader(devices, source, {{"image", sharding}},
                  {.batch_size = kBatchSize, .threads = static_cast<int>(state.range(0))},
                  {.seed = 1});
    while (auto batch = loader.next()) benchmark::DoNotOptimize(batch->fields[0].shard(0).data);
    stats = loader.stats();
  }
  count_rows(state);
  state.counters["consumer_waited_s"] = stats.consumer_waited_seconds;
  state.counters["readers_waited_s"] = stats.readers_waited_seconds;
}

void BM_LoaderFromMemory(benchmark::State& state) {
  run_epochs(state, memory_source({"image", DType::u8, {28, 28}}, kRecords, pixels()));
}
BENCHMARK(BM_LoaderFromMemory)
    ->Arg(1)
    ->Arg(2)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The file was written just before, so it is in the page cache.
void BM_LoaderFromIdxFile(benchmark::State& state) {
  std::string folder = (std::filesystem::temp_directory_path() / "loader_bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no temporary folder");
  const std::string path = folder + "/images-idx3-ubyte";
  const std::vector<std::byte> data = pixels();
  {
    std::ofstream out(path, std::ios::binary);
    const unsigned char header[] = {0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28};
    out.write(reinterpret_cast<const char*>(header), sizeof(header));
    out.write(reinterpret_cast<const char*>(data.data()),
              static_cast<std::streamsize>(data.size()));
  }
  run_epochs(state, open_idx(path, "image"));
  std::filesystem::remove_all(folder);
}
BENCHMARK(BM_LoaderFromIdxFile)
    ->Arg(1)
    ->Arg(2)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardwise
