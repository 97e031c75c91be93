#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// A checkpoint whose boxes are read one after another, each smaller than a chunk: the chunks that
/// were used last are kept, so that not every box decodes its chunks again. For boxes that follow
/// the order of a tensor, as a save asks for them. Thread-safe.
class CachedReader final : public BoxReader {
 public:
  /// Keeps up to `cache_bytes` of decoded chunks, in addition to the memory of `reader`, which must
  /// outlive it and reads the checkpoint with these tensors.
  CachedReader(ChunkReader& reader, std::vector<TensorInfo> tensors, std::size_t cache_bytes)
      : reader_(reader), infos_(std::move(tensors)), cache_bytes_(cache_bytes) {}

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // file, record
  struct Chunk {
    ReadBuffers::Loan buffer;
    std::size_t bytes;
  };
  using ChunkPtr = std::shared_ptr<const Chunk>;
  struct Entry {
    ChunkPtr chunk;
    std::list<Key>::iterator age;
  };

  ChunkPtr chunk(const StoredCheckpoint& checkpoint, const ChunkId& id) const;
  void keep(const Key& key, ChunkPtr chunk) const;

  ChunkReader& reader_;
  const std::vector<TensorInfo> infos_;
  const std::size_t cache_bytes_;
  mutable ReadBuffers buffers_;  // outlives the entries
  mutable Mutex mutex_;
  mutable std::map<Key, Entry> entries_ SHARDWISE_GUARDED_BY(mutex_);
  mutable std::list<Key> ages_ SHARDWISE_GUARDED_BY(mutex_);  // the one used last in front
  mutable std::size_t held_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise::detail
