#include "shardwise/checkpoint/detail/write/chunk_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/checkpoint/detail/lanes.h"
#include "shardwise/checkpoint/detail/scratch_pool.h"
#include "shardwise/checkpoint/detail/write/slab_bytes.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

// Every chunk begins at a multiple of this, for whoever maps the file into memory.
constexpr std::size_t kChunkAlignment = 64;

// The file is made longer in such steps. Each waits for all writes under way: with 64 MiB a
// compressed save took a tenth longer.
constexpr std::uint64_t kGrowthBytes = std::uint64_t{512} << 20;

// Behind so many bytes an adaptive save looks at the disk: a smaller one is done before it matters,
// and so is the same byte by byte, however fast the disk is.
constexpr std::size_t kAdaptiveFromBytes = std::size_t{64} << 20;

std::size_t align(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

// The memory of one worker. Thread-compatible.
struct Scratch {
  std::vector<std::byte> chunk, edge;
  Encoder encoder;

  std::size_t held_bytes() const {
    return encoder.held_bytes() + chunk.capacity() + edge.capacity();
  }
};

// One piece and its place in the sequence of all chunks.
struct PieceRun {
  const TensorSource* source;
  const PieceEntry* piece;
  Effort effort;
  std::size_t element_bytes;
  std::size_t chunk_bytes;
  std::int64_t first, end;  // chunk numbers
};

// Chunks that one worker encodes, and that lie one behind the other in the file.
struct Slab {
  std::int64_t first = 0, end = 0;
  std::size_t logical_bytes = 0;  // without the padding of edge chunks
  std::size_t place_bytes = 0;    // of all slabs before it, uncompressed
};

// Gives out places in the file in the order of the slabs, whoever is ready first. Thread-safe.
class Places {
 public:
  // The file is going to end somewhere between `least_end` and `most_end`.
  Places(File& file, std::uint64_t begin, std::uint64_t least_end, std::uint64_t most_end)
      : file_(file), most_end_(most_end), end_(begin), reserved_(file.size()) {
    if (reserved_ < least_end) file_.resize(reserved_ = least_end);
  }

  // Waits for the slabs before this one. Throws where one of them has failed.
  std::uint64_t take(std::size_t slab, std::size_t size_bytes) {
    const MutexLock lock(mutex_);
    while (slab < failed_ && turn_ != slab) turned_.wait(mutex_);
    // The slab that failed says why: it comes first.
    if (slab > failed_) throw Error(ErrorCode::io, "an earlier part of the file was not written");
    const std::uint64_t address = end_;
    try {
      if (end_ + size_bytes > reserved_) {
        reserved_ = std::max(end_ + size_bytes, std::min(reserved_ + kGrowthBytes, most_end_));
        file_.resize(reserved_);
      }
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

  // This slab is not going to take its place, so those behind it get none.
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
  std::uint64_t reserved_ SHARDWISE_GUARDED_BY(mutex_);
};

class ChunkWriter {
 public:
  explicit ChunkWriter(const SavePlan& plan)
      : plan_(plan), records_(as_size(plan.chunks)), decoded_hashes_(records_.size()) {
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      const TensorEntry& tensor = plan.tensors[t];
      for (const PieceEntry& piece : tensor.pieces) {
        runs_.push_back({&plan.sources[t], &piece, plan.efforts[t], size_bytes(tensor.dtype),
                         chunk_bytes(piece, tensor.dtype), piece.first_chunk,
                         piece.first_chunk + num_chunks(piece)});
      }
    }
  }

  std::size_t most_bytes() const {
    std::size_t bytes = 0;
    for (std::int64_t first = 0; first < plan_.chunks;) {
      const auto [end, size] = group(first);
      bytes += size;
      first = end;
    }
    return bytes;
  }

  // What is certain to be needed: chunks that are not compressed.
  std::size_t least_bytes() const {
    std::size_t bytes = 0;
    for (const PieceRun& run : runs_) {
      if (run.piece->codec != StoredCodec::none) continue;
      bytes += as_size(run.end - run.first) * run.chunk_bytes;
    }
    return bytes;
  }

  WrittenChunks write(File& file, std::uint64_t begin, StagingPool& pool,
                      const ProgressFunction& progress) {
    std::vector<Slab> slabs;
    std::size_t place = 0;
    for (std::int64_t next = 0; next < plan_.chunks; next = slabs.back().end) {
      slabs.push_back(cut_slab(next, pool.sizes().buffer_bytes, place));
    }
    Places places(file, begin, begin + align(least_bytes(), kPageBytes), begin + most_bytes());
    LaneSlots computing(pool.sizes().workers);
    // Writes that are under way together end together. With all lanes among them the disk would
    // have nothing to do until the first is filled again (measured: a tenth of a compressed
    // save, and more).
    LaneSlots at_the_disk(
        std::max<std::int64_t>(static_cast<std::int64_t>(pool.sizes().buffers / 2), 1));
    std::atomic<std::size_t> done_bytes{0};
    std::atomic<std::size_t> writing{0};
    // As many as there are lanes that do not compute: then the disk lags behind.
    const std::size_t enough =
        pool.sizes().buffers - std::min(pool.sizes().buffers - 1, as_size(pool.sizes().workers));

    LaneWork work{.jobs = slabs.size(), .lanes = pool.sizes().buffers, .run = {}};
    work.run = [&](std::size_t job, std::size_t lane) {
      Slab& slab = slabs[job];
      SlabBytes bytes(pool.buffer(lane));
      try {
        const LaneSlots::Use slot(computing);
        // Asked before each chunk: a disk that catches up is not to wait for compression.
        encode(slab, bytes, [&] {
          return !plan_.adaptive || slab.place_bytes < kAdaptiveFromBytes || writing >= enough;
        });
      } catch (...) {
        places.give_up(job);
        throw;
      }
      const std::uint64_t address = places.take(job, bytes.size());
      settle(slab, address);
      ++writing;
      {
        const LaneSlots::Use slot(at_the_disk);
        file.write_runs(address, bytes.runs());
      }
      --writing;
      done_bytes += slab.logical_bytes;
    };
    if (progress) {
      work.progress = [&, reported = std::size_t{0}]() mutable {
        const std::size_t done = done_bytes;
        if (done == reported) return;
        reported = done;
        call_caller([&] { progress({done, plan_.logical_bytes}); });
      };
    }
    run_lanes(work);
    return {.table = {std::move(records_), std::move(decoded_hashes_)},
            .end = places.end(),
            .stored_bytes = stored_bytes_};
  }

 private:
  const PieceRun& run_of(std::int64_t chunk) const {
    return *std::prev(std::upper_bound(
        runs_.begin(), runs_.end(), chunk,
        [](std::int64_t number, const PieceRun& run) { return number < run.first; }));
  }

  // Chunks that lie packed together, up to kChunkBytes; a group begins and ends at a page. Groups
  // depend on the tensors alone, so files are the same however many groups a buffer holds.
  std::pair<std::int64_t, std::size_t> group(std::int64_t first) const {
    const PieceRun* run = &run_of(first);
    std::size_t size = 0;
    std::int64_t chunk = first;
    for (; chunk < plan_.chunks; ++chunk) {
      if (chunk == run->end) ++run;
      const std::size_t more = align(run->chunk_bytes, kChunkAlignment);
      if (chunk > first && size + more > kChunkBytes) break;
      size += more;
    }
    return {chunk, align(size, kPageBytes)};
  }

  // As many groups as the buffer holds. Moves `place` behind them.
  Slab cut_slab(std::int64_t first, std::size_t buffer_bytes, std::size_t& place) const {
    Slab slab{.first = first, .end = first, .place_bytes = place};
    for (std::size_t size = 0; slab.end < plan_.chunks;) {
      const auto [end, more] = group(slab.end);
      size += more;
      if (size > buffer_bytes) break;
      slab.end = end;
      place += more;
    }
    return slab;
  }

  // Adds the slab's chunks to `out`; gives its records addresses relative to it.
  template <class Compress>
  void encode(Slab& slab, SlabBytes& out, const Compress& compress) {
    const ScratchPool<Scratch>::Loan scratch(scratch_);
    std::int64_t group_end = slab.first;
    const PieceRun* run = &run_of(slab.first);
    for (std::int64_t chunk = slab.first; chunk < slab.end; ++chunk) {
      if (chunk == run->end) ++run;
      if (chunk == group_end) {
        out.pad_to(kPageBytes);
        group_end = group(chunk).first;
      }
      out.pad_to(kChunkAlignment);
      ChunkRecord& record = records_[as_size(chunk)];
      record = {};
      record.address = out.size();
      decoded_hashes_[as_size(chunk)] =
          encode_chunk(*run, chunk - run->first, compress(), *scratch, out, record);
      slab.logical_bytes += logical_bytes(*run, chunk - run->first);
    }
    out.pad_to(kPageBytes);
  }

  static std::size_t logical_bytes(const PieceRun& run, std::int64_t chunk) {
    return as_size(chunk_box(*run.piece, chunk).num_elements()) * run.element_bytes;
  }

  // Adds the stored bytes of a chunk, never more than it has unencoded. Returns the hash of its
  // elements, which is taken of the source's bytes: what the encoder makes of them has no part in
  // it.
  static std::uint64_t encode_chunk(const PieceRun& run, std::int64_t chunk, bool compress,
                                    Scratch& scratch, SlabBytes& out, ChunkRecord& record) {
    const bool raw = run.piece->codec == StoredCodec::none;
    std::span<const std::byte> elements = in_place(run, chunk);
    const bool stay = out.takes(elements);
    if (elements.empty()) {
      // What is stored as it is can be gathered to where it is written from.
      std::span<std::byte> to(out.room(), run.chunk_bytes);
      if (!raw && compress) {
        scratch.chunk.resize(run.chunk_bytes);
        to = scratch.chunk;
      }
      gather(run, chunk, scratch, to);
      elements = to;
    }
    const std::uint64_t decoded_hash = hash64(elements.data(), elements.size());
    if (!raw && compress) {
      record.stored_bytes = scratch.encoder.encode(elements, run.element_bytes, run.effort,
                                                   {out.room(), run.chunk_bytes});
      if (record.stored_bytes > 0) {
        record.hash = hash64(out.room(), record.stored_bytes);
        out.add(record.stored_bytes);
        return decoded_hash;
      }
    }
    if (!raw) record.filter_mask = kRawMask;
    record.stored_bytes = run.chunk_bytes;
    record.hash = decoded_hash;
    if (stay) {
      out.add_in_place(elements);
      return decoded_hash;
    }
    if (elements.data() != out.room()) std::memcpy(out.room(), elements.data(), elements.size());
    out.add(elements.size());
    return decoded_hash;
  }

  // A chunk's elements where they lie; empty where they do not lie side by side.
  static std::span<const std::byte> in_place(const PieceRun& run, std::int64_t chunk) {
    const Box box = chunk_box(*run.piece, chunk);
    if (as_size(box.num_elements()) * run.element_bytes != run.chunk_bytes) return {};
    const std::byte* elements = nullptr;
    call_caller([&] { elements = run.source->reader->contiguous(run.source->tensor, box); });
    if (elements == nullptr) return {};
    return {elements, run.chunk_bytes};
  }

  // Fills `out` with a chunk's elements; what reaches over the piece's edge is zero.
  static void gather(const PieceRun& run, std::int64_t chunk, Scratch& scratch,
                     std::span<std::byte> out) {
    const Box box = chunk_box(*run.piece, chunk);
    const std::size_t bytes = as_size(box.num_elements()) * run.element_bytes;
    if (bytes == out.size()) {
      call_caller([&] { run.source->reader->read(run.source->tensor, box, out); });
      return;
    }
    scratch.edge.resize(bytes);
    call_caller([&] { run.source->reader->read(run.source->tensor, box, scratch.edge); });
    std::memset(out.data(), 0, out.size());
    const Box held = relative_to(box, box.begin());
    copy_box(held, run.element_bytes, {scratch.edge.data(), held},
             {out.data(), Box::whole(run.piece->chunk)});
  }

  void settle(const Slab& slab, std::uint64_t address) {
    for (std::int64_t chunk = slab.first; chunk < slab.end; ++chunk) {
      records_[as_size(chunk)].address += address;
      stored_bytes_ += records_[as_size(chunk)].stored_bytes;
    }
  }

  const SavePlan& plan_;
  std::vector<PieceRun> runs_;
  std::vector<ChunkRecord> records_;
  std::vector<std::uint64_t> decoded_hashes_;
  std::atomic<std::size_t> stored_bytes_{0};
  ScratchPool<Scratch> scratch_;
};

}  // namespace

std::size_t most_data_bytes(const SavePlan& plan) { return ChunkWriter(plan).most_bytes(); }

WrittenChunks write_chunks(const SavePlan& plan, File& file, std::uint64_t begin, StagingPool& pool,
                           const ProgressFunction& progress) {
  return ChunkWriter(plan).write(file, begin, pool, progress);
}

}  // namespace shardwise::detail
