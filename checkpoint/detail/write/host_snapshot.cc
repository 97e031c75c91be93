#include "shardwise/checkpoint/detail/write/host_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "shardwise/checkpoint/detail/stream_copy.h"

namespace shardwise::detail {
namespace {

// What a worker copies at once, over the borders of tensors.
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

// Copies begin at multiples of this, as allocations of their own would; large ones on pages, to be
// written from there.
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLeastPagedBytes = std::size_t{64} << 10;

std::size_t copy_begin(std::size_t place, std::size_t size) {
  const std::size_t to = size >= kLeastPagedBytes ? kPageBytes : kAlignment;
  return (place + to - 1) / to * to;
}

struct Range {
  std::span<const std::byte> from;
  std::size_t begin;  // in the snapshot
};

void copy_block(std::span<const Range> ranges, std::byte* to, std::size_t begin, std::size_t end) {
  auto range = std::upper_bound(
      ranges.begin(), ranges.end(), begin,
      [](std::size_t place, const Range& candidate) { return place < candidate.begin; });
  for (--range; range != ranges.end() && range->begin < end; ++range) {
    const std::size_t first = std::max(begin, range->begin);
    const std::size_t last = std::min(end, range->begin + range->from.size());
    if (first >= last) continue;  // between two copies
    stream_copy(to + first, range->from.data() + (first - range->begin), last - first);
  }
  stream_fence();
}

}  // namespace

void HostSnapshot::take(std::vector<TensorSource>& sources, const Executor& executor) {
  std::vector<Range> ranges;
  std::size_t bytes = 0;
  for (const TensorSource& source : sources) {
    if (source.host.empty()) continue;
    ranges.push_back({source.host, copy_begin(bytes, source.host.size())});
    bytes = ranges.back().begin + source.host.size();
  }
  if (ranges.empty()) return;
  if (bytes > held_bytes_) {
    held_bytes_ = 0;
    memory_.reset();  // first, so that never both are there
    memory_ = page_memory(bytes);
    held_bytes_ = bytes;
  }
  std::vector<TensorSource> copies;
  for (std::size_t i = 0, next = 0; i < sources.size(); ++i) {
    const TensorSource& source = sources[i];
    if (source.host.empty()) {
      copies.push_back(source);
      continue;
    }
    const Range& range = ranges[next++];
    copies.push_back(
        host_source(source.name, source.spec, {memory_.get() + range.begin, range.from.size()}));
  }
  const std::size_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  executor.parallel_for(static_cast<std::int64_t>(blocks), [&](std::int64_t block) {
    const std::size_t begin = static_cast<std::size_t>(block) * kBlockBytes;
    copy_block(ranges, memory_.get(), begin, std::min(begin + kBlockBytes, bytes));
  });
  sources = std::move(copies);
}

}  // namespace shardwise::detail
