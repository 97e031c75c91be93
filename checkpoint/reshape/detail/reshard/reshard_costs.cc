#include "shardwise/reshape/detail/reshard/reshard_costs.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace shardwise::reshape_detail {
namespace {

/// Which chunks CachedReader holds.
class KeptChunks {
 public:
  using Key = std::pair<std::int64_t, std::int64_t>;  // file, record

  explicit KeptChunks(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// True if the chunk is kept already; from now on it is.
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

}  // namespace

ReadCosts costs_of_reading(detail::ChunkReader& reader, const detail::SavePlan& plan,
                           std::span<const detail::ChunkLayout> files,
                           const SourceBoxes& source_boxes, std::size_t cache_bytes) {
  ReadCosts costs;
  KeptChunks kept(cache_bytes);
  std::set<KeptChunks::Key> different;
  const auto add = [&](std::size_t tensor, const Box& wanted) {
    const detail::ReadTarget target{tensor, &wanted, {}};
    const detail::ChunkReader::View view = reader.checkpoint_for({&target, 1});
    const detail::StoredCheckpoint& checkpoint = *view;
    const detail::ReadPlan reads(checkpoint, {&target, 1});
    bool all_inside = true;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      all_inside = all_inside && wanted.contains(checkpoint.box(reads.chunk(i)));
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const detail::ChunkId& id = reads.chunk(i);
      const detail::PieceEntry piece = checkpoint.piece(id);
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
  for (const detail::ChunkLayout& file : files) {
    for (std::int64_t c = 0; c < file.num_chunks(); ++c) {
      const detail::FileChunk chunk = file.chunk(c);
      for (const auto& read : source_boxes(plan.sources[chunk.tensor], chunk.box)) {
        if (!read.box.empty()) add(read.tensor, read.box);
      }
    }
  }
  costs.chunks = std::ssize(different);
  return costs;
}

std::size_t most_file_bytes(const detail::SavePlan& plan,
                            std::span<const detail::ChunkLayout> files) {
  // The bytes that describe each chunk, piece (in a shard file and in the index), tensor and file,
  // with room to spare.
  constexpr std::size_t kChunk = 64, kPiece = 8192, kTensor = 4096;
  constexpr std::size_t kFile = std::size_t{256} << 10;
  std::size_t bytes = kFile;
  for (const detail::ChunkLayout& file : files) {
    bytes += file.most_bytes() + as_size(file.num_chunks()) * kChunk +
             file.pieces().size() * kPiece + kFile;
  }
  for (const detail::TensorEntry& tensor : plan.tensors) bytes += kTensor + 8 * tensor.name.size();
  return bytes;
}

}  // namespace shardwise::reshape_detail
