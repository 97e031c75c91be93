#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/runtime/device.h"

namespace shardwise::detail {

/// Arrays with the requests' specs, filled with the tensors of these numbers in the manifest: each
/// process reads the parts of its devices. Throws as CheckpointReader::restore.
std::vector<ShardedArray> restore_arrays(ChunkReader& chunks, Devices& devices,
                                         std::span<const TensorRequest> requests,
                                         std::span<const std::size_t> numbers);

}  // namespace shardwise::detail
