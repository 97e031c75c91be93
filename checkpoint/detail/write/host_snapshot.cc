#include "shardwise/checkpoint/detail/write/host_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "shardwise/checkpoint/detail/host_reader.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/storage/detail/stream_copy.h"

namespace shardwise::detail {
namespace {

// A worker copies so much at once, over the borders of tensors.
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

// Copies begin at multiples of this, as allocations of their own would; large ones on pages, to be
// written from there.
constexpr std::size_t kAlignment = 64;

std::size_t copy_begin(std::size_t place, std::size_t size) {
  const std::size_t to = size >= kLeastPagedBytes ? kPageBytes : kAlignment;
  return (place + to - 1) / to * to;
}

// A tensor's elements, and where they go in the snapshot.
struct Range {
  std::span<const std::byte> from;
  std::size_t begin;
};

void copy_block(std::span<const Range> ranges, std::byte* to, std::size_t begin, std::size_t end) {
  auto range = std::upper_bound(
      ranges.begin(), ranges.end(), begin,
      [](std::size_t place, const Range& candidate) { return place < candidate.begin; });
  for (--range; range != ranges.end() && range->begin < end; ++range) {
    const std::size_t first = std::max(begin, range->begin);
    const std::size_t last = std::min(end, range->begin + range->from.size());
    if (first >= last) continue;
    stream_copy(to + first, range->from.data() + (first - range->begin), last - first);
  }
  stream_fence();
}

}  // namespace

void HostSnapshot::take(std::vector<TensorSource>& sources, const Executor& executor) {
  std::vector<Range> ranges;  // one for each shard of each host source
  std::size_t bytes = 0;
  for (const TensorSource& source : sources) {
    const auto* const host = dynamic_cast<const HostReader*>(source.reader.get());
    if (host == nullptr) continue;
    for (const ConstBoxView& shard : host->shards()) {
      const std::size_t size = num_bytes(shard.box.shape(), size_bytes(info_of(source).dtype));
      ranges.push_back({{shard.data, size}, copy_begin(bytes, size)});
      bytes = ranges.back().begin + size;
    }
  }
  if (bytes == 0) return;
  if (bytes > held_bytes_) {
    held_bytes_ = 0;
    memory_.reset();  // first, so that never both are there
    memory_ = page_memory(bytes);
    held_bytes_ = bytes;
  }
  const std::size_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  executor.parallel_for(static_cast<std::int64_t>(blocks), [&](std::int64_t block) {
    const std::size_t begin = static_cast<std::size_t>(block) * kBlockBytes;
    copy_block(ranges, memory_.get(), begin, std::min(begin + kBlockBytes, bytes));
  });
  auto range = ranges.begin();
  for (TensorSource& source : sources) {
    const auto* const host = dynamic_cast<const HostReader*>(source.reader.get());
    if (host == nullptr) continue;
    std::vector<ConstBoxView> copies(host->shards().begin(), host->shards().end());
    for (ConstBoxView& copy : copies) copy.data = memory_.get() + (range++)->begin;
    source.reader = std::make_shared<HostReader>(info_of(source), std::move(copies));
  }
}

}  // namespace shardwise::detail
