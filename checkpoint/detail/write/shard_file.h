#pragma once

#include <cstddef>

#include "shardwise/checkpoint/detail/write/chunks/chunk_writer.h"

namespace shardwise::detail {

/// A shard file that is complete and on the disk.
struct WrittenShardFile {
  FileEntry entry;
  ChunkTable table;
  std::size_t unchanged_bytes = 0;  ///< logical bytes of chunks that are in linked files
};

/// Writes the chunks of file number `file_number` of a plan to `file`, empty or all zeros, and
/// makes it an HDF5 file (docs/checkpoint_format.md, heading "Shard files"): first the data, then
/// the chunk table and the description, and the other tables and HDF5's own bytes last, so that an
/// unfinished file does not open. Closes it. Settles `unchanged`, which may be null. Throws io,
/// CallerError.
WrittenShardFile write_shard_file(const SavePlan& plan, std::size_t file_number,
                                  const ChunkLayout& layout, UnchangedChunks* unchanged, File& file,
                                  StagingPool& pool, const ProgressFunction& progress);

}  // namespace shardwise::detail
