// Does draining to the durable root stay within its bandwidth limit, and use it?
//
//   drain_bench [DIRECTORY] [MIB] [MIB_PER_SECOND]
//
// A TieredManager of one process saves MIB (128 unless said otherwise) of f32 in its fast tier, and
// takes them on to the durable root: without a limit, the baseline, and with
// DrainOptions::bytes_per_second (32 MiB). The rate is that of the writes below the durable root,
// from the first to the last one, without the bytes of the last one. The bars: with the limit, 0.9
// to 1.001 of it. Status 1: one is missed, or the baseline is slower than the limit. DIRECTORY is
// on the disk to be measured; the default is the working directory.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_bench.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/tiers/tiers.h"

namespace fs = std::filesystem;
using namespace shardwise;
using namespace shardwise::bench;

namespace {

constexpr double kMiB = 1 << 20;

/// Notes when each write below a folder begins.
class TimedWrites final : public ForwardingFileSystem {
 public:
  explicit TimedWrites(fs::path folder) : folder_(std::move(folder)) {}

  /// Bytes a second.
  double rate() const {
    const MutexLock lock(mutex_);
    double bytes = 0;
    for (const Write& write : writes_) bytes += static_cast<double>(write.bytes);
    const auto [first, last] = std::ranges::minmax_element(writes_, {}, &Write::time);
    const std::chrono::duration<double> seconds = last->time - first->time;
    return (bytes - static_cast<double>(last->bytes)) / seconds.count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Write {
    Clock::time_point time;
    std::size_t bytes;
  };

  class TimedFile final : public ForwardingFile {
   public:
    TimedFile(std::unique_ptr<File> real, TimedWrites& owner)
        : ForwardingFile(std::move(real)), owner_(owner) {}
    void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
      owner_.note(size);
      real().write_at(offset, data, size);
    }
    void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
      std::size_t bytes = 0;
      for (const WriteRun& run : runs) bytes += run.size;
      owner_.note(bytes);
      real().write_runs(offset, runs);
    }

   private:
    TimedWrites& owner_;
  };

  void note(std::size_t bytes) {
    const auto now = Clock::now();
    const MutexLock lock(mutex_);
    writes_.push_back({now, bytes});
  }

  std::unique_ptr<File> wrapped(std::unique_ptr<File> file, const fs::path& path) override {
    if (!path.string().starts_with(folder_.string())) return file;
    return std::make_unique<TimedFile>(std::move(file), *this);
  }

  const fs::path folder_;
  mutable Mutex mutex_;
  std::vector<Write> writes_ SHARDWISE_GUARDED_BY(mutex_);
};

double drain_rate(const fs::path& root, std::span<const float> values, std::int64_t limit) {
  fs::remove_all(root);
  const auto files = std::make_shared<TimedWrites>(fs::absolute(root / "durable"));
  TierOptions options;
  options.drain.bytes_per_second = limit;
  options.file_system = files;
  TieredManager tiers(fs::absolute(root / "fast"), fs::absolute(root / "durable"), options);
  tiers.save(1, {host_source("w", values)}, {.codec = Codec::none});
  tiers.close();
  fs::remove_all(root);
  return files->rate();
}

}  // namespace

int main(int count, char** words) {
  const fs::path directory = count > 1 ? words[1] : ".";
  const std::size_t mib = count > 2 ? std::stoul(words[2]) : 128;
  const std::int64_t limit = (count > 3 ? std::stoll(words[3]) : 32) << 20;
  const std::vector<float> values((mib << 20) / sizeof(float), 1.5f);
  const fs::path root = directory / "drain_bench.tmp";
  const double free = drain_rate(root, values, 0), limited = drain_rate(root, values, limit);
  const double ratio = limited / static_cast<double>(limit);
  const bool missed = ratio < 0.9 || ratio > 1.001 || free < static_cast<double>(limit);
  fmt::print("{} MiB: without a limit {:.1f} MiB/s; with {} MiB/s {:.2f} MiB/s, {:.4f} of it; {}\n",
             mib, free / kMiB, limit >> 20, limited / kMiB, ratio,
             missed ? "a bar is missed" : "all bars are met");
  return missed ? 1 : 0;
}
