// How fast are checkpoints of very many small tensors?
//
//   checkpoint_small_bench [DIRECTORY] [TENSORS] [none|zstd|auto]
//
// Saves TENSORS tensors (default 10,000) of f32 [1024] until everything is fsynced and renamed into
// place, opens the checkpoint and restores all of them into new arrays: once on one device, once
// cut over the mesh data=4,model=2, which makes 80,000 shards. Saves bypass the page cache, so the
// first restore reads from the disk; the second one finds the files in memory. The baseline writes
// the same bytes to one file at once and fsyncs it, and reads them back at once, from the page
// cache, into memory that is new, too. Also measures how long save_async blocks its caller. Prints
// medians of five rounds, each running everything once, with the processor time of all threads.
// bench/rivals compares saves and restores with safetensors, which they must beat. DIRECTORY is on
// the disk to measure; the default is the working directory.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

constexpr std::int64_t kElements = 1024;

struct Measured {
  std::vector<double> wall, cpu;
};
using Times = std::map<std::string, Measured>;

void check(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

void write_raw(const fs::path& path, const std::vector<std::byte>& data) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(fd >= 0, "open the raw file");
  const ssize_t written = ::pwrite(fd, data.data(), data.size(), 0);
  check(written == static_cast<ssize_t>(data.size()), "write the raw file");
  check(::fsync(fd) == 0 && ::close(fd) == 0, "sync the raw file");
}

void read_raw(const fs::path& path, std::size_t bytes) {
  const std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);  // not touched before
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "open the raw file");
  const ssize_t got = ::pread(fd, memory.get(), bytes, 0);
  check(got == static_cast<ssize_t>(bytes), "read the raw file");
  ::close(fd);
}

struct Case {
  const char* mesh;
  const char* spec;
};

void run(const fs::path& directory, std::int64_t count, Codec codec, const Case& c) {
  const Sharding sharding(Mesh::parse(c.mesh), PartitionSpec::parse(c.spec));
  Devices devices(sharding.mesh().size());
  const ArraySpec spec{DType::f32, {kElements}, sharding};
  std::vector<ShardedArray> tensors;
  std::vector<TensorSource> sources;
  std::vector<TensorRequest> requests;
  for (std::int64_t i = 0; i < count; ++i) {
    tensors.push_back(random_tensor(devices, spec, i));
    sources.push_back(tensor_source(tensor_name(i), tensors.back()));
    requests.push_back({tensor_name(i), spec});
  }
  const auto bytes = static_cast<std::size_t>(count * kElements) * 4;
  const std::vector<std::byte> raw(bytes, std::byte{1});
  const fs::path root = directory / "checkpoint_small_bench.tmp";
  fs::remove_all(root);
  CheckpointManager manager(root, {.write = {.increments = false}});  // each save is a whole one
  Times times;
  for (int round = -1; round < kRounds; ++round) {
    if (round == 0) times.clear();  // the first one warms up
    const auto time = [&](const char* what, const std::function<void()>& work) {
      const std::clock_t before = std::clock();
      times[what].wall.push_back(seconds(work));
      times[what].cpu.push_back(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
    };
    ::sync();
    time("raw write", [&] { write_raw(root / "raw", raw); });
    time("raw read", [&] { read_raw(root / "raw", bytes); });
    fs::remove(root / "raw");
    ::sync();
    fs::path step;
    std::vector<TensorSource> given = sources;  // the caller's own copy
    PendingSave pending;
    time("save_async",
         [&] { pending = manager.save_async(2, std::move(given), {.codec = codec}); });
    pending.wait();
    manager.remove(2);
    ::sync();
    time("save", [&] { step = manager.save(1, sources, {.codec = codec}).directory; });
    for (const bool hot : {false, true}) {
      std::unique_ptr<CheckpointReader> reader;
      time(hot ? "open" : "open cold", [&] { reader = std::make_unique<CheckpointReader>(step); });
      std::vector<ShardedArray> restored;
      time(hot ? "restore" : "restore cold",
           [&] { restored = reader->restore(devices, requests); });
      if (restored.back().to_host() != tensors.back().to_host()) {
        throw std::runtime_error("the restored tensors differ from the saved ones");
      }
    }
    manager.remove(1);
  }
  fs::remove_all(root);

  fmt::print("\n{} tensors of f32 [{}], mesh \"{}\", spec \"{}\", {} workers, median of {}\n",
             count, kElements, c.mesh, c.spec, devices.executor().threads(), kRounds);
  const auto line = [&](const char* what, const char* key, const char* baseline,
                        const char* limit = "") {
    const double wall = median(times[key].wall);
    fmt::print("{:<32} {:>8.4f} {:>8.4f} {:>10.2f}  {}\n", what, wall, median(times[key].cpu),
               wall / median(times[baseline].wall), limit);
  };
  fmt::print("{:<32} {:>8} {:>8} {:>10}  {}\n", "", "seconds", "of CPU", "x baseline", "limit");
  line("one write of the bytes, fsync", "raw write", "raw write");
  line("save, durable", "save", "raw write", "faster than safetensors: bench/rivals");
  line("save_async, caller blocked", "save_async", "raw write", "<= 0.001 s");
  line("one read of the bytes", "raw read", "raw read");
  line("open, from the disk", "open cold", "raw read");
  line("restore, from the disk", "restore cold", "raw read");
  line("open", "open", "raw read", "<= 0.05 s");
  line("restore", "restore", "raw read", "with open faster than safetensors: bench/rivals");
}

Codec codec_of(const std::string& text) {
  return text == "none" ? Codec::none : text == "zstd" ? Codec::zstd : Codec::automatic;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::int64_t count = argc > 2 ? std::stoll(argv[2]) : 10'000;
    const Codec codec = codec_of(argc > 3 ? argv[3] : "auto");
    for (const Case& c : {Case{"", "-"}, Case{"data=4,model=2", "data+model"}}) {
      run(argc > 1 ? argv[1] : ".", count, codec, c);
    }
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint_small_bench: {}\n", e.what());
    return 3;
  }
}
