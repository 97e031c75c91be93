#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/runtime/mutex.h"

namespace shardwise::detail {

/// Reads boxes one after the other, each smaller than what a chunk holds, without decoding every
/// chunk for every box: the chunks that were used last are kept. For who asks in some order that
/// follows the tensor, as a save does. Thread-safe.
class CachedReader {
 public:
  /// Keeps up to `cache_bytes` of decoded chunks, beside what `reader` takes. The reader must
  /// outlive it.
  CachedReader(ChunkReader& reader, std::size_t cache_bytes)
      : reader_(reader), cache_bytes_(cache_bytes) {}

  /// Fills `out` with the elements of a box of the tensor with this number. Requires that the box
  /// lies in the tensor and has out.size() bytes.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out);

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // file, record
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Entry {
    Bytes bytes;
    std::list<Key>::iterator age;
  };

  Bytes chunk(const ChunkId& id);
  void keep(const Key& key, Bytes bytes);

  ChunkReader& reader_;
  const std::size_t cache_bytes_;
  Mutex mutex_;
  std::map<Key, Entry> entries_ SHARDWISE_GUARDED_BY(mutex_);
  std::list<Key> ages_ SHARDWISE_GUARDED_BY(mutex_);  // the one used last in front
  std::size_t held_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise::detail
