#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/storage/file.h"

namespace shardwise::mend_detail {

std::optional<std::size_t> find_tensor(const detail::Manifest& manifest, std::string_view name);

/// The chunk that has exactly this box, if its file is loaded.
std::optional<detail::ChunkId> find_chunk(const detail::StoredCheckpoint& checkpoint,
                                          std::size_t tensor, const Box& box);

/// A chunk of a damaged checkpoint, as it must be.
struct WantedChunk {
  const detail::StoredCheckpoint& checkpoint;
  detail::ChunkId id;
  std::optional<std::uint64_t> content_hash;  ///< if the content table of its file has one

  const detail::ChunkRecord& record() const { return checkpoint.record(id); }
};

/// True if these are the stored bytes of the chunk, by every hash that there is.
bool are_stored_bytes(const WantedChunk& wanted, std::span<const std::byte> bytes);

/// The stored bytes of a chunk, as the table of its file says them.
struct ChunkBytes {
  std::string file;  ///< its name in the directory of a step
  std::uint64_t address, bytes, hash;
};

ChunkBytes bytes_of(const WantedChunk& wanted);

struct FoundChunk {
  std::vector<std::byte> bytes;  ///< as they are to be stored
  std::filesystem::path from;    ///< the checkpoint
};

/// Finds the stored bytes of chunks in other checkpoints. Thread-compatible.
class ChunkFinder {
 public:
  /// Opened when they are first needed; the file system must outlive it.
  ChunkFinder(FileSystem& file_system, std::vector<std::filesystem::path> checkpoints);

  /// Bytes with this size and hash: those of any chunk, or those at this place of a file of this
  /// name, whatever else of that is damaged. Absent if no checkpoint has them.
  std::optional<FoundChunk> find_stored(const ChunkBytes& chunk);

  /// Absent if no source has them; `why_not` then says why, in one clause.
  std::optional<FoundChunk> find(const WantedChunk& wanted, std::string& why_not);

 private:
  struct Place {
    std::uint64_t hash;
    std::uint32_t shard_file, record;  // numbers
  };
  struct Source {
    std::filesystem::path path;
    bool was_opened = false;
    std::unique_ptr<detail::ChunkReader> reader = nullptr;  // null: it cannot be read
    std::vector<Place> chunks = {};                         // by hash
  };

  Source& opened(Source& source);
  std::optional<FoundChunk> read(Source& source, File& file, std::uint64_t address,
                                 const ChunkBytes& chunk);
  std::optional<FoundChunk> find_by_hash(Source& source, const ChunkBytes& chunk);
  std::optional<FoundChunk> coded_again(Source& source, const WantedChunk& wanted,
                                        std::string& why_not);

  FileSystem& file_system_;
  std::vector<Source> sources_;
  detail::Encoder encoder_;
};

}  // namespace shardwise::mend_detail
