// How fast is a checkpoint's parity written, from memory and to it, and damage restored, against a
// memcpy and against a copy of the file with an fsync, in the same run?
//
//   parity_bench DIR [GIB]

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "shardwise/jobs/manager.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/mend/parity.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

constexpr int kRepeat = 5;

/// The shortest time of several runs.
double best_seconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < kRepeat; ++i) {
    const Stopwatch watch;
    run();
    best = std::min(best, watch.seconds());
  }
  return best;
}

void copy_and_sync(const fs::path& from, const fs::path& to) {
  fs::remove(to);
  const auto files = posix_file_system();
  const auto source = files->open(from), target = files->create(to, Caching::cached);
  std::vector<std::byte> part(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < source->size(); at += part.size()) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), source->size() - at));
    source->read_at(at, part.data(), size);
    target->write_at(at, part.data(), size);
  }
  target->sync();
  target->close();
}

void run(const fs::path& dir, std::size_t gib) {
  const std::size_t bytes = gib << 30;
  std::vector<float> values(bytes / sizeof(float));
  std::uint32_t state = 1;
  for (float& value : values) value = static_cast<float>(state = state * 1664525u + 1013904223u);
  const fs::path root = dir / "parity_bench";
  fs::remove_all(root);
  CheckpointManager manager(root);
  const fs::path step =
      manager.save(1, {host_source("w", values)}, {.codec = Codec::none}).directory;
  std::vector<float> copy(values.size());
  const double memcpy_seconds =
      best_seconds([&] { std::memcpy(copy.data(), values.data(), bytes); });
  const fs::path file = step / "shards-00000-of-00001.h5";
  const double copy_seconds = best_seconds([&] { copy_and_sync(file, root / "copy"); });
  const double gb = static_cast<double>(bytes) / 1e9;
  fmt::print("{:>24} {:>8} {:>8} {:>10} {:>12}\n", "", "GB/s", "% more", "of memcpy",
             "of cp, fsync");
  const auto print = [&](const std::string& what, double seconds, double percent) {
    fmt::print("{:>24} {:8.2f} {:8.2f} {:10.2f} {:12.2f}\n", what, gb / seconds, percent,
               memcpy_seconds / seconds, copy_seconds / seconds);
  };
  print("memcpy, 1 thread", memcpy_seconds, 100);
  print("cp, fsync", copy_seconds, 100);
  for (const int blocks : {1, 2, 4, 8, 16}) {
    ParityStats stats;
    const double seconds = best_seconds([&] {
      remove_parity(step);
      stats = mend_detail::write_parity_files(*posix_file_system(), step, {.blocks = blocks});
    });
    print(fmt::format("parity, {} blocks", blocks), seconds,
          100 * static_cast<double>(stats.parity_bytes) / static_cast<double>(bytes));
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace shardwise

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "parity_bench DIR [GIB]\n");
    return 2;
  }
  shardwise::run(argv[1], argc == 3 ? static_cast<std::size_t>(std::atoi(argv[2])) : 1);
  return 0;
}
