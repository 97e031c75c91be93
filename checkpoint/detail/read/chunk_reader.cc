#include "shardwise/checkpoint/detail/read/chunk_reader.h"

#include <algorithm>

#include "shardwise/checkpoint/detail/read/read_pipeline.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {
namespace {

std::size_t element_bytes(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return size_bytes(checkpoint.tensor(id).dtype);
}

std::size_t decoded_bytes(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return chunk_bytes(checkpoint.piece(id), checkpoint.tensor(id).dtype);
}

}  // namespace

ChunkReader::ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options)
    : checkpoint_(std::move(checkpoint)), options_(options), executor_(options.threads) {}

/// One call of fill.
struct ChunkReader::Call {
  std::span<const ReadTarget> targets;
  ReadPlan plan;
  std::size_t total_bytes = 0;
  std::atomic<std::size_t> done_bytes{0};
};

void ChunkReader::consume(Call& call, const WantedChunk& chunk, std::span<const std::byte> stored) {
  const ChunkId& id = chunk.id;
  const std::size_t element = element_bytes(checkpoint_, id);
  check_chunk_hash(checkpoint_, id, stored);
  ++chunks_;
  stored_bytes_ += stored.size();
  decoded_bytes_ += decoded_bytes(checkpoint_, id);

  // Counted from the chunk's begin: the zeros beyond a piece's edge may lie beyond 2^63 - 1.
  const Box box = checkpoint_.box(id);
  const Box decoded_box = Box::whole(checkpoint_.piece(id).chunk);
  const auto scatter = [&](const std::byte* decoded, std::size_t use, std::size_t first_place) {
    const ReadTarget& target = call.targets[use];
    const Box wanted = relative_to(intersect(box, target.box), box.begin());
    const Box to = relative_to(target.box, box.begin());
    for (std::size_t p = first_place; p < target.places.size(); ++p) {
      copy_box(wanted, element, {decoded, decoded_box}, {target.places[p], to});
    }
  };
  const bool raw = stored_raw(checkpoint_, id);
  if (chunk.whole != nullptr) {
    // A raw chunk was read straight to its place, see fill().
    const std::span<std::byte> whole(chunk.whole, decoded_bytes(checkpoint_, id));
    if (!raw) {
      const ScratchPool<DecodeScratch>::Loan scratch(scratch_);
      decode_chunk(checkpoint_, id, stored, scratch->decoder, whole);
    }
    scatter(whole.data(), call.plan.uses(chunk).front(), 1);
  } else if (raw) {
    for (const std::size_t use : call.plan.uses(chunk)) scatter(stored.data(), use, 0);
  } else {
    const ScratchPool<DecodeScratch>::Loan scratch(scratch_);
    scratch->chunk.resize(decoded_bytes(checkpoint_, id));
    decode_chunk(checkpoint_, id, stored, scratch->decoder, scratch->chunk);
    for (const std::size_t use : call.plan.uses(chunk)) scatter(scratch->chunk.data(), use, 0);
  }
  call.done_bytes += static_cast<std::size_t>(box.num_elements()) * element;
}

void ChunkReader::fill(std::span<const ReadTarget> targets) {
  Call call{targets, ReadPlan(checkpoint_, targets)};
  const std::span<const WantedChunk> chunks = call.plan.chunks();
  std::vector<ReadItem> items;
  items.reserve(chunks.size());
  std::size_t scratch_bytes = 0;
  for (const WantedChunk& chunk : chunks) {
    const ChunkRecord& record = checkpoint_.record(chunk.id);
    const bool raw = stored_raw(checkpoint_, chunk.id);
    items.push_back({static_cast<std::size_t>(checkpoint_.piece(chunk.id).file), record.address,
                     static_cast<std::size_t>(record.stored_bytes), raw ? chunk.whole : nullptr});
    const std::size_t decoded = decoded_bytes(checkpoint_, chunk.id);
    // The decoder holds the chunk once shuffled, and once more where it is to be scattered.
    if (!raw) scratch_bytes = std::max(scratch_bytes, (chunk.whole == nullptr ? 2 : 1) * decoded);
    call.total_bytes += static_cast<std::size_t>(checkpoint_.box(chunk.id).num_elements()) *
                        element_bytes(checkpoint_, chunk.id);
  }

  ReadJob job{.files = checkpoint_.files, .items = items};
  job.consume = [&](std::size_t item, std::span<const std::byte> stored) {
    consume(call, chunks[item], stored);
  };
  job.describe = [&](std::size_t item) { return checkpoint_.describe(chunks[item].id); };
  divide_budget(job, options_.memory_budget_bytes, scratch_bytes, executor_);
  if (options_.progress) {
    job.progress = [&] {
      MutexLock lock(progress_mutex_);
      options_.progress({call.done_bytes, call.total_bytes});
    };
  }
  run_read_job(job, executor_);
}

ReadStats ChunkReader::stats() const { return {chunks_, stored_bytes_, decoded_bytes_}; }

}  // namespace shardwise::detail
