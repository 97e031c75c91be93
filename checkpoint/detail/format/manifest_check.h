#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/format/manifest.h"

// Rules of docs/checkpoint_format.md for the tensors, pieces and files of a manifest beyond the
// JSON types of their values. The version, the writers and the number of files are checked as they
// are parsed (manifest_parse.cc). A manifest that is going to be written passes both: its text is
// parsed as a reader parses it (write/commit.h, checked_manifest). A refusal is `corrupt`, and its
// message names the tensor and piece, or the file.
namespace shardwise::detail {

/// A tensor: its name, and the sharding or the list that gives its pieces.
/// `number`: its place in the list of tensors.
void check_tensor(const TensorEntry& tensor, std::int64_t number, std::int64_t writers);

/// Why no manifest can hold this mesh; empty if one can. And why no tensor that these writers store
/// can be cut over it.
std::string mesh_problem(const Mesh& mesh);
std::string mesh_problem(const Mesh& mesh, const WriterMap& writers);

/// Why this cannot be a piece of the tensor, wherever it is stored; empty if it can.
std::string piece_problem(const PieceEntry& piece, const TensorEntry& tensor);

/// The tensors together: sorted names, distinct names of files.
void check_names(std::span<const TensorEntry> tensors, std::span<const FileEntry> files);

/// Why a shard file cannot have this name, data range, chunk table or decoded hashes; empty if it
/// can.
std::string file_problem(const FileEntry& file);

/// All files of a manifest, which must be known in full: their own descriptions were read, or
/// are going to be written.
void check_files(std::span<const FileEntry> files);

}  // namespace shardwise::detail
