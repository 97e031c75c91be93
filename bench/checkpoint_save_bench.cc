// How fast is a durable save, against writing the same bytes past the page cache and nothing else?
//
//   checkpoint_save_bench [DIRECTORY] [MIB]
//
// Saves 64 tensors of f32 with normally distributed values, 4 GiB in all unless MIB says otherwise
// or less fits into memory, from the mesh data=4,model=2, raw, zstd and auto, until everything is
// fsynced and renamed into place. Raw also as in a job that keeps one checkpoint, with the removal
// of the one before. Then the same number of bytes of bf16, zstd. The baseline writes the same
// number of bytes with O_DIRECT from two threads in blocks of 8 MiB into a file that has its size
// already, and fsyncs it. Also: how long save_async keeps its caller, with arrays (it shares them)
// and with buffers of the caller's own (it copies them), against one memcpy of them; and how much
// memory the saves take. All memory has been touched. Figures are medians of five rounds and of the
// rounds' ratios; a round runs everything in a table once. DIRECTORY is on the disk to be measured;
// the default is the working directory.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/peak_memory.h"
#include "checkpoint_bench.h"
#include "shardwise/checkpoint/manager.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

/// The tensors' bytes, one after the other, in memory like that of the tensors: on huge pages.
std::shared_ptr<Buffer> bytes_of(Devices& devices, const std::vector<ShardedArray>& tensors,
                                 std::size_t bytes) {
  auto all = devices.at(0).allocate(bytes, MemoryKind::array, "raw");
  std::byte* at = all->data();
  for (const ShardedArray& tensor : tensors) {
    const std::size_t size = num_bytes(tensor.shape(), size_bytes(tensor.dtype()));
    tensor.read(Box::whole(tensor.shape()), {at, size});
    at += size;
  }
  return all;
}

void check(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Times one durable write of all the bytes.
double write_raw(const fs::path& path, const std::byte* data, std::size_t bytes) {
  return seconds([&] {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666);
    check(fd >= 0, "open the raw file");
    check(::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0, "allocate the raw file");
    const auto write_every_second = [&](std::size_t first) {
      for (std::size_t at = first * kBlockBytes; at < bytes; at += 2 * kBlockBytes) {
        const std::size_t size = std::min(kBlockBytes, bytes - at);
        const ssize_t written = ::pwrite(fd, data + at, size, static_cast<off_t>(at));
        check(written == static_cast<ssize_t>(size), "write the raw file");
      }
    };
    {
      const std::jthread other(write_every_second, 1);
      write_every_second(0);
    }
    check(::fsync(fd) == 0 && ::close(fd) == 0, "sync the raw file");
  });
}

/// Times one copy of all the bytes, an equal share on each thread.
double copy_raw(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t threads) {
  return seconds([&] {
    std::vector<std::jthread> others;
    const auto copy_share = [&](std::size_t i) {
      const std::size_t begin = bytes / threads * i;
      std::memcpy(to + begin, from + begin, i + 1 == threads ? bytes - begin : bytes / threads);
    };
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back(copy_share, i);
    copy_share(0);
  });
}

/// The tensors as the caller's own buffers.
std::vector<TensorSource> host_sources(const std::vector<ShardedArray>& tensors,
                                       const std::byte* bytes) {
  std::vector<TensorSource> sources;
  for (const ShardedArray& tensor : tensors) {
    const std::size_t size = num_bytes(tensor.shape(), size_bytes(tensor.dtype()));
    sources.push_back(host_source(tensor_name(std::ssize(sources)), tensor.spec(), {bytes, size}));
    bytes += size;
  }
  return sources;
}

struct Tensors {
  std::vector<ShardedArray> arrays;
  std::vector<TensorSource> sources;
};

/// `bytes`: of all tensors together.
Tensors random_tensors(Devices& devices, DType dtype, std::size_t bytes) {
  const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  const auto rows = static_cast<std::int64_t>(bytes / size_bytes(dtype)) / (kTensors * kColumns);
  Tensors tensors;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    tensors.arrays.push_back(random_tensor(devices, {dtype, {rows, kColumns}, sharding}, i));
    tensors.sources.push_back(tensor_source(tensor_name(i), tensors.arrays.back()));
  }
  return tensors;
}

/// The seconds of each round.
using Times = std::map<std::string, std::vector<double>>;

/// A line for each of the named times, beside the first one.
void print(Times& times, std::size_t bytes, const char* baseline,
           std::initializer_list<std::pair<const char*, const char*>> rows) {
  fmt::print("{:<36} {:>8} {:>8} {:>8}  {}\n", "", "seconds", "GB/s", "ratio", "limit");
  for (const auto& [key, limit] : rows) {
    std::vector<double> ratios;
    for (std::size_t r = 0; r < times[key].size(); ++r) {
      ratios.push_back(times[baseline][r] / times[key][r]);
    }
    const double time = median(times[key]);
    fmt::print("{:<36} {:>8.3f} {:>8.2f} {:>8.2f}  {}\n", key, time,
               static_cast<double>(bytes) / time / 1e9, median(ratios), limit);
  }
}

/// Saves, and writes the same bytes raw, round by round.
class SaveBench {
 public:
  /// By default older checkpoints are removed before each round, else by each save.
  SaveBench(const fs::path& root, std::shared_ptr<Buffer> raw, std::size_t bytes,
            std::int64_t keep_last = 0)
      : root_(root),
        raw_(std::move(raw)),
        bytes_(bytes),
        keep_last_(keep_last),
        manager_(root, {.keep_last = keep_last, .increments = false}) {}

  /// Every round begins with a raw write.
  void measure(const std::function<void()>& round, int warm_ups = 1) {
    for (int r = -warm_ups; r < kRounds; ++r) {
      clear();
      times["raw O_DIRECT, 2 threads, fsync"].push_back(
          write_raw(root_ / "raw", raw_->data(), bytes_));
      round();
      if (r < 0) times.clear();  // it has warmed up
    }
  }

  void save(const char* what, const std::vector<TensorSource>& tensors, Codec codec) {
    ::sync();
    const Stopwatch watch;
    const SaveStats stats = manager_.save_async(++step_, tensors, {.codec = codec}).wait();
    if (keep_last_ > 0) times[what + std::string(", and retention")].push_back(watch.seconds());
    times[what].push_back(stats.total_seconds);
    blocked[what].push_back(stats.blocked_seconds);
    shares[what] =
        static_cast<double>(stats.logical_bytes) / static_cast<double>(stats.stored_bytes);
  }

  Times times, blocked;
  std::map<std::string, double> shares;

 private:
  // A file system that is mounted with "discard" takes longer to delete a file than to write it,
  // and goes on deleting while the next file is written: so that file is not measured.
  void clear() {
    for (const Step& old : manager_.steps()) {
      if (keep_last_ == 0) manager_.remove(old.step);
    }
    fs::remove(root_ / "settle");
    fs::remove(root_ / "raw");
    ::sync();
    write_raw(root_ / "settle", raw_->data(), bytes_);
    ::sync();
  }

  const fs::path root_;
  const std::shared_ptr<Buffer> raw_;
  const std::size_t bytes_;
  const std::int64_t keep_last_;
  CheckpointManager manager_;
  std::int64_t step_ = 0;
};

void bench_f32(SaveBench& bench, const Tensors& f32, std::size_t bytes) {
  const tools::PeakMemory memory;  // what the first round touches is new
  std::optional<std::size_t> peak;
  bench.measure([&] {
    bench.save("f32, none", f32.sources, Codec::none);
    bench.save("f32, zstd", f32.sources, Codec::zstd);
    bench.save("f32, auto", f32.sources, Codec::automatic);
    if (!peak) peak = memory.growth_bytes();
  });
  print(bench.times, bytes, "raw O_DIRECT, 2 threads, fsync",
        {{"raw O_DIRECT, 2 threads, fsync", ""}, {"f32, none", "0.90"}, {"f32, zstd", "0.80"}});
  fmt::print("\nzstd stores f32 at a ratio of {:.3f} (limit 1.19)\n\n", bench.shares["f32, zstd"]);
  print(bench.times, bytes, "f32, none", {{"f32, none", ""}, {"f32, auto", "0.95"}});
  fmt::print("\nsave_async of arrays keeps its caller for {:.0f} us (limit 1000)\n",
             median(bench.blocked["f32, none"]) * 1e6);
  if (peak) {
    fmt::print("saves take {} MiB of memory beyond the tensors (limit {})\n", *peak >> 20,
               (SaveOptions().memory_budget_bytes >> 20) + 64);
  }
}

// The next save writes in the files that retention removes (ManagerOptions::reuse_files).
void bench_retention(SaveBench& bench, const Tensors& f32, std::size_t bytes) {
  constexpr int kWarmUps = 4;  // each of the two files is new once, and written once more
  bench.measure([&] { bench.save("f32, none, one kept", f32.sources, Codec::none); }, kWarmUps);
  fmt::print("\n");
  print(bench.times, bytes, "raw O_DIRECT, 2 threads, fsync",
        {{"raw O_DIRECT, 2 threads, fsync", ""},
         {"f32, none, one kept", "0.90"},
         {"f32, none, one kept, and retention", "0.90"}});
}

void bench_bf16(SaveBench& bench, const Tensors& bf16, std::size_t bytes) {
  bench.measure([&] { bench.save("bf16, zstd", bf16.sources, Codec::zstd); });
  fmt::print("\n");
  print(bench.times, bytes, "raw O_DIRECT, 2 threads, fsync",
        {{"raw O_DIRECT, 2 threads, fsync", ""}, {"bf16, zstd", "0.80"}});
  fmt::print("\nzstd stores bf16 at a ratio of {:.3f} (limit 1.47)\n", bench.shares["bf16, zstd"]);
}

void bench_host_buffers(SaveBench& bench, const std::vector<TensorSource>& hosts, std::byte* to,
                        const std::byte* from, std::size_t bytes) {
  bench.measure([&] {
    bench.times["memcpy, 1 thread"].push_back(copy_raw(to, from, bytes, 1));
    bench.times["memcpy, 2 threads"].push_back(copy_raw(to, from, bytes, 2));
    bench.save("saved", hosts, Codec::none);
    bench.times["save_async, caller blocked"].push_back(bench.blocked["saved"].back());
  });
  fmt::print("\nsave_async of host buffers keeps its caller for\n\n");
  print(bench.times, bytes, "memcpy, 2 threads",
        {{"memcpy, 1 thread", ""},
         {"memcpy, 2 threads", ""},
         {"save_async, caller blocked", "0.87"}});
}

/// 4 GiB, or what fits three times: host buffers, the memory they are copied to, and the manager's
/// copies.
std::int64_t default_mib() {
  constexpr std::size_t kMost = 4096, kOthers = 1024;
  const auto available = tools::proc_bytes("/proc/meminfo", "MemAvailable:");
  if (!available) return kMost;
  const std::size_t mib = *available >> 20;
  const std::size_t fits = mib < kOthers ? 0 : (mib - kOthers) / 3;
  return static_cast<std::int64_t>(std::clamp<std::size_t>(fits / 64 * 64, 64, kMost));
}

void run(const fs::path& directory, std::int64_t mib) {
  const std::size_t bytes = static_cast<std::size_t>(rows_of(mib) * kTensors * kColumns) * 4;
  const fs::path root = directory / "checkpoint_save_bench.tmp";
  fs::remove_all(root);
  Devices device(1);
  std::shared_ptr<Buffer> raw;
  std::vector<TensorSource> hosts;
  {
    Devices devices(8);  // it keeps the memory of tensors that are gone for later ones
    fmt::print("{} MiB in {} tensors, mesh data=4,model=2, {} workers, medians of {}\n\n",
               bytes >> 20, kTensors, devices.executor().threads(), kRounds);
    {
      const Tensors f32 = random_tensors(devices, DType::f32, bytes);
      raw = bytes_of(device, f32.arrays, bytes);
      hosts = host_sources(f32.arrays, raw->data());
      {
        SaveBench bench(root, raw, bytes);
        bench_f32(bench, f32, bytes);
      }
      fs::remove_all(root);
      SaveBench bench(root, raw, bytes, 1);
      bench_retention(bench, f32, bytes);
    }
    const Tensors bf16 = random_tensors(devices, DType::bf16, bytes);
    SaveBench bench(root, raw, bytes);
    bench_bf16(bench, bf16, bytes);
  }
  const auto copy = device.at(0).allocate(bytes, MemoryKind::array, "copy");
  std::memset(copy->data(), 1, bytes);
  {
    SaveBench bench(root, raw, bytes);
    bench_host_buffers(bench, hosts, copy->data(), raw->data(), bytes);
  }
  fs::remove_all(root);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : ".", argc > 2 ? std::stoll(argv[2]) : default_mib());
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint_save_bench: {}\n", e.what());
    return 3;
  }
}
