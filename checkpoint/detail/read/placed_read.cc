#include "shardwise/checkpoint/detail/read/placed_read.h"

#include <algorithm>

#include "shardwise/checkpoint/detail/hash.h"

namespace shardwise::detail {
namespace {

// Bytes are hashed while they are still in the processor's cache (measured: 6.7 GB/s read and
// hashed against 6.5 with 1 MiB, on two cores).
constexpr std::size_t kHashedBytes = std::size_t{256} << 10;

/// Thread-compatible.
class HashingReader {
 public:
  HashingReader(File& file, std::uint64_t address) : file_(file), address_(address) {}

  void add(std::byte* data, std::size_t size) {
    while (size > 0) {
      const std::size_t part = std::min(size, kHashedBytes - pending_bytes_);
      pending_.push_back({data, part});
      pending_bytes_ += part;
      data += part;
      size -= part;
      if (pending_bytes_ == kHashedBytes) flush();
    }
  }

  std::uint64_t finish() {
    flush();
    return hasher_.digest();
  }

 private:
  void flush() {
    file_.read_runs(address_, pending_);
    for (const ReadRun& run : pending_) hasher_.update(run.data, run.size);
    address_ += pending_bytes_;
    pending_bytes_ = 0;
    pending_.clear();
  }

  File& file_;
  std::uint64_t address_;
  std::vector<ReadRun> pending_;
  std::size_t pending_bytes_ = 0;
  Hasher64 hasher_;
};

}  // namespace

std::uint64_t read_placed(File& file, std::uint64_t address, std::size_t size,
                          std::span<const PlacedRun> runs, std::vector<std::byte>& unwanted) {
  file.will_read(address, size);
  HashingReader reader(file, address);
  std::size_t at = 0;
  const auto skip_to = [&](std::size_t place) {
    if (place == at) return;
    if (unwanted.size() < size) unwanted.resize(size);  // once: reads that are under way stay valid
    reader.add(unwanted.data() + at, place - at);
    at = place;
  };
  for (const PlacedRun& run : runs) {
    skip_to(run.from);
    reader.add(run.to, run.size);
    at += run.size;
  }
  skip_to(size);
  return reader.finish();
}

}  // namespace shardwise::detail
