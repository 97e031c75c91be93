#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/runtime/parallel.h"

// The costs of a reshard, before it is done.
namespace shardwise::reshape_detail {

/// Counts of reads from a checkpoint. A chunk that is wanted again counts again if it was not kept.
struct ReadCosts {
  std::int64_t chunks = 0;        ///< different ones
  std::int64_t decodes = 0;       ///< of them all
  std::size_t stored_bytes = 0;   ///< of these decodes
  std::size_t decoded_bytes = 0;  ///< of these decodes, with padding
  std::size_t needed_bytes = 0;   ///< of the elements that are wanted
};

using SourceBoxes =
    std::function<std::vector<EditedTensors::SourceBox>(const TensorSource&, const Box&)>;

/// The costs of a save of the plan that reads with CachedReader, if one thread asks for the boxes:
/// several may decode a little more. `source_boxes` gives the boxes that are read for a box.
ReadCosts costs_of_reading(detail::ChunkReader& reader, const detail::SavePlan& plan,
                           std::span<const detail::ChunkLayout> files,
                           const SourceBoxes& source_boxes, std::size_t cache_bytes);

/// The most bytes that the shard files, the manifest and the index can have.
std::size_t most_file_bytes(const detail::SavePlan& plan,
                            std::span<const detail::ChunkLayout> files);

}  // namespace shardwise::reshape_detail
