#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// Called after each read of a check, with its bytes.
using ReadFunction = std::function<void(std::size_t bytes)>;

/// Adds bytes [begin, end) of a file to a hash, a few at a time.
void hash_range(File& file, std::uint64_t begin, std::uint64_t end, Hasher128& hasher,
                const ReadFunction& read = nullptr);

/// Compares HDF5's own bytes of a shard file, those outside its data, with their hash. Requires
/// that the file's description was read. Throws corrupt; io if it cannot be read.
void check_structure(File& file, const std::string& path, const FileEntry& entry,
                     const ReadFunction& read = nullptr);
void check_structure(const StoredCheckpoint& checkpoint, std::size_t file,
                     const ReadFunction& read = nullptr);

/// The same of a linked file, whose description is read and compared first.
void check_structure(File& file, const std::string& path, const LinkedFile& linked,
                     const ReadFunction& read = nullptr);

/// A chunk whose stored bytes cannot be read or are not those that were written.
struct BadChunk {
  std::int64_t number;  ///< of its record in the file's table
  std::string problem;
};

/// Compares the size of a shard file, and the hashes of its tables, of HDF5's own bytes and of the
/// stored bytes of every chunk, and gives the chunks that are bad. So it does with the files that
/// it links, but for their chunks that are not this file's. What is between chunks means nothing
/// and is not read. Throws as above if anything else is bad.
std::vector<BadChunk> find_bad_chunks(StoredCheckpoint& checkpoint, std::size_t file);

/// The same, but throws corrupt for a bad chunk, too.
void check_file(StoredCheckpoint& checkpoint, std::size_t file);

}  // namespace shardwise::detail
