#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The content of a file after write_chunks().
struct WrittenChunks {
  ChunkTable table;
  std::uint64_t end = 0;  ///< after the last chunk; a multiple of kPageBytes
  std::size_t stored_bytes = 0;
  std::size_t unchanged_bytes = 0;  ///< logical bytes of chunks that are in an earlier step's file
};

/// Gathers, encodes, hashes and writes the chunks of one file of a plan, from address `begin` on (a
/// multiple of kPageBytes). The file's bytes depend on the tensors and on `unchanged` alone, not on
/// threads or buffers, unless the plan is adaptive: then, after the first 64 MiB, chunks stay
/// uncompressed whenever the disk would otherwise be idle. What `unchanged`, which may be null, has
/// is not written. Reports `progress` in logical bytes of this file. Throws io, CallerError.
WrittenChunks write_chunks(const SavePlan& plan, const ChunkLayout& layout,
                           UnchangedChunks* unchanged, File& file, std::uint64_t begin,
                           StagingPool& pool, const ProgressFunction& progress);

}  // namespace shardwise::detail
