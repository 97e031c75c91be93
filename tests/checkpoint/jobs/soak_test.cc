// Many asynchronous saves of one process, with retention, increments and parity: memory, file
// descriptors, threads and files are as after the first saves.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "shardwise/jobs/manager.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

constexpr int kFirstSaves = 20;
constexpr long kMostGrowthKiB = 4 << 10;

struct Use {
  long memory_kib = 0, descriptors = 0, threads = 0, files = 0;
};

std::ptrdiff_t entries_in(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

Use use_of_process(const fs::path& root) {
  Use use{.descriptors = entries_in("/proc/self/fd"), .threads = entries_in("/proc/self/task")};
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) use.memory_kib = std::stol(line.substr(6));
  }
  use.files =
      std::distance(fs::recursive_directory_iterator(root), fs::recursive_directory_iterator());
  return use;
}

void soak(int saves) {
  const TempDir dir;
  const ArraySpec spec{DType::u8, {3 << 20}, Sharding(Mesh::line(2), PartitionSpec::parse("0"))};
  std::vector<std::byte> a(3 << 20), b(3 << 20);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::byte>(i * i >> 7);
    b[i] = static_cast<std::byte>(i * i >> 9);
  }
  std::vector<Use> uses;
  {
    CheckpointManager manager(dir / "root",
                              {.keep = {.last = 3}, .write = {.parity_blocks = 1, .threads = 2}});
    for (int step = 1; step <= saves; ++step) {
      // One chunk of a tensor has changed: the others are linked.
      (step % 2 == 0 ? a : b)[7] = static_cast<std::byte>(step);
      manager.save_async(step, {host_source("a", spec, a), host_source("b", spec, b)});
      manager.wait();
      malloc_trim(0);
      uses.push_back(use_of_process(dir / "root"));
    }
  }
  std::cout << "save memory_kib descriptors threads files\n";
  const std::size_t stride = std::max<std::size_t>(uses.size() / 25, 1);
  for (std::size_t i = 0; i < uses.size(); i += stride) {
    const Use& use = uses[i];
    std::cout << i + 1 << ' ' << use.memory_kib << ' ' << use.descriptors << ' ' << use.threads
              << ' ' << use.files << '\n';
  }
  const auto most = [&](long Use::*number, std::size_t begin, std::size_t end) {
    long found = 0;
    for (std::size_t i = begin; i < end; ++i) found = std::max(found, uses[i].*number);
    return found;
  };
  const auto grows_by = [&](long Use::*number) {
    return most(number, kFirstSaves, uses.size()) - most(number, 0, kFirstSaves);
  };
  EXPECT_LE(grows_by(&Use::memory_kib), kMostGrowthKiB);
  EXPECT_LE(grows_by(&Use::descriptors), 0);
  EXPECT_LE(grows_by(&Use::threads), 0);
  EXPECT_LE(grows_by(&Use::files), 0);
}

TEST(Soak, FiftySavesUseWhatTwentyDo) { soak(50); }

TEST(SoakNightly, AThousandSavesUseWhatTwentyDo) { soak(1000); }

}  // namespace
}  // namespace shardwise
