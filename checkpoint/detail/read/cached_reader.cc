#include "shardwise/checkpoint/detail/read/cached_reader.h"

#include <algorithm>

#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

void CachedReader::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  std::byte* const place = out.data();
  const ReadTarget target{tensor, &box, {&place, 1}};
  const ChunkReader::View view = reader_.checkpoint_for({&target, 1});
  const StoredCheckpoint& checkpoint = *view;
  const ReadPlan plan(checkpoint, {&target, 1});
  // Chunks that lie in the box will hardly be asked for again: they need no copy.
  bool all_inside = true;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    all_inside = all_inside && box.contains(checkpoint.box(plan.chunk(i)));
  }
  if (all_inside) {
    reader_.fill({&target, 1});
    return;
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const ChunkId& id = plan.chunk(i);
    const Box held = checkpoint.box(id);
    const ChunkPtr decoded = chunk(checkpoint, id);
    copy_box(intersect(held, box), size_bytes(checkpoint.tensor(id).dtype),
             {decoded->buffer->room(decoded->bytes), held}, {out.data(), box});
  }
}

CachedReader::ChunkPtr CachedReader::chunk(const StoredCheckpoint& checkpoint,
                                           const ChunkId& id) const {
  const PieceEntry piece = checkpoint.piece(id);
  const Key key{piece.file, piece.first_chunk + id.chunk};
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end()) {
      ages_.splice(ages_.begin(), ages_, found->second.age);
      return found->second.chunk;
    }
  }
  // Two threads may decode the same chunk here: seldom, and cheaper than having one wait.
  const Box box = checkpoint.box(id);
  const std::size_t bytes = num_bytes(box.shape(), size_bytes(checkpoint.tensor(id).dtype));
  ChunkPtr made(new Chunk{ReadBuffers::Loan(buffers_), bytes});
  std::byte* const place = made->buffer->room(bytes);
  const ReadTarget target{id.tensor, &box, {&place, 1}};
  reader_.fill({&target, 1});
  keep(key, made);
  return made;
}

void CachedReader::keep(const Key& key, ChunkPtr chunk) const {
  const MutexLock lock(mutex_);
  if (chunk->bytes > cache_bytes_ || entries_.contains(key)) return;
  held_bytes_ += chunk->bytes;
  ages_.push_front(key);
  entries_.emplace(key, Entry{std::move(chunk), ages_.begin()});
  while (held_bytes_ > cache_bytes_) {
    const auto oldest = entries_.find(ages_.back());
    held_bytes_ -= oldest->second.chunk->bytes;
    entries_.erase(oldest);
    ages_.pop_back();
  }
}

}  // namespace shardwise::detail
