#include "shardwise/checkpoint/detail/read/read_pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// One read fetches up to this much, the bytes between two ranges among them if they are few. A
// larger read leaves the processor's second-level cache before it is used; a hole of 64 KiB takes
// less time than another read. Another machine takes its time for each request, and gives a
// connection a part of its rate (docs/object_stores.md).
constexpr std::size_t kExtentBytes = std::size_t{1} << 20;
constexpr std::size_t kRemoteExtentBytes = std::size_t{8} << 20;
constexpr std::size_t kRemoteLanes = 16;
constexpr std::uint64_t kHoleBytes = std::uint64_t{64} << 10;

// A part from memory is so small that it stays in a core's second-level cache until it is used.
// Bytes from the disk come in larger parts: announced before and then read in small steps they
// would come into memory in single pages, which takes the disk longer, and all later readers.
constexpr std::size_t kCachedPartBytes = std::size_t{256} << 10;
constexpr std::size_t kUncachedPartBytes = std::size_t{1} << 20;

std::uint64_t page_below(std::uint64_t address) { return address / kPageBytes * kPageBytes; }
std::uint64_t page_above(std::uint64_t address) { return page_below(address + kPageBytes - 1); }

/// The work of a lane at a time: ranges that follow one another in a file, read together; or one
/// range, read part by part.
struct Extent {
  std::size_t first_range, num_ranges;
  std::uint64_t begin, end;
  bool in_parts;

  std::size_t bytes() const { return static_cast<std::size_t>(end - begin); }
  std::size_t buffer_bytes() const {
    return in_parts ? std::min(bytes(), kUncachedPartBytes) : bytes();
  }
};

// Reads of whole pages, and those from another machine, are to be as large as can be, over several
// ranges.
std::vector<Extent> make_extents(const ReadJob& job, std::size_t extent_bytes) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < job.ranges.size(); ++i) {
    const FileRange& range = job.ranges[i];
    const bool in_parts =
        range.in_parts && job.file_sizes.empty() && (!job.is_remote || range.bytes > extent_bytes);
    const bool joins = i > 0 && range.file == job.ranges[i - 1].file && !in_parts &&
                       !extents.back().in_parts &&
                       range.address - extents.back().end <= kHoleBytes &&
                       range.address + range.bytes - extents.back().begin <= extent_bytes;
    if (!joins) extents.push_back({i, 0, range.address, range.address, in_parts});
    ++extents.back().num_ranges;
    extents.back().end = range.address + range.bytes;
  }
  return extents;
}

void extend_to_pages(std::span<Extent> extents, const ReadJob& job) {
  for (Extent& extent : extents) {
    extent.begin = page_below(extent.begin);
    extent.end =
        std::min(page_above(extent.end), job.file_sizes[job.ranges[extent.first_range].file]);
  }
}

/// Does for a range what may fail, saying for which.
template <class Read>
void read_for(const ReadJob& job, std::size_t range, Read&& read) {
  try {
    read();
  } catch (const Error& e) {
    throw Error(e, fmt::format("read {}: {}", job.describe(range), e.what()));
  }
}

/// Bytes that have been read.
class WholeRange final : public RangeBytes {
 public:
  explicit WholeRange(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> next() override { return std::exchange(bytes_, {}); }

 private:
  std::span<const std::byte> bytes_;
};

/// Bytes that are read when they are asked for.
class RangeInParts final : public RangeBytes {
 public:
  RangeInParts(const ReadJob& job, std::size_t range, std::byte* buffer)
      : job_(job), range_(range), buffer_(buffer) {
    const FileRange& all = job.ranges[range];
    read_for(job, range, [&] { file_ = job.files.at(all.file); });
    const bool in_memory = file_->in_memory(all.address + all.bytes - 1);
    step_ = in_memory ? kCachedPartBytes : kUncachedPartBytes;
  }

  std::span<const std::byte> next() override {
    const FileRange& all = job_.ranges[range_];
    const std::span<std::byte> part(buffer_, std::min(step_, all.bytes - done_));
    if (part.empty()) return part;
    read_for(job_, range_, [&] { file_->read_at(all.address + done_, part.data(), part.size()); });
    done_ += part.size();
    return part;
  }

 private:
  const ReadJob& job_;
  const std::size_t range_;
  std::byte* const buffer_;
  std::shared_ptr<File> file_;
  std::size_t step_ = 0, done_ = 0;
};

/// One run of a job.
class Pipeline {
 public:
  explicit Pipeline(const ReadJob& job);

  void run();

 private:
  void process(const Extent& extent, std::byte* buffer);

  const ReadJob& job_;
  std::vector<Extent> extents_;
  std::size_t buffer_bytes_ = 0;  // of each lane
  std::size_t lanes_ = 1;
  LaneSlots computing_;
};

Pipeline::Pipeline(const ReadJob& job) : job_(job), computing_(job.threads) {
  const auto twice = 2 * static_cast<std::size_t>(job.threads);
  const std::size_t lanes = job.is_remote ? std::max(twice, kRemoteLanes) : twice;
  const std::size_t share = job.budget_bytes / lanes;
  const std::size_t most = job.is_remote ? kRemoteExtentBytes : kExtentBytes;
  extents_ = make_extents(job, std::min(share - std::min(share, job.call_bytes), most));
  if (!job.file_sizes.empty()) extend_to_pages(extents_, job);
  for (const Extent& extent : extents_) {
    buffer_bytes_ = std::max(buffer_bytes_, extent.buffer_bytes());
  }
  const std::size_t lane_bytes = std::max<std::size_t>(buffer_bytes_ + job.call_bytes, 1);
  lanes_ = std::clamp<std::size_t>(job.budget_bytes / lane_bytes, 1, lanes);
}

void Pipeline::process(const Extent& extent, std::byte* buffer) {
  if (extent.in_parts) {
    RangeInParts bytes(job_, extent.first_range, buffer);
    return job_.consume(extent.first_range, bytes);
  }
  read_for(job_, extent.first_range, [&] {
    job_.files.at(job_.ranges[extent.first_range].file)
        ->read_at(extent.begin, buffer, extent.bytes());
  });
  const LaneSlots::Use slot(computing_);
  for (std::size_t i = extent.first_range; i < extent.first_range + extent.num_ranges; ++i) {
    const FileRange& range = job_.ranges[i];
    WholeRange bytes({buffer + (range.address - extent.begin), range.bytes});
    job_.consume(i, bytes);
  }
}

void Pipeline::run() {
  run_lanes({.jobs = extents_.size(),
             .lanes = lanes_,
             .run =
                 [&](std::size_t job, std::size_t) {
                   const ReadBuffers::Loan buffer(job_.buffers);
                   process(extents_[job], buffer->room(buffer_bytes_));
                 },
             .progress = job_.progress});
}

}  // namespace

void run_read_job(const ReadJob& job) { Pipeline(job).run(); }

}  // namespace shardwise::detail
