// How fast is a restore, against reading the same bytes and doing nothing with them?
//
//   checkpoint_restore_bench DIRECTORY [MIB]
//
// Saves 16 tensors of f32, 1 GiB in all unless MIB says otherwise, raw and zstd, from the mesh
// data=4,model=2 with the spec data,model; then restores them onto the same mesh and onto
// data=2,model=4 (tiles twice as high and half as wide), and reshards them to there. The baseline
// reads the raw shard file by positioned reads from two threads. Hot rows read from the page cache;
// cold rows read after the files have been dropped from it and free memory has been touched. All
// read into memory that has been touched, too, on huge pages like device memory. Medians of five
// rounds; each round runs everything once.

#include <fcntl.h>
#include <fmt/core.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/peak_memory.h"
#include "checkpoint_bench.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/reshard.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

/// Reads the whole file from two threads into `memory`.
void read_raw(const fs::path& path, std::size_t bytes, std::byte* memory) {
  const int file = ::open(path.c_str(), O_RDONLY);
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < 2; ++t) {
    threads.emplace_back([=] {
      for (std::size_t at = t * kBlockBytes; at < bytes; at += 2 * kBlockBytes) {
        const std::size_t size = std::min(kBlockBytes, bytes - at);
        if (::pread(file, memory + at, size, static_cast<off_t>(at)) !=
            static_cast<ssize_t>(size)) {
          fmt::print(stderr, "short read\n");
          std::exit(3);
        }
      }
    });
  }
  threads.clear();
  ::close(file);
}

/// Drops the checkpoint's files, which are clean, from the page cache.
void drop_from_cache(const fs::path& checkpoint) {
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

struct Row {
  std::string name;
  std::function<void()> work;
  double limit;  ///< the ratio to the first row that must be reached
  std::vector<double> times = {};
};

/// In each round runs all rows once, calling `before` before each; prints them beside the first
/// row.
void measure(std::vector<Row>& table, std::size_t bytes, const std::function<void()>& before) {
  for (int round = 0; round < kRounds; ++round) {
    for (Row& row : table) {
      before();
      row.times.push_back(seconds(row.work));
    }
  }
  for (const Row& row : table) {
    std::vector<double> ratios;
    for (int r = 0; r < kRounds; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ratios.push_back(table[0].times[i] / row.times[i]);
    }
    fmt::print("{:<30} {:6.2f} GB/s   {:5.2f} of the raw reads (limit {:.2f})\n", row.name,
               static_cast<double>(bytes) / median(row.times) / 1e9, median(ratios), row.limit);
  }
}

int run(const fs::path& directory, std::int64_t mib) {
  // Memory that is freed stays with the process, so only the first round touches new memory.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);

  const std::int64_t rows = rows_of(mib);
  const Shape shape{rows, kColumns};
  const Sharding written(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  const Sharding turned(Mesh::parse("data=2,model=4"), PartitionSpec::parse("data,model"));
  const std::size_t bytes = num_bytes(shape, sizeof(float)) * kTensors;
  Devices devices(8);

  fs::remove_all(directory / "raw");
  fs::remove_all(directory / "zstd");
  fs::path raw, zstd;
  std::vector<std::byte> expected;
  double save_raw = 0, save_zstd = 0;
  {
    std::vector<TensorSource> tensors;
    for (std::int64_t t = 0; t < kTensors; ++t) {
      auto array = random_tensor(devices, {DType::f32, shape, written}, t);
      if (t == 0) expected = array.to_host();
      tensors.push_back(tensor_source(tensor_name(t), std::move(array)));
    }
    const auto save = [&](const char* name, Codec codec) {
      CheckpointManager manager(directory / name, {.increments = false});
      const SaveStats stats = manager.save(1, tensors, {.codec = codec});
      fmt::print("saved {:<5} {:6.1f} MiB in {:.2f} s\n", name,
                 static_cast<double>(stats.file_bytes) / (1 << 20), stats.total_seconds);
      return stats;
    };
    const SaveStats first = save("raw", Codec::none), second = save("zstd", Codec::zstd);
    raw = first.directory;
    zstd = second.directory;
    save_raw = first.total_seconds;
    save_zstd = second.total_seconds;
  }

  const auto restore = [&](const fs::path& path, const Sharding& sharding, bool once = false) {
    const CheckpointReader reader(path, {.read_once = once});
    std::vector<TensorRequest> requests;
    for (const TensorInfo& info : reader.tensors()) {
      requests.push_back({info.name, {info.dtype, info.shape, sharding}});
    }
    return reader.restore(devices, requests);
  };
  for (const fs::path& path : {raw, zstd}) {
    if (restore(path, turned)[0].to_host() != expected) {
      fmt::print(stderr, "{} came back with other values\n", path.string());
      return 3;
    }
  }

  const fs::path shard = raw / "shards-00000-of-00001.h5";
  const auto memory = devices.at(0).allocate(bytes, MemoryKind::array, "raw reads");
  std::memset(memory->data(), 1, bytes);
  const auto raw_reads = [&] { read_raw(shard, bytes, memory->data()); };
  std::vector<Row> hot{
      {"hot: raw preads, 2 threads", raw_reads, 1},
      {"hot: restore raw, same mesh", [&] { restore(raw, written); }, 0.85},
      {"hot: restore raw, transposed", [&] { restore(raw, turned); }, 0.75 * 0.85},
      {"hot: restore zstd, same mesh", [&] { restore(zstd, written); }, 0},
      {"hot: restore zstd, transposed", [&] { restore(zstd, turned); }, 0},
  };
  measure(hot, bytes, [] {});
  const auto reshard = [&](const char* name, const fs::path& source, Codec codec, double save,
                           const Row& restored) {
    fs::remove_all(directory / "turned");
    ReshardOptions options;
    options.save.codec = codec;
    const double time = seconds([&] {
      reshard_checkpoint(source, directory / "turned", turned.mesh(), SpecRules(), options);
    });
    fmt::print("reshard {:<18} {:6.2f} s      {:5.2f} of save and restore\n", name, time,
               time / (save + median(restored.times)));
  };
  reshard("raw", raw, Codec::none, save_raw, hot[2]);
  reshard("zstd", zstd, Codec::zstd, save_zstd, hot[4]);

  std::vector<Row> cold{
      {"cold: raw preads, 2 threads", raw_reads, 1},
      {"cold: restore raw, same mesh", [&] { restore(raw, written); }, 1},
      {"cold: restore zstd, same mesh", [&] { restore(zstd, written); }, 1.1},
      {"cold: raw, read_once", [&] { restore(raw, written, true); }, 1},
      {"cold: zstd, read_once", [&] { restore(zstd, written, true); }, 1.1},
  };
  measure(cold, bytes, [&] {
    drop_from_cache(raw);
    drop_from_cache(zstd);
    tools::touch_free_memory(2 * bytes);
  });

  for (const char* name : {"raw", "zstd", "turned"}) fs::remove_all(directory / name);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: checkpoint_restore_bench DIRECTORY [MIB]\n");
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? std::stoll(argv[2]) : 1024);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 3;
  }
}
