#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// What lies in a file after write_chunks().
struct WrittenChunks {
  ChunkTable table;       ///< in the order of the plan's chunks
  std::uint64_t end = 0;  ///< behind the last chunk; a multiple of kPageBytes
  std::size_t stored_bytes = 0;
};

/// At most so many bytes lie between `begin` and WrittenChunks::end.
std::size_t most_data_bytes(const SavePlan& plan);

/// Gathers, encodes, hashes and writes every chunk of a plan, from address `begin` on (a multiple
/// of kPageBytes). Where each chunk lies depends on the tensors alone, not on the threads or the
/// buffers; unless the plan is adaptive: then, behind the first 64 MiB, those are not compressed
/// that a disk with nothing to do waits for. Throws io, CallerError.
WrittenChunks write_chunks(const SavePlan& plan, File& file, std::uint64_t begin, StagingPool& pool,
                           const ProgressFunction& progress);

}  // namespace shardwise::detail
