// How fast is a durable save, against writing the same bytes past the page cache and nothing else?
//
//   checkpoint_save_bench [DIRECTORY] [MIB]
//
// Saves 16 tensors of f32 with normally distributed values, 1 GiB in all unless MIB says otherwise,
// from the mesh data=4,model=2, raw, zstd and auto, until everything is fsynced and renamed into
// place; and as many bytes of bf16, zstd. The baseline writes the same bytes with O_DIRECT from two
// threads in blocks of 8 MiB into a file that has its size already, and fsyncs it. Also: how long
// save_async keeps its caller, with arrays, which it shares, and with buffers of the caller's own,
// which it copies, against one memcpy of them. All memory has been touched; medians of five rounds,
// each of which runs everything once, and of the rounds' ratios. DIRECTORY is on the disk to be
// measured; the default is the working directory.

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
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/checkpoint/manager.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

/// The tensors' bytes, one behind the other, in memory like that of the tensors: on huge pages.
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

/// So many bytes in all.
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

void run(const fs::path& directory, std::int64_t mib) {
  Devices devices(8);
  const std::size_t bytes = static_cast<std::size_t>(rows_of(mib) * kTensors * kColumns) * 4;
  const Tensors f32 = random_tensors(devices, DType::f32, bytes);
  const Tensors bf16 = random_tensors(devices, DType::bf16, bytes);
  const auto raw = bytes_of(devices, f32.arrays, bytes);
  const auto copy = bytes_of(devices, f32.arrays, bytes);
  const std::vector<TensorSource> hosts = host_sources(f32.arrays, raw->data());

  const fs::path root = directory / "checkpoint_save_bench.tmp";
  fs::remove_all(root);
  CheckpointManager manager(root);
  Times times;
  std::map<std::string, double> shares;
  std::int64_t step = 0;
  const auto save = [&](const char* what, const Tensors& tensors, Codec codec) {
    ::sync();
    const PendingSave pending = manager.save_async(++step, tensors.sources, {.codec = codec});
    const SaveStats stats = pending.wait();
    times[what].push_back(stats.total_seconds);
    times["blocked"].push_back(stats.blocked_seconds);
    shares[what] =
        static_cast<double>(stats.logical_bytes) / static_cast<double>(stats.stored_bytes);
  };
  for (int round = -1; round < kRounds; ++round) {
    if (round == 0) times.clear();  // the first one warms up
    // A file system that is mounted with "discard" takes longer to delete a file than to write it,
    // and goes on doing so while the next one is written: so that one is not measured.
    for (const Step& old : manager.steps()) manager.remove(old.step);
    fs::remove(root / "settle");
    fs::remove(root / "raw");
    ::sync();
    write_raw(root / "settle", raw->data(), bytes);
    ::sync();
    times["raw O_DIRECT, 2 threads, fsync"].push_back(write_raw(root / "raw", raw->data(), bytes));
    save("f32, none", f32, Codec::none);
    save("f32, zstd", f32, Codec::zstd);
    save("f32, auto", f32, Codec::automatic);
    save("bf16, zstd", bf16, Codec::zstd);
    times["memcpy, 1 thread"].push_back(copy_raw(copy->data(), raw->data(), bytes, 1));
    times["memcpy, 2 threads"].push_back(copy_raw(copy->data(), raw->data(), bytes, 2));
    const SaveStats stats = manager.save_async(++step, hosts, {.codec = Codec::none}).wait();
    times["save_async, caller blocked"].push_back(stats.blocked_seconds);
  }
  fs::remove_all(root);

  fmt::print("{} MiB in {} tensors, mesh data=4,model=2, {} workers, medians of {}\n\n",
             bytes >> 20, kTensors, devices.executor().threads(), kRounds);
  print(times, bytes, "raw O_DIRECT, 2 threads, fsync",
        {{"raw O_DIRECT, 2 threads, fsync", ""},
         {"f32, none", "0.90"},
         {"f32, zstd", "0.80"},
         {"bf16, zstd", "0.80"}});
  fmt::print("\nzstd stores f32 at a ratio of {:.3f} (limit 1.19), bf16 of {:.3f} (1.47)\n\n",
             shares["f32, zstd"], shares["bf16, zstd"]);
  print(times, bytes, "f32, none", {{"f32, none", ""}, {"f32, auto", "0.95"}});
  fmt::print(
      "\nsave_async of arrays keeps its caller for {:.0f} us (limit 1000); of host buffers:\n\n",
      median(times["blocked"]) * 1e6);
  print(times, bytes, "memcpy, 2 threads",
        {{"memcpy, 1 thread", ""},
         {"memcpy, 2 threads", ""},
         {"save_async, caller blocked", "0.87"}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : ".", argc > 2 ? std::stoll(argv[2]) : 1024);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint_save_bench: {}\n", e.what());
    return 3;
  }
}
