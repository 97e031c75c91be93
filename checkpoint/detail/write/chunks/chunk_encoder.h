#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"
#include "shardwise/checkpoint/detail/write/chunks/slab_bytes.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"

namespace shardwise::detail {

/// Gives the record of a chunk that is in an earlier step's file and has this XXH3-128.
using FindUnchanged = std::function<std::optional<ChunkRecord>(const Hash128& content)>;

/// The result of encoding a chunk.
struct EncodedChunk {
  ChunkRecord record;  ///< without an address
  std::uint64_t decoded_hash = 0;
  std::uint64_t content_hash = 0;  ///< the high half of their XXH3-128; 0 for a contiguous piece
  std::span<const std::byte> in_place;  ///< if it is written from memory that may change
};

/// Throws invalid_argument if elements that were used where their source has them have changed.
void check_unchanged(const TensorSource& source, const Box& box,
                     std::span<const std::byte> elements, std::uint64_t decoded_hash);

/// Gathers, hashes and encodes chunks, one after the other. Thread-compatible: each worker has its
/// own, and the memory of it.
class ChunkEncoder {
 public:
  /// Adds a chunk's stored bytes to `out`, never more than it has decoded; as they are if there
  /// is no `effort` or it does not shrink. Adds none if `unchanged`, which may be null, gives a
  /// record of the same content. Throws CallerError.
  EncodedChunk encode(const TensorSource& source, const FileChunk& chunk,
                      std::optional<Effort> effort, const FindUnchanged& unchanged, SlabBytes& out);

  /// Memory that is kept for the next chunk.
  std::size_t held_bytes() const {
    return encoder_.held_bytes() + gathered_.capacity() + edge_.capacity();
  }

 private:
  std::span<const std::byte> put_in_memory(const TensorSource& source, const FileChunk& chunk,
                                           std::span<const std::byte> in_place, bool is_coded,
                                           SlabBytes& out);
  void gather(const TensorSource& source, const FileChunk& chunk, std::span<std::byte> out);

  std::vector<std::byte> gathered_, edge_;
  Encoder encoder_;
};

}  // namespace shardwise::detail
