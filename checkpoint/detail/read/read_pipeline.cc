#include "shardwise/checkpoint/detail/read/read_pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "shardwise/checkpoint/detail/lanes.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {
namespace {

// One read fetches up to so many bytes, those between two items among them where they are few.
// What is larger leaves the processor's second-level cache before it is used; a hole of 64 KiB
// takes less time than another read.
constexpr std::size_t kExtentBytes = std::size_t{1} << 20;
constexpr std::uint64_t kHoleBytes = std::uint64_t{64} << 10;

std::uint64_t page_below(std::uint64_t place) { return place / kPageBytes * kPageBytes; }
std::uint64_t page_above(std::uint64_t place) { return page_below(place + kPageBytes - 1); }

/// What one read fetches: some items that follow one another in a file, or one fetched item.
struct Extent {
  std::size_t first_item, num_items;
  std::uint64_t begin, end;
};

/// Whether the item can be read together with the extent before it.
bool joins(const Extent& extent, const ReadItem& before, const ReadItem& item,
           std::size_t extent_bytes) {
  return item.file == before.file && !item.fetched && !before.fetched &&
         item.address - extent.end <= kHoleBytes &&
         item.address + item.bytes - extent.begin <= extent_bytes;
}

std::vector<Extent> make_extents(std::span<const ReadItem> items, std::size_t extent_bytes) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReadItem& item = items[i];
    if (i == 0 || !joins(extents.back(), items[i - 1], item, extent_bytes)) {
      extents.push_back({i, 0, item.address, item.address});
    }
    ++extents.back().num_items;
    extents.back().end = item.address + item.bytes;
  }
  return extents;
}

void extend_to_pages(std::span<Extent> extents, const ReadJob& job) {
  for (Extent& extent : extents) {
    extent.begin = page_below(extent.begin);
    extent.end =
        std::min(page_above(extent.end), job.file_sizes[job.items[extent.first_item].file]);
  }
}

/// One run of a job.
class Pipeline {
 public:
  explicit Pipeline(const ReadJob& job);

  void run();

 private:
  void process(const Extent& extent, PageMemory& buffer);
  void consume(const Extent& extent, const std::byte* data);

  const ReadJob& job_;
  std::vector<Extent> extents_;
  std::size_t largest_ = 0;  // of the extents that need a buffer
  std::size_t lanes_ = 1;
  LaneSlots computing_;
};

Pipeline::Pipeline(const ReadJob& job) : job_(job), computing_(job.threads) {
  const std::size_t lanes = 2 * static_cast<std::size_t>(job.threads);
  const std::size_t share = job.budget_bytes / lanes;
  extents_ =
      make_extents(job.items, std::min(share - std::min(share, job.call_bytes), kExtentBytes));
  if (!job.file_sizes.empty()) extend_to_pages(extents_, job);
  for (const Extent& extent : extents_) {
    if (job.items[extent.first_item].fetched) continue;
    largest_ = std::max(largest_, static_cast<std::size_t>(extent.end - extent.begin));
  }
  const std::size_t lane_bytes = std::max<std::size_t>(largest_ + job.call_bytes, 1);
  lanes_ = std::clamp<std::size_t>(job.budget_bytes / lane_bytes, 1, lanes);
}

void Pipeline::process(const Extent& extent, PageMemory& buffer) {
  const ReadItem& first = job_.items[extent.first_item];
  if (first.fetched) {
    job_.fetch(extent.first_item);
    return;
  }
  if (buffer == nullptr) buffer = page_memory(largest_);
  try {
    job_.files[first.file]->read_at(extent.begin, buffer.get(),
                                    static_cast<std::size_t>(extent.end - extent.begin));
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("read {}: {}", job_.describe(extent.first_item), e.what()));
  }
  const LaneSlots::Use slot(computing_);
  consume(extent, buffer.get());
}

void Pipeline::consume(const Extent& extent, const std::byte* data) {
  for (std::size_t i = extent.first_item; i < extent.first_item + extent.num_items; ++i) {
    const ReadItem& item = job_.items[i];
    job_.consume(i, {data + (item.address - extent.begin), item.bytes});
  }
}

void Pipeline::run() {
  std::vector<PageMemory> buffers(lanes_);  // made by the lanes that need them
  run_lanes(
      {.jobs = extents_.size(),
       .lanes = lanes_,
       .run = [&](std::size_t job, std::size_t lane) { process(extents_[job], buffers[lane]); },
       .progress = job_.progress});
}

}  // namespace

void run_read_job(const ReadJob& job) { Pipeline(job).run(); }

}  // namespace shardwise::detail
