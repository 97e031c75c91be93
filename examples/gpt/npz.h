#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace gpt {

/// One array of an .npz file: row-major.
struct NpzArray {
  shardwise::DType dtype;
  shardwise::Shape shape;
  std::vector<std::byte> bytes;
};

/// All arrays that numpy.savez has written, by name. Throws Error: not_found or io for the file;
/// unsupported for anything that numpy.savez does not write for f32, f64, i32 and i64 arrays
/// (compressed entries, other element types, Fortran order); corrupt if the file contradicts
/// itself.
std::map<std::string, NpzArray> read_npz(const std::filesystem::path& path);

}  // namespace gpt
