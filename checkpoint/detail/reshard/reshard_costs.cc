#include "shardwise/checkpoint/detail/reshard/reshard_costs.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/write/chunk_encoder.h"
#include "shardwise/checkpoint/detail/write/slab_bytes.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {
namespace {

/// Which chunks CachedReader holds.
class KeptChunks {
 public:
  using Key = std::pair<std::int64_t, std::int64_t>;  // file, record

  explicit KeptChunks(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// Whether it is there; from now on it is.
  bool take(const Key& key, std::size_t bytes) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) {
      ages_.splice(ages_.begin(), ages_, found->second.second);
      return true;
    }
    if (bytes > most_bytes_) return false;
    ages_.push_front(key);
    entries_.emplace(key, std::pair(bytes, ages_.begin()));
    held_bytes_ += bytes;
    while (held_bytes_ > most_bytes_) {
      const auto oldest = entries_.find(ages_.back());
      held_bytes_ -= oldest->second.first;
      entries_.erase(oldest);
      ages_.pop_back();
    }
    return false;
  }

 private:
  const std::size_t most_bytes_;
  std::size_t held_bytes_ = 0;
  std::list<Key> ages_;  // the one used last in front
  std::map<Key, std::pair<std::size_t, std::list<Key>::iterator>> entries_;
};

// A probe looks at stretches of chunks in all parts of the files, in which chunks of the source are
// used again as they will be.
constexpr std::int64_t kStretches = 64, kStretchChunks = 16;

struct Stretch {
  std::size_t file;
  std::int64_t first, end;
};

std::vector<Stretch> stretches_of(std::span<const ChunkLayout> files) {
  std::int64_t chunks = 0;
  for (const ChunkLayout& file : files) chunks += file.num_chunks();
  const std::int64_t apart = std::max(kStretchChunks, chunks / kStretches);
  std::vector<Stretch> stretches;
  for (std::size_t f = 0; f < files.size(); ++f) {
    for (std::int64_t first = 0; first < files[f].num_chunks(); first += apart) {
      stretches.push_back({f, first, std::min(first + kStretchChunks, files[f].num_chunks())});
    }
  }
  // Far apart first: what is there when time is up is of all parts.
  std::vector<Stretch> order;
  for (std::size_t step = std::size_t{1} << 20; step > 0; step /= 2) {
    for (std::size_t i = step == std::size_t{1} << 20 ? 0 : step; i < stretches.size();
         i += 2 * step) {
      order.push_back(stretches[i]);
    }
  }
  return order;
}

}  // namespace

ReadCosts costs_of_reading(ChunkReader& reader, const SavePlan& plan,
                           std::span<const ChunkLayout> files, const SourceBoxes& source_boxes,
                           std::size_t cache_bytes) {
  ReadCosts costs;
  KeptChunks kept(cache_bytes);
  std::set<KeptChunks::Key> different;
  const auto add = [&](std::size_t tensor, const Box& wanted) {
    const ReadTarget target{tensor, &wanted, {}};
    const ChunkReader::View view = reader.checkpoint_for({&target, 1});
    const StoredCheckpoint& checkpoint = *view;
    const ReadPlan reads(checkpoint, {&target, 1});
    bool all_inside = true;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      all_inside = all_inside && wanted.contains(checkpoint.box(reads.chunk(i)));
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const ChunkId& id = reads.chunk(i);
      const PieceEntry piece = checkpoint.piece(id);
      const KeptChunks::Key key{piece.file, piece.first_chunk + id.chunk};
      const std::size_t element_bytes = size_bytes(checkpoint.tensor(id).dtype);
      const std::size_t bytes = num_bytes(checkpoint.box(id).shape(), element_bytes);
      costs.needed_bytes += num_bytes(intersect(checkpoint.box(id), wanted).shape(), element_bytes);
      different.insert(key);
      if (!all_inside && kept.take(key, bytes)) continue;
      ++costs.decodes;
      costs.stored_bytes += checkpoint.record(id).stored_bytes;
      costs.decoded_bytes += checkpoint.decoded_bytes(id);
    }
  };
  for (const ChunkLayout& file : files) {
    for (std::int64_t c = 0; c < file.num_chunks(); ++c) {
      const FileChunk chunk = file.chunk(c);
      for (const auto& read : source_boxes(plan.sources[chunk.tensor], chunk.box)) {
        if (!read.box.empty()) add(read.tensor, read.box);
      }
    }
  }
  costs.chunks = std::ssize(different);
  return costs;
}

std::size_t most_file_bytes(const SavePlan& plan, std::span<const ChunkLayout> files) {
  // Beside the chunks: what describes chunks, pieces (in a shard file and in the index), tensors
  // and files, each with room to spare.
  constexpr std::size_t kChunk = 64, kPiece = 8192, kTensor = 4096;
  constexpr std::size_t kFile = std::size_t{256} << 10;
  std::size_t bytes = kFile;
  for (const ChunkLayout& file : files) {
    bytes += file.most_bytes() + as_size(file.num_chunks()) * kChunk +
             file.pieces().size() * kPiece + kFile;
  }
  for (const TensorEntry& tensor : plan.tensors) bytes += kTensor + 8 * tensor.name.size();
  return bytes;
}

Probe probe_chunks(const SavePlan& plan, std::span<const ChunkLayout> files, int threads,
                   double seconds) {
  const std::vector<Stretch> stretches = stretches_of(files);
  const Stopwatch watch;
  std::atomic<std::size_t> bytes{0}, stored_bytes{0};
  std::vector<ChunkEncoder> encoders(as_size(threads));
  try {
    run_lanes({.jobs = stretches.size(),
               .lanes = as_size(threads),
               .run = [&](std::size_t job, std::size_t lane) {
                 const auto& [file, first, end] = stretches[job];
                 for (std::int64_t c = first; c < end && watch.seconds() < seconds; ++c) {
                   const FileChunk chunk = files[file].chunk(c);
                   std::optional<Effort> effort;
                   if (chunk.piece.codec != StoredCodec::none) {
                     effort = plan.effort(chunk.piece.file, chunk.tensor);
                   }
                   const PageMemory room = page_memory(chunk.bytes);
                   SlabBytes out(room.get());
                   encoders[lane].encode(plan.sources[chunk.tensor], chunk, effort, nullptr, out);
                   bytes += chunk.held_bytes();
                   stored_bytes += out.size();
                 }
               }});
  } catch (const CallerError& e) {
    std::rethrow_exception(e.cause);
  }
  return {bytes, stored_bytes, watch.seconds()};
}

}  // namespace shardwise::detail
