#include "shardwise/checkpoint/detail/write/chunk_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/checkpoint/detail/hash.h"
#include "shardwise/checkpoint/detail/scratch_pool.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {
namespace {

// Every chunk begins at a multiple of this, for whoever maps the file into memory.
constexpr std::size_t kChunkAlignment = 64;

// The file is made longer in such steps: two writers past the page cache would wait for each other
// if each write extended it.
constexpr std::uint64_t kGrowthBytes = std::uint64_t{64} << 20;

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

// Chunks that one worker encodes one behind the other into one buffer.
struct Slab {
  std::int64_t first = 0, end = 0;
  std::size_t size_bytes = 0;     // filled
  std::size_t logical_bytes = 0;  // without the padding of edge chunks
};

class ChunkWriter {
 public:
  explicit ChunkWriter(const SavePlan& plan) : plan_(plan), records_(as_size(plan.chunks)) {
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

  WrittenChunks write(File& file, std::uint64_t begin, const Executor& executor, StagingPool& pool,
                      const ProgressFunction& progress) {
    const auto workers = as_size(pool.sizes().workers);
    const std::size_t most = pool.sizes().workers < executor.threads() ? workers : 2 * workers;
    const std::size_t least = std::min(workers, pool.sizes().buffers);
    Progress so_far{.done_bytes = 0, .total_bytes = plan_.logical_bytes};
    std::uint64_t end = begin;
    const std::uint64_t most_end = begin + most_bytes();
    std::uint64_t reserved = begin + align(least_bytes(), kPageBytes);
    file.resize(reserved);

    StagingWriter writer(file, pool);
    for (std::int64_t next = 0; next < plan_.chunks;) {
      const std::vector<std::size_t> buffers = writer.take(least, most);
      std::vector<Slab> slabs;
      for (std::size_t i = 0; i < buffers.size() && next < plan_.chunks; ++i) {
        slabs.push_back(cut_slab(next, pool.sizes().buffer_bytes));
        next = slabs.back().end;
      }
      executor.parallel_for(std::ssize(slabs), [&](std::int64_t i) {
        encode(slabs[as_size(i)], pool.buffer(buffers[as_size(i)]));
      });
      // Addresses in the order of the chunks, whoever was ready first.
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const std::size_t size = i < slabs.size() ? slabs[i].size_bytes : 0;
        if (i < slabs.size()) settle(slabs[i], end);
        if (end + size > reserved) {
          reserved = std::max(end + size, std::min(reserved + kGrowthBytes, most_end));
          file.resize(reserved);
        }
        writer.write(buffers[i], size, end);
        end += size;
      }
      for (const Slab& slab : slabs) so_far.done_bytes += slab.logical_bytes;
      if (progress) call_caller([&] { progress(so_far); });
    }
    writer.finish();
    return {.records = std::move(records_), .end = end, .stored_bytes = stored_bytes_};
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

  Slab cut_slab(std::int64_t first, std::size_t buffer_bytes) const {
    Slab slab{.first = first, .end = first};
    for (std::size_t size = 0; slab.end < plan_.chunks;) {
      const auto [end, more] = group(slab.end);
      size += more;
      if (size > buffer_bytes) break;
      slab.end = end;
    }
    return slab;
  }

  // Fills the buffer, and the slab's records with addresses relative to it.
  void encode(Slab& slab, std::byte* buffer) {
    const ScratchPool<Scratch>::Loan scratch(scratch_);
    std::size_t at = 0;
    const auto pad_to = [&](std::size_t multiple) {
      const std::size_t to = align(at, multiple);
      std::memset(buffer + at, 0, to - at);
      at = to;
    };
    std::int64_t group_end = slab.first;
    const PieceRun* run = &run_of(slab.first);
    for (std::int64_t chunk = slab.first; chunk < slab.end; ++chunk) {
      if (chunk == run->end) ++run;
      if (chunk == group_end) {
        pad_to(kPageBytes);
        group_end = group(chunk).first;
      }
      pad_to(kChunkAlignment);
      ChunkRecord& record = records_[as_size(chunk)];
      record = encode_chunk(*run, chunk - run->first, *scratch, buffer + at);
      record.address = at;
      at += record.stored_bytes;
      slab.logical_bytes += logical_bytes(*run, chunk - run->first);
    }
    pad_to(kPageBytes);
    slab.size_bytes = at;
  }

  static std::size_t logical_bytes(const PieceRun& run, std::int64_t chunk) {
    return as_size(chunk_box(*run.piece, chunk).num_elements()) * run.element_bytes;
  }

  // Writes the stored bytes of a chunk to `out`, which has room for the chunk unencoded.
  static ChunkRecord encode_chunk(const PieceRun& run, std::int64_t chunk, Scratch& scratch,
                                  std::byte* out) {
    ChunkRecord record;
    record.stored_bytes = run.chunk_bytes;
    if (run.piece->codec == StoredCodec::none) {
      gather(run, chunk, scratch, {out, run.chunk_bytes});
    } else {
      scratch.chunk.resize(run.chunk_bytes);
      gather(run, chunk, scratch, scratch.chunk);
      const std::size_t encoded = scratch.encoder.encode(scratch.chunk, run.element_bytes,
                                                         run.effort, {out, run.chunk_bytes});
      if (encoded > 0) {
        record.stored_bytes = encoded;
      } else {
        std::memcpy(out, scratch.chunk.data(), run.chunk_bytes);
        record.filter_mask = 3;  // both filters skipped
      }
    }
    record.hash = hash64(out, record.stored_bytes);
    return record;
  }

  // Fills `out` with a chunk's elements; what reaches over the piece's edge is zero.
  static void gather(const PieceRun& run, std::int64_t chunk, Scratch& scratch,
                     std::span<std::byte> out) {
    const Box box = chunk_box(*run.piece, chunk);
    const std::size_t bytes = as_size(box.num_elements()) * run.element_bytes;
    if (bytes == out.size()) {
      call_caller([&] { run.source->read(box, out); });
      return;
    }
    scratch.edge.resize(bytes);
    call_caller([&] { run.source->read(box, scratch.edge); });
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
  std::size_t stored_bytes_ = 0;
  ScratchPool<Scratch> scratch_;
};

}  // namespace

std::size_t most_data_bytes(const SavePlan& plan) { return ChunkWriter(plan).most_bytes(); }

WrittenChunks write_chunks(const SavePlan& plan, File& file, std::uint64_t begin,
                           const Executor& executor, StagingPool& pool,
                           const ProgressFunction& progress) {
  return ChunkWriter(plan).write(file, begin, executor, pool, progress);
}

}  // namespace shardwise::detail
