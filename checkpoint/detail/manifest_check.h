#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/manifest.h"

// What docs/checkpoint_format.md asks of a manifest beyond the JSON types of its values: one gate
// for what was read and for what is going to be written. What is refused is `corrupt`, and the
// message names the tensor and piece, or the file.
namespace shardwise::detail {

/// A tensor by itself: its name, the path of its index, its pieces (datasets, chunks, boxes that
/// cover every element once). `number`: its place in the list of tensors.
void check_tensor(const TensorEntry& tensor, std::int64_t number);

/// The tensors together: sorted names, distinct names of files and paths of the index, and each
/// chunk record of a file belongs to one piece. Looks at the names and chunks of `files` alone, so
/// it can be asked before anything is written.
void check_lists(std::span<const TensorEntry> tensors, std::span<const FileEntry> files);

/// Why a shard file cannot have this name, data range, chunk table or, where it must have them,
/// decoded hashes; empty where it can.
std::string file_problem(const FileEntry& file, bool has_decoded_hashes);

/// All of that.
void check_manifest(const Manifest& manifest);

}  // namespace shardwise::detail
