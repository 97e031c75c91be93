#include "shardwise/checkpoint/detail/write/chunks/chunk_writer.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_encoder.h"
#include "shardwise/checkpoint/detail/write/chunks/slab_bytes.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/host/page_memory.h"

// A lane takes the next slab, encodes its chunks into its own buffer, gets an address for the
// result, and writes it. These facts hold:
//
// 1. A slab is whole groups, and each group begins and ends on a page. So how the chunks are cut
//    into slabs, which depends on the buffers, cannot be seen in the file.
// 2. Slabs get their addresses in their order, each where the one before it ends. So which lane is
//    faster cannot be seen in the file either.
// 3. A stored chunk is never larger than a decoded one. So a slab fits its buffer, and the file
//    ends between least_bytes() and most_bytes() after `begin`; with an earlier step it may be
//    shorter, and the chunks of the second round (7) come after that.
// 4. The records and hashes of a slab are written by the lane that has it, and read by nobody
//    before all lanes have ended. Addresses in them count from the slab's begin until it has one.
// 5. A decoded hash is that of the source's bytes, taken before the coder sees them.
// 6. A slab without an address ends the work: those after it get none, and the error that is thrown
//    is that of the first one that failed.
// 7. Chunks of linked files that are too little used are written in a second round, one to a
//    slab, in their order.

namespace shardwise::detail {
namespace {

// The file is made longer in such steps. Each waits for all writes under way: with 64 MiB a
// compressed save took a tenth longer.
constexpr std::uint64_t kGrowthBytes = std::uint64_t{512} << 20;

// The first step if hardly anything may be written; each is twice the one before.
constexpr std::uint64_t kFirstGrowthBytes = std::uint64_t{32} << 20;

// After this many bytes an adaptive save looks at the disk. A smaller save ends before the disk
// matters, so its bytes do not depend on the disk's speed.
constexpr std::size_t kAdaptiveFromBytes = std::size_t{64} << 20;

// Gives slabs their addresses, and the file its room. Thread-safe.
class SlabAddresses {
 public:
  // The file is going to end somewhere between `least_end` and `most_end`.
  SlabAddresses(File& file, std::uint64_t begin, std::uint64_t least_end, std::uint64_t most_end,
                std::uint64_t growth)
      : file_(file), most_end_(most_end), end_(begin), growth_(growth), reserved_(file.size()) {
    if (reserved_ < least_end) file_.resize(reserved_ = least_end);
  }

  // Waits for the slabs before this one. Throws if one of them has failed.
  std::uint64_t take(std::size_t slab, std::size_t size_bytes) {
    const MutexLock lock(mutex_);
    while (slab < failed_ && turn_ != slab) turned_.wait(mutex_);
    // The slab that failed says why: it comes first.
    if (slab > failed_) throw Error(ErrorCode::io, "an earlier part of the file was not written");
    const std::uint64_t address = end_;
    try {
      if (end_ + size_bytes > reserved_) grow(end_ + size_bytes);
    } catch (...) {
      failed_ = slab;
      turned_.notify_all();
      throw;
    }
    end_ += size_bytes;
    ++turn_;
    turned_.notify_all();
    return address;
  }

  // Makes the file longer than is needed now, or, if there is no room for that, just as long.
  void grow(std::uint64_t least) SHARDWISE_REQUIRES(mutex_) {
    reserved_ = std::max(least, std::min(reserved_ + growth_, most_end_));
    growth_ = std::min(2 * growth_, kGrowthBytes);
    try {
      file_.resize(reserved_);
    } catch (const Error&) {
      if (reserved_ == least) throw;
      file_.resize(reserved_ = least);
    }
  }

  // This slab is not going to take an address, so those after it get none.
  void give_up(std::size_t slab) {
    const MutexLock lock(mutex_);
    failed_ = std::min(failed_, slab);
    turned_.notify_all();
  }

  std::uint64_t end() {
    const MutexLock lock(mutex_);
    return end_;
  }

 private:
  File& file_;
  const std::uint64_t most_end_;
  Mutex mutex_;
  CondVar turned_;
  std::size_t failed_ SHARDWISE_GUARDED_BY(mutex_) = SIZE_MAX;  // the first one
  std::size_t turn_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::uint64_t end_ SHARDWISE_GUARDED_BY(mutex_);
  std::uint64_t growth_ SHARDWISE_GUARDED_BY(mutex_);
  std::uint64_t reserved_ SHARDWISE_GUARDED_BY(mutex_);
};

// One call of write_chunks(). The lanes share it: each writes the records of its own slabs.
// Thread-compatible.
class ChunkWriter {
 public:
  ChunkWriter(const SavePlan& plan, const ChunkLayout& layout, UnchangedChunks* unchanged,
              File& file, std::uint64_t begin, StagingPool& pool)
      : plan_(plan),
        layout_(layout),
        unchanged_(unchanged),
        slabs_(layout.slabs(pool.sizes().buffer_bytes)),
        file_(file),
        pool_(pool),
        computing_(pool.sizes().workers),
        at_the_disk_(
            static_cast<std::int64_t>(std::max<std::size_t>(pool.sizes().buffers / 2, 1))) {
    addresses_.emplace(file, begin, begin + (unchanged == nullptr ? layout.least_bytes() : 0),
                       begin + layout.most_bytes(),
                       unchanged == nullptr ? kGrowthBytes : kFirstGrowthBytes);
    table_.records.resize(static_cast<std::size_t>(layout.num_chunks()));
    table_.decoded_hashes.resize(table_.records.size());
    table_.content_hashes.resize(table_.records.size());
  }

  WrittenChunks run(const ProgressFunction& progress) {
    LaneWork work{.jobs = slabs_.size(),
                  .lanes = pool_.sizes().buffers,
                  .run = [this](std::size_t slab, std::size_t lane) { write_slab(slab, lane); }};
    if (progress) {
      work.progress = [this, &progress, reported = std::size_t{0}]() mutable {
        const std::size_t done = done_bytes_;
        if (done == std::exchange(reported, done)) return;
        call_caller([&] { progress({done, layout_.logical_bytes()}); });
      };
    }
    run_lanes(work);
    if (unchanged_ != nullptr && write_little_used()) {
      work.jobs = slabs_.size();
      run_lanes(work);
    }
    return {.table = std::move(table_),
            .end = addresses_->end(),
            .stored_bytes = stored_bytes_,
            .unchanged_bytes = unchanged_bytes_};
  }

 private:
  // Makes the chunks of files that are too little used the next slabs to write; returns whether
  // there are any.
  bool write_little_used() {
    const std::vector<std::int64_t> chunks =
        std::exchange(unchanged_, nullptr)->little_used(table_.records);
    slabs_.clear();
    std::uint64_t most = addresses_->end();
    for (const std::int64_t number : chunks) {
      const FileChunk chunk = layout_.chunk(number);
      slabs_.push_back({number, number + 1, 0});
      most += (chunk.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
      unchanged_bytes_ -= chunk.held_bytes();
    }
    is_second_round_ = true;
    addresses_.emplace(file_, addresses_->end(), addresses_->end(), most, kFirstGrowthBytes);
    return !slabs_.empty();
  }

  void write_slab(std::size_t number, std::size_t lane) {
    const Slab& slab = slabs_[number];
    SlabBytes bytes(pool_.buffer(lane));
    std::size_t held_bytes = 0;
    std::vector<InPlace> in_place;
    try {
      const LaneSlots::Use slot(computing_);
      held_bytes = encode(slab, bytes, in_place);
    } catch (...) {
      addresses_->give_up(number);
      throw;
    }
    const std::uint64_t address = addresses_->take(number, bytes.size());
    for (std::int64_t chunk = slab.first; chunk < slab.end; ++chunk) {
      if (record(chunk).linked != 0) continue;
      record(chunk).address += address;
      stored_bytes_ += record(chunk).stored_bytes;
    }
    ++writing_;
    {
      const LaneSlots::Use slot(at_the_disk_);
      file_.write_runs(address, bytes.runs());
    }
    --writing_;
    for (const InPlace& found : in_place) {
      const FileChunk chunk = layout_.chunk(found.chunk);
      check_unchanged(plan_.sources[chunk.tensor], chunk.box, found.elements,
                      record(found.chunk).hash);
    }
    if (!is_second_round_) done_bytes_ += held_bytes;
  }

  // A chunk that is written from memory that may change.
  struct InPlace {
    std::int64_t chunk;
    std::span<const std::byte> elements;
  };

  // Adds the slab's chunks to `out`. Returns the logical bytes.
  std::size_t encode(const Slab& slab, SlabBytes& out, std::vector<InPlace>& in_place) {
    const ScratchPool<ChunkEncoder>::Loan encoder(encoders_);
    std::size_t held_bytes = 0;
    for (std::int64_t number = slab.first; number < slab.end; ++number) {
      const FileChunk chunk = layout_.chunk(number);
      out.pad_to(layout_.begins_group(number) ? kPageBytes : ChunkLayout::kAlignment);
      const std::size_t begin = out.size();
      FindUnchanged unchanged;
      if (unchanged_ != nullptr) {
        unchanged = [&](const Hash128& content) { return unchanged_->find(number, content); };
      }
      const EncodedChunk encoded = encoder->encode(plan_.sources[chunk.tensor], chunk,
                                                   effort_of(chunk, slab), unchanged, out);
      record(number) = encoded.record;
      table_.decoded_hashes[static_cast<std::size_t>(number)] = encoded.decoded_hash;
      table_.content_hashes[static_cast<std::size_t>(number)] = encoded.content_hash;
      held_bytes += chunk.held_bytes();
      if (encoded.record.linked != 0) {
        unchanged_bytes_ += chunk.held_bytes();
        continue;
      }
      record(number).address = begin;
      if (!encoded.in_place.empty()) in_place.push_back({number, encoded.in_place});
    }
    out.pad_to(kPageBytes);
    return held_bytes;
  }

  // Called before each chunk: a disk that catches up must not wait for compression. The disk lags
  // if as many lanes wait for it as do not compute.
  std::optional<Effort> effort_of(const FileChunk& chunk, const Slab& slab) const {
    if (chunk.piece.codec == StoredCodec::none) return std::nullopt;
    if (plan_.adaptive && slab.bytes_before >= kAdaptiveFromBytes) {
      const std::size_t lanes = pool_.sizes().buffers;
      const auto workers = static_cast<std::size_t>(pool_.sizes().workers);
      if (writing_ < lanes - std::min(lanes - 1, workers)) return std::nullopt;
    }
    return plan_.effort(chunk.piece.file, chunk.tensor);
  }

  ChunkRecord& record(std::int64_t chunk) {
    return table_.records[static_cast<std::size_t>(chunk)];
  }

  const SavePlan& plan_;
  const ChunkLayout& layout_;
  UnchangedChunks* unchanged_;
  bool is_second_round_ = false;  // whose bytes have been told as done
  std::vector<Slab> slabs_;
  File& file_;
  StagingPool& pool_;
  std::optional<SlabAddresses> addresses_;
  LaneSlots computing_;

  // Writes that are under way together end together. With all lanes among them the disk would have
  // nothing to do until the first is filled again (measured: a tenth of a compressed save, and
  // more).
  LaneSlots at_the_disk_;
  ScratchPool<ChunkEncoder> encoders_;
  ChunkTable table_;
  std::atomic<std::size_t> stored_bytes_{0}, unchanged_bytes_{0}, done_bytes_{0}, writing_{0};
};

}  // namespace

WrittenChunks write_chunks(const SavePlan& plan, const ChunkLayout& layout,
                           UnchangedChunks* unchanged, File& file, std::uint64_t begin,
                           StagingPool& pool, const ProgressFunction& progress) {
  return ChunkWriter(plan, layout, unchanged, file, begin, pool).run(progress);
}

}  // namespace shardwise::detail
