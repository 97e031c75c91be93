#pragma once

#include <cstddef>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"

namespace shardwise::detail {

/// A directory with some of a checkpoint's shard files, of which none is loaded. The file system
/// must outlive it.
StoredCheckpoint partial_checkpoint(FileSystem& file_system, const std::filesystem::path& directory,
                                    const Manifest& manifest);

/// Reads all of a shard file and compares its size, its tables, HDF5's own bytes and the stored
/// bytes of every chunk with their hashes. Throws corrupt; io if it cannot be read.
void check_file(StoredCheckpoint& checkpoint, std::size_t number);

}  // namespace shardwise::detail
