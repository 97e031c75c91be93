#include "shardwise/convert/detail/box_runs.h"

#include <cstring>
#include <vector>

#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {
namespace {

// A read costs about as much as copying 16 KiB.
constexpr std::uint64_t kLargestGap = 16 << 10, kLargestRead = 256 << 10;
constexpr std::size_t kMostRuns = 8192;

/// Collects runs in ascending order; they are read together once the next one is too far away.
class GatheredRuns {
 public:
  explicit GatheredRuns(File& file) : file_(file) {}

  void add(std::uint64_t offset, std::byte* out, std::size_t size) {
    const bool joins = !runs_.empty() && runs_.size() < kMostRuns && offset - end_ <= kLargestGap &&
                       offset + size - runs_.front().offset <= kLargestRead;
    if (!joins) flush();
    runs_.push_back({offset, out, size});
    end_ = offset + size;
  }

  void flush() {
    if (runs_.size() == 1) {
      file_.read_at(runs_[0].offset, runs_[0].out, runs_[0].size);
    } else if (!runs_.empty()) {
      const std::uint64_t begin = runs_.front().offset;
      buffer_.resize(static_cast<std::size_t>(end_ - begin));
      file_.read_at(begin, buffer_.data(), buffer_.size());
      for (const Run& run : runs_) {
        std::memcpy(run.out, buffer_.data() + (run.offset - begin), run.size);
      }
    }
    runs_.clear();
  }

 private:
  struct Run {
    std::uint64_t offset;
    std::byte* out;
    std::size_t size;
  };

  File& file_;
  std::vector<Run> runs_;
  std::vector<std::byte> buffer_;
  std::uint64_t end_ = 0;
};

}  // namespace

void read_box(File& file, std::uint64_t offset, const Shape& shape, std::size_t element_bytes,
              const Box& box, std::span<std::byte> out) {
  GatheredRuns runs(file);
  const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    runs.add(offset + as_size(from) * element_bytes, out.data() + as_size(to) * element_bytes,
             as_size(count) * element_bytes);
  };
  for_each_run(walk_runs(box, Box::whole(shape), box), add);
  runs.flush();
}

}  // namespace shardwise::detail
