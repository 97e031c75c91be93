#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"

// What the writers of an attempt tell the process that publishes it: checkpoint/attempt.h.
namespace shardwise::detail {

/// One writer's part of a checkpoint.
struct WriterPart {
  std::int64_t writer = 0;
  WriterMap writers;
  std::vector<TensorEntry> tensors;  ///< of this writer's boxes, where they are listed
  FileEntry file;                    ///< 0 bytes where it has written none
  std::uint64_t logical_bytes = 0, stored_bytes = 0;
  std::int64_t chunks = 0;
};

Bytes encode(const WriterPart& part);

/// Throws invalid_argument where the bytes are no record.
WriterPart decode_part(std::span<const std::byte> bytes);

/// The manifest of them all, and what they have written together. Throws invalid_argument where a
/// writer is missing or comes twice, two say different things of a tensor, or a writer was not
/// given a tensor of which its devices hold a part.
Manifest merge(std::vector<WriterPart> parts, SaveStats& stats);

}  // namespace shardwise::detail
