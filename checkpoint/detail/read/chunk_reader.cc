#include "shardwise/checkpoint/detail/read/chunk_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "shardwise/checkpoint/detail/read/read_pipeline.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Raw chunks are copied to where they belong part by part, as they are read and hashed, unless they
// are so small, their runs so short, or their targets so many that reading neighbours together
// gains more.
constexpr std::size_t kLeastFetchedBytes = std::size_t{64} << 10;
constexpr std::size_t kLeastFetchedRun = 1024;
constexpr std::uint32_t kMostFetchedUses = 8;

// What a call reads less of is probably used at once, as by a reshard or whoever reads a part.
constexpr std::size_t kLeastStreamedBytes = std::size_t{8} << 20;

// A compressed chunk's runs are unshuffled to where they belong if they are so long.
constexpr std::int64_t kLeastUnshuffledRun = 256;

std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

std::size_t element_bytes(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return size_bytes(checkpoint.tensor(id).dtype);
}

std::size_t decoded_bytes(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return chunk_bytes(checkpoint.piece(id), checkpoint.tensor(id).dtype);
}

/// The part of a chunk that a target takes: runs of the decoded chunk and of the target's memory.
/// Counted from the chunk's begin: the zeros beyond a piece's edge may lie beyond 2^63 - 1.
struct Share {
  Share(const StoredCheckpoint& checkpoint, const ChunkId& id, const ReadTarget& target) {
    const Box held = checkpoint.box(id);
    chunk = Box::whole(checkpoint.piece(id).chunk);
    wanted = relative_to(intersect(held, *target.box), held.begin());
    memory = relative_to(*target.box, held.begin());
    runs = walk_runs(wanted, chunk, memory);
  }

  Box chunk, wanted, memory;
  RunWalk runs;
};

}  // namespace

ChunkReader::ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options)
    : checkpoint_(std::move(checkpoint)),
      options_(options),
      threads_(Executor(options.threads).threads()) {
  if (!options_.read_once) return;
  for (const auto& file : checkpoint_.files) file->read_once();
}

/// One call of fill.
struct ChunkReader::Call {
  std::span<const ReadTarget> targets;
  ReadPlan plan;
  std::size_t total_bytes = 0;
  std::atomic<std::size_t> done_bytes{0};
};

void ChunkReader::count(Call& call, const ChunkId& id) {
  if (!options_.progress) return;  // nobody asks: threads need not share a counter
  call.done_bytes += as_size(checkpoint_.box(id).num_elements()) * element_bytes(checkpoint_, id);
}

bool ChunkReader::is_fetched(const Call& call, const WantedChunk& chunk) const {
  // Reads that pass the page cache by are to be as large as can be, over several chunks.
  if (options_.read_once) return false;
  if (!stored_raw(checkpoint_, chunk.id) || chunk.num_uses > kMostFetchedUses) return false;
  if (checkpoint_.record(chunk.id).stored_bytes < kLeastFetchedBytes) return false;
  const std::span<const std::size_t> uses = call.plan.uses(chunk);
  const std::size_t element = element_bytes(checkpoint_, chunk.id);
  const auto is_short = [&](std::int64_t run) { return as_size(run) * element < kLeastFetchedRun; };
  if (uses.size() == 1) {
    // A look at its rows mostly says enough (2,048 chunks: 0.8 ms instead of 2.5).
    const Box held = checkpoint_.box(chunk.id);
    const bool whole = call.targets[uses.front()].box->contains(held);
    if (whole && held.rank() > 0 && !is_short(held.extent(held.rank() - 1))) return true;
  }
  return std::none_of(uses.begin(), uses.end(), [&](std::size_t use) {
    return is_short(Share(checkpoint_, chunk.id, call.targets[use]).runs.run_elements);
  });
}

std::vector<PlacedRun> ChunkReader::placed_runs(const Call& call, const WantedChunk& chunk) const {
  const std::size_t element = element_bytes(checkpoint_, chunk.id);
  std::vector<PlacedRun> runs;
  for (const std::size_t use : call.plan.uses(chunk)) {
    const ReadTarget& target = call.targets[use];
    for_each_run(Share(checkpoint_, chunk.id, target).runs,
                 [&](std::int64_t from, std::int64_t to, std::int64_t elements) {
                   runs.push_back({as_size(from) * element, as_size(elements) * element,
                                   target.places, as_size(to) * element});
                 });
  }
  std::sort(runs.begin(), runs.end(),
            [](const PlacedRun& a, const PlacedRun& b) { return a.from < b.from; });
  return runs;
}

CopyBy ChunkReader::copy_by(const Call& call) const {
  return call.total_bytes < kLeastStreamedBytes ? CopyBy::cache : CopyBy::stream;
}

// What no one wants is read too, as the hash is of the whole chunk.
void ChunkReader::fetch(Call& call, const WantedChunk& chunk) {
  const ChunkId& id = chunk.id;
  const ChunkRecord& record = checkpoint_.record(id);
  const std::vector<PlacedRun> runs = placed_runs(call, chunk);
  const ScratchPool<DecodeScratch>::Loan scratch(scratch_);
  if (scratch->window == nullptr) scratch->window = page_memory(kReadWindowBytes);
  std::uint64_t hash = 0;
  try {
    hash = read_placed({*checkpoint_.files[as_size(checkpoint_.piece(id).file)], record.address,
                        static_cast<std::size_t>(record.stored_bytes), runs},
                       copy_by(call), scratch->window.get());
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("read {}: {}", checkpoint_.describe(id), e.what()));
  }
  check_chunk_hash(checkpoint_, id, hash);
  count(call, id);
}

void ChunkReader::consume(Call& call, const WantedChunk& chunk, std::span<const std::byte> stored) {
  const ChunkId& id = chunk.id;
  const std::size_t element = element_bytes(checkpoint_, id);
  check_chunk_hash(checkpoint_, id, hash64(stored.data(), stored.size()));
  const auto scatter = [&](const std::byte* decoded, const Share& share, const ReadTarget& target) {
    for (std::byte* place : target.places) {
      copy_box(share.wanted, element, {decoded, share.chunk}, {place, share.memory});
    }
  };
  if (stored_raw(checkpoint_, id)) {
    for (const std::size_t use : call.plan.uses(chunk)) {
      const ReadTarget& target = call.targets[use];
      scatter(stored.data(), Share(checkpoint_, id, target), target);
    }
    count(call, id);
    return;
  }
  const ScratchPool<DecodeScratch>::Loan scratch(scratch_);
  const std::span<const std::byte> shuffled =
      decompress_chunk(checkpoint_, id, stored, scratch->decoder);
  const std::span<const std::size_t> uses = call.plan.uses(chunk);
  const bool long_runs = std::none_of(uses.begin(), uses.end(), [&](std::size_t use) {
    return Share(checkpoint_, id, call.targets[use]).runs.run_elements < kLeastUnshuffledRun;
  });
  std::uint64_t hash = 0;
  if (long_runs) {
    hash = unshuffle_placed(shuffled, element, placed_runs(call, chunk), copy_by(call));
  } else {
    scratch->chunk.resize(shuffled.size());
    std::byte* const all = scratch->chunk.data();
    const PlacedRun run{0, shuffled.size(), {&all, 1}, 0};
    hash = unshuffle_placed(shuffled, element, {&run, 1}, CopyBy::cache);
    for (const std::size_t use : uses) {
      const ReadTarget& target = call.targets[use];
      scatter(scratch->chunk.data(), Share(checkpoint_, id, target), target);
    }
  }
  if (checkpoint_.manifest.has_decoded_hashes()) check_decoded_hash(checkpoint_, id, hash);
  count(call, id);
}

void ChunkReader::fill(std::span<const ReadTarget> targets) {
  Call call{targets, ReadPlan(checkpoint_, targets)};
  const std::span<const WantedChunk> chunks = call.plan.chunks();
  std::vector<ReadItem> items;
  items.reserve(chunks.size());
  ReadJob job{.files = checkpoint_.files, .items = {}};
  std::size_t stored_bytes = 0, all_decoded_bytes = 0;
  std::size_t decoder_bytes = 0, fetch_bytes = 0;  // of one call
  for (const WantedChunk& chunk : chunks) {
    const ChunkRecord& record = checkpoint_.record(chunk.id);
    items.push_back({as_size(checkpoint_.piece(chunk.id).file), record.address,
                     static_cast<std::size_t>(record.stored_bytes), is_fetched(call, chunk)});
    // The decoder holds the chunk once shuffled, and once more where its runs are short.
    const std::size_t decoded = decoded_bytes(checkpoint_, chunk.id);
    stored_bytes += items.back().bytes;
    all_decoded_bytes += decoded;
    if (!stored_raw(checkpoint_, chunk.id)) {
      const std::size_t run_bytes =
          as_size(kLeastUnshuffledRun) * element_bytes(checkpoint_, chunk.id);
      const std::size_t runs = chunk.num_uses * (decoded / run_bytes);
      decoder_bytes = std::max(decoder_bytes, 2 * decoded + runs * sizeof(PlacedRun));
    }
    if (items.back().fetched) {
      const std::size_t runs = chunk.num_uses * (decoded / kLeastFetchedRun);
      fetch_bytes = std::max(fetch_bytes, kReadWindowBytes + runs * sizeof(PlacedRun));
    }
    call.total_bytes +=
        as_size(checkpoint_.box(chunk.id).num_elements()) * element_bytes(checkpoint_, chunk.id);
  }
  job.items = items;
  job.call_bytes = decoder_bytes + fetch_bytes;  // a scratch may have served both
  if (options_.read_once) {
    for (const FileEntry& file : checkpoint_.manifest.files) job.file_sizes.push_back(file.bytes);
  }
  job.consume = [&](std::size_t item, std::span<const std::byte> stored) {
    consume(call, chunks[item], stored);
  };
  job.fetch = [&](std::size_t item) { fetch(call, chunks[item]); };
  job.describe = [&](std::size_t item) { return checkpoint_.describe(chunks[item].id); };
  job.threads = threads_;
  job.budget_bytes = options_.memory_budget_bytes;
  if (options_.progress) {
    job.progress = [&] {
      MutexLock lock(progress_mutex_);
      options_.progress({call.done_bytes, call.total_bytes});
    };
  }
  run_read_job(job);
  chunks_ += std::ssize(items);
  stored_bytes_ += stored_bytes;
  decoded_bytes_ += all_decoded_bytes;
}

ReadStats ChunkReader::stats() const { return {chunks_, stored_bytes_, decoded_bytes_}; }

}  // namespace shardwise::detail
